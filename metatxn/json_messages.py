"""Messages in JSON: for a publish to a topic, and for services of release 0.2.0, which know no binary batches."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from json.encoder import encode_basestring_ascii
from typing import Any

from metatxn.wire.batches import unpack_batch
from metatxn.wire.frames import Entry, PayloadKind

_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def encoded_message(
    value: Any, key: str | None, properties: dict[str, str] | None, times_ms: Mapping[str, int | None] | None = None
) -> bytes:
    """A message in the form that an entry holds, with these times by their names. Raises `TypeError` or `ValueError`
    for a value that is not JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        member = f'"value_base64":"{base64.b64encode(value).decode()}"'
    else:
        member = f'"value":{encode_basestring_ascii(value) if type(value) is str else _encode(value)}'
    if properties is not None:
        member = f'"properties":{_encode(properties)},{member}'
    for name, time_ms in (times_ms or {}).items():
        if time_ms is not None:
            member = f'"{name}":{time_ms},{member}'
    if key is not None:
        member = f'"key":{encode_basestring_ascii(key)},{member}'
    return f"{{{member}}}".encode("ascii")


def entry_in_json(batch: Entry) -> Entry:
    """The entry with the same messages in JSON instead of a binary batch. It is a retry of the other, and the reverse:
    brokers recognize it by its sequence, its keys and their number."""
    keys, values, properties, times_ms = unpack_batch(batch.payload, batch.count)
    messages = map(encoded_message, values, keys, properties, ({"deliver_at_ms": each} for each in times_ms))
    return replace(batch, payload=b"[" + b",".join(messages) + b"]", kind=PayloadKind.MESSAGES)
