"""Publishing a message, also inside a transaction."""

from __future__ import annotations

import json
from typing import Any

import metatxn
from metatxn.console.visit import MadeChange, SentForm, Visit
from metatxn.words import short_id


async def produce_message(visit: Visit, form: SentForm) -> MadeChange:
    """Publish one message. Inside a transaction no one reads it before that is committed."""
    topic, txn_id = visit.part("topic"), form.get("txn", "").strip()
    value, properties = _value(form), properties_of_form(form)
    txn = visit.client.attach(txn_id.rjust(32, "0")) if txn_id else None
    about = {"topic": (await visit.client.topic(topic)).name, **({"txn_id": txn.id} if txn is not None else {})}
    with visit.recording("message.produce", about):
        async with visit.client.producer(topic) as producer:
            try:
                sent = await producer.send(value, form.get("key") or None, txn, properties or None)
            except (TypeError, ValueError) as error:
                raise metatxn.InvalidArgument(f"value: {error}", field="value") from None
            position = await sent
    inside = f"; readers get it once transaction {short_id(txn.id)} is committed" if txn is not None else ""
    return MadeChange(f"The message is stored at {position}{inside}.", visit.here)


def _value(form: SentForm) -> Any:
    text, kind = form.get("value", ""), form.get("kind", "json")
    match kind:
        case "text":
            return text
        case "json":
            return _json(text)
        case "hex":
            try:
                return bytes.fromhex(text)
            except ValueError:
                raise metatxn.InvalidArgument(
                    "value: bytes are pairs of digits, such as `00 ff`", field="value"
                ) from None
    raise metatxn.InvalidArgument(f"kind: {kind!r} is not json, text or hex", field="kind")


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        action = 'Write it as in {"amount": 100}, or choose text.'
        raise metatxn.InvalidArgument(f"value: it is not JSON: {error}", action=action, field="value") from None


def _refused(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def properties_of_form(form: SentForm) -> dict[str, str]:
    """The properties, one on each line, as in `name=value`."""
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, form.get("properties", "").splitlines())):
        name, sign, value = line.partition("=")
        if not sign:
            problem = f"properties: {line[:40]!r} is not of the form name=value"
            raise metatxn.InvalidArgument(problem, field="properties")
        found[name.strip()] = value.strip()
    return found
