"""Fetch, versions 4 to 12, cut by hand: the answer consists of views into the pages that were read.

    … · isolation · session · [topic · [partition · offset · …]] · …

What a committed read must not see is left out. If a page ends in such entries, a control batch covers their offsets, so
that the reader moves past them; clients never show any of it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from metatxn.service.security.principal import Principal
from metatxn.wire.broker import Isolation
from metatxn.wire.record_batches import CHECKED_FROM, CONTROL, CRC_OFFSET, HEADER, MAGIC, TRANSACTIONAL
from metatxn_gateways.kafka.codes import REFUSALS, KafkaCode, KafkaError, code_of
from metatxn_gateways.kafka.cutting import Cutter, ReplyWriter
from metatxn_gateways.kafka.partitions import Partitions, require_right
from metatxn_gateways.listener import Reply
from participants.ledger.offsets import offset_after
from participants.segment.segment import Segment

VERSIONS = range(4, 13)
FLEXIBLE = 12
MAX_ANSWER_BYTES = 8 << 20
MAX_WAIT_MS = 60_000
_MOST_COVERED = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class _Wanted:
    topic: str
    partition: int
    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class _Asked:
    wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: Isolation
    session: int
    wanted: list[_Wanted]


@dataclass(slots=True)
class _Found:
    code: KafkaCode = KafkaCode.NONE
    end: int = -1
    stable_end: int = -1
    start: int = -1
    batches: list[bytes | memoryview] = field(default_factory=list)
    size: int = 0


def cover(first: int, end: int) -> bytes:
    """A control batch in the place of the records at `first` to `end` - 1: the end of a transaction that no client has
    heard of."""
    key, value = struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 0)
    body = b"\0\0\0" + bytes([2 * len(key)]) + key + bytes([2 * len(value)]) + value + b"\0"
    record = bytes([2 * len(body)]) + body
    last = min(end - first, _MOST_COVERED) - 1
    size = HEADER.size - 12 + len(record)
    draft = HEADER.pack(first, size, -1, MAGIC, 0, CONTROL | TRANSACTIONAL, last, 0, 0, 0, 0, -1, 1) + record
    return draft[:CRC_OFFSET] + struct.pack(">I", crc32c(draft[CHECKED_FROM:])) + draft[CHECKED_FROM:]


class Fetch:
    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    async def answer(self, version: int, cutter: Cutter, head: bytes, caller: Principal) -> Reply:
        asked = cut_fetch(version, cutter)
        if asked.session:
            return _encoded(version, [], [], head, KafkaCode.FETCH_SESSION_ID_NOT_FOUND)
        max_bytes = min(asked.max_bytes, MAX_ANSWER_BYTES)
        deadline = asyncio.get_running_loop().time() + min(max(asked.wait_ms, 0), MAX_WAIT_MS) / 1000
        while True:
            changes: list[asyncio.Future[None]] = []
            found = await self._read(asked.wanted, caller, max_bytes, asked.isolation, changes)
            left = deadline - asyncio.get_running_loop().time()
            enough = sum(each.size for each in found) >= min(asked.min_bytes, max_bytes)
            if enough or left <= 0 or any(each.code for each in found):
                return _encoded(version, asked.wanted, found, head)
            await asyncio.wait(
                changes or [asyncio.get_running_loop().create_future()],
                timeout=left,
                return_when=asyncio.FIRST_COMPLETED,
            )

    async def _read(
        self,
        wanted: Sequence[_Wanted],
        caller: Principal,
        max_bytes: int,
        isolation: Isolation,
        changes: list[asyncio.Future[None]],
    ) -> list[_Found]:
        """What there is in each partition. `changes` complete when there may be more."""
        found, room = [], max_bytes
        for each in wanted:
            one = _Found()
            try:
                require_right(caller, "consume", each.topic)
                segment = await self._partitions.segment(each.topic, each.partition)
                changes += segment.next_changes(isolation)
                await self._read_one(segment, each, min(room, each.max_bytes), isolation, one)
            except REFUSALS as error:
                one.code = code_of(error)
            room -= one.size
            found.append(one)
        return found

    async def _read_one(
        self, segment: Segment, wanted: _Wanted, max_bytes: int, isolation: Isolation, found: _Found
    ) -> None:
        found.start = await self._partitions.start_of(segment)
        found.stable_end, found.end = await segment.offsets.stable_end(), segment.offsets.end
        if not found.start <= wanted.offset <= found.end:
            await segment.reader.assert_owned()  # clients that are told so begin elsewhere
            raise KafkaError(KafkaCode.OFFSET_OUT_OF_RANGE)
        if max_bytes <= 0 or wanted.offset == found.end:
            return
        at = await self._partitions.place_of(segment, wanted.offset)
        if isolation == "read_committed":
            page = await segment.reader.read_committed(at, max_bytes)
        else:
            page = await segment.reader.read_uncommitted(at, max_bytes)
        reached = wanted.offset
        for frame in page.frames:
            found.batches.append(frame.payload)
            reached = offset_after(frame)
        if not page.frames or page.frames[-1].position < page.next:
            end = await segment.offsets.after(page.next)
            if end > reached:
                found.batches.append(cover(reached, end))
                reached = min(end, reached + _MOST_COVERED)
        if reached > wanted.offset and reached - wanted.offset < _MOST_COVERED:
            self._partitions.reached(segment, reached, page.next)
        found.size = sum(map(len, found.batches))


def cut_fetch(version: int, cutter: Cutter) -> _Asked:
    """Cut a request. Raises `MalformedRequest`."""
    cutter.number(4)
    wait_ms, min_bytes, max_bytes = cutter.number(4), cutter.number(4), cutter.number(4)
    isolation: Isolation = "read_committed" if cutter.number(1) else "read_uncommitted"
    session = cutter.number(4) if version >= 7 else 0
    if version >= 7:
        cutter.number(4)
    return _Asked(wait_ms, min_bytes, max_bytes, isolation, session, _cut_partitions(version, cutter))


def _cut_partitions(version: int, cutter: Cutter) -> list[_Wanted]:
    wanted = []
    for _ in cutter.items():
        topic = cutter.name()
        for _ in cutter.items():
            partition = cutter.number(4)
            if version >= 9:
                cutter.number(4)  # the leader's epoch
            offset = cutter.number(8)
            if version >= 12:
                cutter.number(4)  # the epoch of the last batch
            if version >= 5:
                cutter.number(8)
            wanted.append(_Wanted(topic, partition, offset, cutter.number(4)))
            cutter.tags()
        cutter.tags()
    if version >= 7:
        for _ in cutter.items():  # forgotten ones, of a session
            cutter.name()
            for _ in cutter.items():
                cutter.number(4)
            cutter.tags()
    if version >= 11:
        cutter.text()
    cutter.tags()
    return wanted


def _encoded(
    version: int, wanted: Sequence[_Wanted], found: Sequence[_Found], head: bytes, code: KafkaCode = KafkaCode.NONE
) -> Reply:
    out = ReplyWriter(flexible=version >= FLEXIBLE)
    out.number(4, 0)
    if version >= 7:
        out.number(2, code)
        out.number(4, 0)  # no session
    by_topic: dict[str, list[tuple[_Wanted, _Found]]] = {}
    for each, one in zip(wanted, found, strict=True):
        by_topic.setdefault(each.topic, []).append((each, one))
    out.length(len(by_topic))
    for topic, partitions in by_topic.items():
        out.text(topic)
        out.length(len(partitions))
        for each, one in partitions:
            out.number(4, each.partition)
            out.number(2, one.code)
            out.number(8, one.end)
            out.number(8, one.stable_end)
            if version >= 5:
                out.number(8, one.start)
            out.length(0)  # aborted transactions: there is nothing of them in the answer
            if version >= 11:
                out.number(4, -1)
            out.blobs(one.batches)
            out.tags()
        out.tags()
    out.tags()
    return [head, *out.finished()]
