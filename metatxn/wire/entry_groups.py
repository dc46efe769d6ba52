"""Entries for several segments of one broker in one request, all inside one transaction.

    offset  size  field
         0     4  length of the head in bytes, unsigned and little-endian
         4     .  head            JSON: {"entries": [{"segment": "…", "media_type": "…", "size": 12, …}, …]}
         .     .  payloads        of all entries, in the same order, without anything between them

Every entry has a sequence. So whatever becomes of the request, each of its entries can be sent again, together with
others or by itself, and is appended once.

The head of the last entries of a transaction may also hold its commit, which is carried out once all of them are
durable.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from metatxn.wire.broker import MAX_NAME, PAYLOAD_MEDIA_TYPES, Name, PublishAnswer
from metatxn.wire.coordinator import CommitRequest, TransactionHeader
from metatxn.wire.errors import InvalidArgument
from metatxn.wire.frames import MAX_PAYLOAD_BYTES, Entry
from metatxn.wire.models import RequestBody, example
from metatxn.wire.problems import Problem

MEDIA_TYPE = "application/vnd.metatxn.entries"
MAX_ENTRIES = 1_000
"""The most entries in one request."""
_LENGTH = struct.Struct("<I")
_ShortName = Annotated[Name, Field(min_length=1, max_length=MAX_NAME)]


class EntryHead(RequestBody):
    """One entry, without its payload of `size` bytes. `writer`, `producer`, `sequence`, `before_commit` and `count`
    mean the same as in a request for one entry."""

    segment: Name
    media_type: Name
    size: Annotated[int, Field(ge=0, le=MAX_PAYLOAD_BYTES)]
    sequence: Annotated[int, Field(ge=0, le=2**53 - 1)]
    writer: _ShortName | None = None
    producer: _ShortName | None = None
    before_commit: bool | None = None
    count: Annotated[int, Field(ge=1, le=2**32 - 1)] | None = None


class _Head(RequestBody):
    entries: Annotated[list[EntryHead], Field(min_length=1, max_length=MAX_ENTRIES)]
    commit: CommitRequest | None = None


@dataclass(frozen=True, slots=True)
class EntryGroup:
    """The entries of a request, each with its payload, and the commit that follows them, if there is one."""

    entries: list[tuple[EntryHead, bytes]]
    commit: CommitRequest | None = None


class PublishGroupAnswer(BaseModel):
    """What became of each entry, in the order of the request: what a request for this entry alone would be answered.
    `commit` is what a commit of the transaction is answered; without it no commit was tried."""

    model_config = example(outcomes=[{"position": "7:12", "duplicate": False}])

    outcomes: list[PublishAnswer | Problem]
    commit: TransactionHeader | Problem | None = None


def pack_entries(entries: Iterable[tuple[str, Entry]], commit: CommitRequest | None = None) -> bytes:
    """The body of a request with these entries, each behind the name of its segment, and with a commit behind them."""
    heads, payloads = [], []
    for segment, entry in entries:
        assert entry.sequence is not None
        heads.append(
            EntryHead.model_construct(
                segment=segment,
                media_type=PAYLOAD_MEDIA_TYPES[entry.kind],
                size=entry.size,
                sequence=entry.sequence,
                writer=entry.writer,
                producer=entry.producer,
                before_commit=entry.before_commit or None,
                count=entry.count,
            )
        )
        payloads.append(entry.payload)
    head = _Head.model_construct(entries=heads, commit=commit).model_dump_json(exclude_none=True).encode()
    return b"".join((_LENGTH.pack(len(head)), head, *payloads))


def unpack_entries(body: bytes) -> EntryGroup:
    """What a request holds. Raises `InvalidArgument` for anything but what `pack_entries` makes."""
    if len(body) < _LENGTH.size:
        raise _refused("it ends within the length of its head")
    (length,) = _LENGTH.unpack_from(body)
    at = _LENGTH.size + length
    if at > len(body):
        raise _refused(f"its head has {length} bytes, but only {len(body) - _LENGTH.size} follow")
    try:
        head = _Head.model_validate_json(body[_LENGTH.size : at])
    except ValidationError as error:
        raise _wrong_head(error) from None
    found = []
    for entry in head.entries:
        found.append((entry, body[at : at + entry.size]))
        at += entry.size
    if at != len(body):
        raise _refused(f"its entries end at byte {at}, but it has {len(body)} bytes")
    return EntryGroup(found, head.commit)


def _wrong_head(error: ValidationError) -> InvalidArgument:
    first = error.errors(include_input=False, include_url=False)[0]
    field = ".".join(map(str, first["loc"])) or "body"
    message = str(first["msg"]).removeprefix("Value error, ")
    return InvalidArgument(f"{field}: {message}", field=field)


def _refused(why: str) -> InvalidArgument:
    return InvalidArgument(f"body: {why}", field="body")
