"""The messages of an entry, whatever its payload kind."""

from __future__ import annotations

import base64
import json
from typing import Any

from metatxn.wire.batches import MessageColumns, unpack_batch
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.pulsar_entries import pulsar_bodies
from metatxn.wire.record_batches import bodies_of
from metatxn.wire.rows import rows_of


def messages_of(frame: Entry) -> MessageColumns:
    match frame.kind:
        case PayloadKind.BATCH:
            return unpack_batch(frame.payload, frame.count)
        case PayloadKind.MESSAGES:
            return _columns(json.loads(bytes(frame.payload)))
        case PayloadKind.KAFKA:
            return _columns(bodies_of(frame.payload, frame.count))
        case PayloadKind.PULSAR:
            return _columns(pulsar_bodies(frame.payload, frame.count))
        case PayloadKind.BYTES:
            return MessageColumns([None], [bytes(frame.payload)], [None], [None])
        case PayloadKind.ARROW:
            return _columns(rows_of(frame.payload))


def _columns(bodies: list[dict[str, Any]]) -> MessageColumns:
    return MessageColumns(
        [body.get("key") for body in bodies],
        [_value_of(body) for body in bodies],
        [body.get("properties") for body in bodies],
        [body.get("deliver_at_ms") for body in bodies],
    )


def _value_of(body: dict[str, Any]) -> Any:
    if "raw" in body:
        return body["raw"]
    # Of the messages that are JSON, some have a `value` of null beside this.
    encoded = body.get("value_base64")
    return body.get("value") if encoded is None else base64.b64decode(encoded)
