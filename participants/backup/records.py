"""The records of a store as lines of JSON, `{"key": …, "value": …}`: people can read them, with `value_base64` for what
is not text."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator

from metastore.types import Record

PAGE_BYTES = 4 << 20


def pages(records: Iterable[Record]) -> Iterator[tuple[int, bytes]]:
    """The number of records of each page, and its content."""
    lines: list[bytes] = []
    size = 0
    for record in records:
        lines.append(_line(record))
        size += len(lines[-1])
        if size >= PAGE_BYTES:
            yield len(lines), b"".join(lines)
            lines, size = [], 0
    if lines:
        yield len(lines), b"".join(lines)


def _line(record: Record) -> bytes:
    try:
        value = {"value": record.value.decode()}
    except UnicodeDecodeError:
        value = {"value_base64": b64encode(record.value).decode()}
    return json.dumps({"key": record.key} | value, separators=(",", ":")).encode() + b"\n"


def parsed_records(page: bytes) -> Iterator[tuple[str, bytes]]:
    """The keys and values of a page. Raises `ValueError` and `LookupError` for anything else."""
    for line in page.splitlines():
        found = json.loads(line)
        value = found["value"].encode() if "value" in found else b64decode(found["value_base64"])
        yield found["key"], value
