"""Looking through what is stored in a segment, as much as one page may: those messages are found that match, and the
place where the next page goes on is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from metatxn.frames import FramesPage
from metatxn.stored.contents import Content, contents_of
from metatxn.stored.entries import SeenEntry, seen_entries
from metatxn.stored.where import Where
from metatxn.transaction import AsyncTransaction
from metatxn.wire.broker import Isolation
from metatxn.wire.coordinator import TransactionHeader
from metatxn.wire.frames import Frame
from metatxn.wire.position import Position

MOST_ENTRIES = 50
MOST_MESSAGES = 100
PAGE_BYTES = 256 << 10
MOST_ENTRIES_LOOKED_AT = 1_000
MOST_LOOKED_AT = 5_000
LOOKED_BYTES = 1 << 20
"""The most bytes that are looked through for a page that shows only what matches."""
MOST_READS = 20
MOST_TRANSACTIONS = 200
"""The most transactions whose headers are read for one page."""
STATES = {"OPEN": "undecided", "ABORTED": "aborted", "COMMITTED": "void"}


class StoredFrames(Protocol):
    """What is asked: the part of `AsyncClient` that it needs."""

    async def read_frames(
        self, segment_id: str, *, after: str, isolation: Isolation = ..., max_bytes: int
    ) -> FramesPage: ...

    def attach(self, txn_id: str) -> AsyncTransaction: ...


@dataclass(frozen=True, slots=True)
class WantedMessages:
    """What is to be looked at: everything that is stored, or what readers see; with a key, and where an expression
    holds. `schema` has the columns of the topic."""

    everything: bool = False
    key: str | None = None
    where: Where | None = None
    schema: pa.Schema | None = None

    @property
    def filtered(self) -> bool:
        return self.key is not None or self.where is not None

    def matches(self, content: Content) -> bool:
        if self.key is not None and content.key != self.key:
            return False
        return self.where is None or self.where.matches(content.value)


@dataclass(frozen=True, slots=True)
class PageStart:
    """The start of a page: after the entry at `after`, and after the first `skip` messages of the next one."""

    after: Position
    skip: int = 0


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as it is stored in a segment: the one with the number `index` in its entry. `state` says what readers
    see of it:

    - `readable`: they get it;
    - `undecided`: its transaction is open;
    - `waits`: it is behind an undecided transaction;
    - `aborted`, `void` (the transaction was committed without its writer) or `skipped` (one of both; the header of the
      transaction is gone, or is not for this caller): they never get it.
    """

    frame: Frame
    index: int
    content: Content
    state: str

    @property
    def position(self) -> str:
        return str(self.frame.position)

    @property
    def txn_id(self) -> str | None:
        return str(self.frame.txn_id) if self.frame.txn_id is not None else None


Fits = Callable[[StoredMessage], bool]
"""Whether a page has room for one more message. It is asked once for each, in their order."""


@dataclass(frozen=True, slots=True)
class LookedThrough:
    """What a page shows, after how many messages of how many entries, and where the next one goes on; None at the end
    of what is there."""

    messages: Sequence[StoredMessage]
    looked_at: int
    entries: int
    next: PageStart | None


async def look_through(
    client: StoredFrames,
    segment: str,
    place: PageStart,
    horizon: Position,
    wanted: WantedMessages,
    until: Position | None = None,
    fits: Fits = lambda message: True,
) -> LookedThrough:
    """Look through a segment. `horizon` was read before. What is after `until` is left out. The first message that is
    found does not have to fit."""
    entries, following = await _entries(client, segment, place.after, horizon, wanted)
    if until is not None:
        entries, following = [each for each in entries if each.frame.position <= until], None
    headers = await _headers(client, entries)
    return _Looking(wanted, headers, fits).through(entries, place, following)


class _Looking:
    def __init__(self, wanted: WantedMessages, headers: Mapping[str, TransactionHeader], fits: Fits) -> None:
        self._wanted = wanted
        self._headers = headers
        self._fits = fits
        self._found: list[StoredMessage] = []
        self._looked_at = 0

    def through(self, entries: Sequence[SeenEntry], place: PageStart, following: Position | None) -> LookedThrough:
        for number, entry in enumerate(entries):
            position = entry.frame.position
            skip = place.skip if number == 0 and position == place.after.next else 0
            stopped = self._in_entry(entry, skip)
            if stopped is not None:
                return self._ended(number + 1, PageStart(position.before, stopped))
        return self._ended(len(entries), PageStart(following) if following is not None else None)

    def _in_entry(self, entry: SeenEntry, skip: int) -> int | None:
        """The index of the message with which the next page begins, if it is in this entry."""
        contents = contents_of(entry.frame, self._wanted.schema)
        for index in range(skip, len(contents)):
            if self._looked_at >= MOST_LOOKED_AT:
                return index
            if self._wanted.matches(contents[index]):
                found = self._message(entry, index, contents[index])
                if len(self._found) == MOST_MESSAGES or (not self._fits(found) and self._found):
                    return index
                self._found.append(found)
            self._looked_at += 1
        return None

    def _message(self, entry: SeenEntry, index: int, content: Content) -> StoredMessage:
        txn_id = entry.frame.txn_id
        state = _state(entry, self._headers.get(str(txn_id)) if txn_id is not None else None)
        return StoredMessage(entry.frame, index, content, state)

    def _ended(self, entries: int, place: PageStart | None) -> LookedThrough:
        return LookedThrough(self._found, self._looked_at, entries, place)


def _state(entry: SeenEntry, header: TransactionHeader | None) -> str:
    if entry.sight == "readable":
        return "readable"
    if entry.sight == "skipped":
        return STATES[header.state] if header is not None and header.state != "OPEN" else "skipped"
    return "undecided" if header is not None and header.state == "OPEN" else "waits"


async def _entries(
    client: StoredFrames, segment: str, after: Position, horizon: Position, wanted: WantedMessages
) -> tuple[list[SeenEntry], Position | None]:
    """Some entries after a position, and the position after which there are more."""
    most = MOST_ENTRIES_LOOKED_AT if wanted.filtered else MOST_ENTRIES
    max_bytes = LOOKED_BYTES if wanted.filtered else PAGE_BYTES
    isolation: Isolation = "read_uncommitted" if wanted.everything else "read_committed"
    page = await client.read_frames(segment, after=str(after), isolation=isolation, max_bytes=max_bytes)
    frames = page.frames[:most]
    following = None if page.end else Position.parse(page.next)
    if len(frames) < len(page.frames):
        following = frames[-1].position
    if not wanted.everything:
        return [SeenEntry(each, "readable") for each in frames], following
    readable = await _readable(client, segment, str(after), frames, max_bytes)
    return list(seen_entries(frames, readable, horizon)), following


async def _readable(
    client: StoredFrames, segment: str, after: str, frames: Sequence[Frame], max_bytes: int
) -> set[Position]:
    """The positions of the entries that readers get."""
    found: set[Position] = set()
    for _ in range(MOST_READS):
        if not frames or Position.parse(after) >= frames[-1].position:
            break
        page = await client.read_frames(segment, after=after, max_bytes=max_bytes)
        found |= {each.position for each in page.frames}
        if page.end:
            break
        after = page.next
    return found


async def _headers(client: StoredFrames, entries: Sequence[SeenEntry]) -> dict[str, TransactionHeader]:
    """The headers of transactions whose entries readers do not see, as far as the caller may see them."""
    wanted = [*dict.fromkeys(_undecided(entries))][:MOST_TRANSACTIONS]
    found = await asyncio.gather(*(client.attach(txn_id).refresh() for txn_id in wanted), return_exceptions=True)
    headers = zip(wanted, found, strict=True)
    return {txn_id: header for txn_id, header in headers if isinstance(header, TransactionHeader)}


def _undecided(entries: Sequence[SeenEntry]) -> Iterator[str]:
    return (str(each.frame.txn_id) for each in entries if each.frame.txn_id and each.sight != "readable")
