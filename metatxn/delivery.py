"""Ordered, exactly-once delivery to the segments of one topic.

    put ──▶ lane (segment, transaction) ──▶ entries in flight that share no key ──▶ broker

Items of one key arrive in the order of `put`. So items that are put while an entry is in flight wait and are sent in
the next one. Only a full entry is sent while others are in flight, and only if it shares no key with any of them:
whichever arrives first, the order of no key changes. (All items without a key count as items of one key, and so do all
rows of tables.) Lanes are independent of each other.

Every entry carries (producer, sequence) and keeps both through all of its retries. The order in which sequences arrive
means nothing to a broker: it remembers each of them separately, all of them inside a transaction, and the last 1,000 of
a producer outside (`participants/segment/dedup.py`). Therefore nothing is sent that is `MAX_AHEAD` sequences or more
ahead of an entry of its lane that has no answer yet: a retry of that entry is still recognized. A sequence is never
used twice by one `OrderedDelivery`, not even in another segment: the child of a merge inherits the sequences that both
of its parents have seen.

When a segment turns out to be sealed, the entry that it refused stays at the head of its lane, and the lane is
stranded. What a layout says about the segment is not trusted before its owner was asked, and nothing is trusted forever
(see `Layout`). All routes change at once, and only when nothing is in flight to any segment that is gone: then all
stranded items move, in order, to the lanes of the segments that took over. If the routes of one lane changed earlier, a
newer message could reach the child before an older one of the same key whose request has yet to learn that the parent
is gone.

Everything here runs on one event loop, so code without an `await` cannot be interrupted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from metatxn.carried import EntryName
from metatxn.topics import Layout
from metatxn.wire.errors import InvalidArgument, MetatxnError, NotFound, SegmentSealed, TransactionConflict
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.ids import TxnId

MAX_PENDING_BYTES = 32 * 1024 * 1024
"""Above this, `put` waits."""
MAX_IN_FLIGHT = 16
"""The most entries of one lane in flight. More make no client faster, and would delay the calls of others."""
PUTS_IN_A_ROW = 500
"""After this many items `put` lets the event loop send what is due, even if its caller never waits for anything."""
MAX_AHEAD = 500
"""Half of the number that brokers remember, because as many entries that were sent before an entry may arrive after
it."""


class Link(Protocol):
    """The connection to the brokers."""

    sending: dict[OrderedDelivery[Any], None]
    """Deliveries that have something to send, whether or not they are still referenced elsewhere."""

    def new_name(self) -> str: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...

    async def layout(self, topic: str) -> Layout: ...

    async def layout_behind(self, topic: str, segment: str, *, patient: bool) -> Layout:
        """The newest layout, as soon as others have taken over from `segment` in it, or after some time; with
        `patient=False` the layout as it is now."""

    async def publish(self, segment: str, entry: Entry) -> str:
        """Append `entry` to `segment` exactly once, and return its position. Raises `MetatxnError`."""


class Held(Protocol):
    """A topic that a producer has to itself."""

    epoch: int
    lost: MetatxnError | None
    """Why the producer has lost the topic: nothing more is sent."""


class Item(Protocol):
    number: int
    """The place in its lane, in the order in which the items were put into it. The lane sets it."""
    whole: ClassVar[bool]
    """Whether it is an entry by itself: nothing else goes into that."""


T = TypeVar("T", bound=Item)


class Format(Protocol[T]):
    """How a kind of item is delivered."""

    kind: PayloadKind

    def size(self, item: T) -> int: ...

    def keys(self, items: Iterable[T]) -> set[Hashable]:
        """The keys of the items. Items of one key arrive in the order of `put`."""

    def split(self, item: T, layout: Layout) -> Iterable[tuple[str, T]]:
        """The item or its pieces, each with the segment it goes to. Called once for each item, and again for those that
        move when the layout changes."""

    def encode(self, items: Sequence[T]) -> tuple[bytes, int]:
        """The payload of one entry, and its count of messages or rows."""

    def done(self, items: Sequence[T], outcome: str | MetatxnError) -> None:
        """The items are durable at this position, or they failed."""


@dataclass(frozen=True, slots=True)
class Batching:
    """When an entry is full, and how long one that is not full waits for more: `linger_s` after its first item. With 0
    an idle lane sends at once, and what is put while an entry is in flight shares the next one. `due_bytes`: an idle
    lane sends as soon as it has this many bytes; None means `max_bytes`. `max_together` is the most messages of an
    entry that is made at once."""

    max_bytes: int
    max_items: int
    linger_s: float = 0
    max_pending_bytes: int = MAX_PENDING_BYTES
    due_bytes: int | None = None
    max_together: int = 0


@dataclass(slots=True, eq=False)
class Flight(Generic[T]):
    """An entry that has no answer yet. `keys` are the keys of its items."""

    items: list[T]
    size: int
    sequence: int
    keys: set[Hashable]


@dataclass(slots=True, eq=False)
class Lane(Generic[T]):
    segment: str
    txn_id: str | None
    items: deque[T] = field(default_factory=deque)
    size: int = 0
    whole: int = 0
    """The number of items that are entries by themselves."""
    flights: list[Flight[T]] = field(default_factory=list)
    """The entry that was sent first is at the front."""
    accepted: int = 0
    starting: bool = False
    """A task is about to take the next entry."""
    in_the_way: bool = False
    """The next entry shares a key with one in flight. This remains so until one of these has its answer."""
    discarded: bool = False
    moved: bool = False
    since: float = 0
    """The time at which the lane stopped being empty."""
    timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        return self.starting or bool(self.flights)

    def settled(self, mark: int) -> bool:
        """Whether everything accepted before `accepted` was `mark` is durable, has failed, or has gone elsewhere."""
        waiting = [flight.items[0].number for flight in self.flights]
        if self.items:
            waiting.append(self.items[0].number)
        return min(waiting, default=self.accepted) >= mark

    def take_back(self, flight: Flight[T]) -> None:
        self.items = deque(sorted([*flight.items, *self.items], key=attrgetter("number")))
        self.size += flight.size
        self.whole += flight.items[0].whole


class OrderedDelivery(Generic[T]):
    def __init__(
        self,
        link: Link,
        topic: str,
        form: Format[T],
        batching: Batching,
        *,
        name: str | None = None,
        writer: str | None = None,
        failure_is_final: bool = False,
        hold: Held | None = None,
    ) -> None:
        """With `failure_is_final` nothing is sent after a failure outside transactions either, as is always so inside
        one. What is in flight to other segments may still arrive."""
        assert batching.max_bytes > 0 and batching.max_items > 0 and batching.linger_s >= 0
        self.topic = topic
        self.pending_bytes = 0
        self.max_pending_bytes = batching.max_pending_bytes
        self._link = link
        self._format = form
        self._batching = batching
        # The name is for people. Sequences of two producers of one name must not be taken for retries of each other.
        self._producer = f"{name}/{link.new_name()}" if name else link.new_name()
        self._writer = writer
        self._failure_is_final = failure_is_final
        self._hold = hold
        self._puts_left = PUTS_IN_A_ROW
        """The number of items until the event loop has its turn."""
        self._sequence = 0
        """The sequence of the next entry."""
        self._layout: Layout | None = None
        self._next_layout: Layout | None = None
        self._ended: set[str] = set()
        """Segments that are sealed without a successor, according to their owners; collected since nothing was last
        pending."""
        self._lanes: dict[tuple[str, str | None], Lane[T]] = {}
        self._failures: dict[str | None, MetatxnError] = {}
        self._changed = asyncio.Event()
        self._hurried = 0
        """The number of waiters for lingering items: they flush them, or need the space."""
        self._closed = False

    def put_at_once(self, item: T, txn_id: str | None) -> bool:
        """Queue `item` as `put` does, if that does not have to wait. Otherwise return False."""
        if self._layout is None or self.pending_bytes >= self.max_pending_bytes or self._puts_left == 0:
            return False
        self._puts_left -= 1
        if self._closed or self._failures or self._hold is not None:
            self.check(txn_id)
        self._add(item, txn_id)
        return True

    async def put(self, item: T, txn_id: str | None) -> None:
        """Queue `item`, waiting while too much is pending. Raises the errors of `open` and `check`."""
        if self._layout is None or self.pending_bytes >= self.max_pending_bytes:
            await self.open()
            await self.space()
        self.check(txn_id)
        self._add(item, txn_id)
        self._puts_left -= 1
        if self._puts_left <= 0:
            self._puts_left = PUTS_IN_A_ROW
            await asyncio.sleep(0)

    @property
    def layout(self) -> Layout | None:
        """The topic's layout, or None if this is not open."""
        return self._layout

    async def open(self) -> None:
        """Read the topic's layout. Raises `NotFound`."""
        if self._layout is None:
            layout = await self._link.layout(self.topic)
            self._layout = self._layout or layout

    async def space(self) -> None:
        """Wait while too much is pending. Lingering items are sent meanwhile, because they may be all that is
        pending."""
        if self.pending_bytes >= self.max_pending_bytes:
            await self._hurry(lambda: self.pending_bytes < self.max_pending_bytes)

    def check(self, txn_id: str | None) -> None:
        """Raises `InvalidArgument` if this is closed, and the first failure after which nothing more can be sent."""
        if self._closed or self._failures or self._hold is not None:
            failure = self._refusal(txn_id)
            if failure is not None:
                raise failure

    def add(self, items: Iterable[T], txn_id: str | None) -> None:
        """Queue `items`, however much is pending; those that can no longer be sent fail."""
        for item in items:
            try:
                self.check(txn_id)
            except MetatxnError as failure:
                self._format.done([item], failure)
            else:
                self._add(item, txn_id)

    def _add(self, item: T, txn_id: str | None) -> None:
        if self._ended and not self._lanes and self._layout is not None:
            self._ended.clear()
            self._layout = self._layout.without(())
        self._route(item, txn_id)

    def is_settled(self, txn_id: str) -> bool:
        """Whether a flush would return at once: nothing of `txn_id` is waiting or under way, and nothing has
        failed."""
        return txn_id not in self._failures and all(lane.txn_id != txn_id for lane in self._lanes.values())

    def under_way(self, txn_id: str) -> Set[EntryName] | None:
        """The entries of `txn_id` in flight; None if something else of it waits to be sent, or has failed."""
        if self._final_failure(txn_id) is not None:
            return None
        lanes = [lane for lane in self._lanes.values() if lane.txn_id == txn_id]
        if any(lane.items or lane.starting for lane in lanes):
            return None
        return {(self._producer, flight.sequence) for lane in lanes for flight in lane.flights}

    async def flush(self, txn_id: str | None = None, *, everything: bool = False) -> None:
        """Wait until everything that was put inside `txn_id` (None: outside transactions) is durable. Raises the first
        failure among it. A failure after which nothing more is sent is raised every time (for a transaction until
        `discard`), any other once."""
        wanted = {key[1] for key in self._lanes} | set(self._failures) if everything else {txn_id}
        while not await self._settled(wanted):
            pass
        failures = [failure for txn, failure in self._failures.items() if txn in wanted]
        if None in wanted and not self._failure_is_final:
            self._failures.pop(None, None)
        if failures:
            raise failures[0]

    async def _settled(self, wanted: set[str | None]) -> bool:
        """Wait for what is in these transactions' lanes now. Returns False if some of it moved to other lanes."""
        marks = [(lane, lane.accepted) for lane in self._lanes.values() if lane.txn_id in wanted]
        await self._hurry(lambda: all(lane.settled(mark) for lane, mark in marks))
        return not any(lane.moved for lane, _ in marks)

    async def close(self) -> None:
        """Flush everything, and accept no more items. Raises the first failure."""
        self._closed = True
        await self.flush(everything=True)

    def drop(self) -> None:
        """Accept no more items, and forget those not sent yet."""
        self._closed = True
        for lane in list(self._lanes.values()):
            self._take_all(lane)
            self._kick(lane)

    def discard(self, txn_id: str) -> None:
        """The transaction ended without its remaining items: forget those not sent yet, and its failure."""
        dropped: list[T] = []
        for lane in [lane for lane in self._lanes.values() if lane.txn_id == txn_id]:
            lane.discarded = True
            dropped += self._take_all(lane)
            self._kick(lane)
        failure = self._failures.pop(txn_id, None)
        self._format.done(dropped, failure or _ended(txn_id))

    # -- queueing ----------------------------------------------------------------------------------------------

    def _refusal(self, txn_id: str | None) -> MetatxnError | None:
        if self._closed:
            return InvalidArgument("the producer or table writer is closed", action="Open another one.")
        return self._final_failure(txn_id)

    def _final_failure(self, txn_id: str | None) -> MetatxnError | None:
        if self._hold is not None and self._hold.lost is not None:
            return self._hold.lost
        return self._failures.get(txn_id) if txn_id is not None or self._failure_is_final else None

    def _route(self, item: T, txn_id: str | None) -> None:
        assert self._layout is not None
        try:
            pieces = tuple(self._format.split(item, self._layout))
        except MetatxnError as failure:
            self._failures.setdefault(txn_id, failure)
            self._format.done([item], failure)
            return
        for segment, piece in pieces:
            lane = self._lanes.get((segment, txn_id))
            if lane is None:
                lane = self._lanes[segment, txn_id] = Lane(segment, txn_id)
                self._link.sending[self] = None
            size = self._format.size(piece)
            if not lane.items:
                lane.since = asyncio.get_running_loop().time()
            piece.number = lane.accepted
            lane.items.append(piece)
            lane.accepted += 1
            lane.size += size
            if piece.whole:
                lane.whole += 1
            self.pending_bytes += size
            if not (lane.starting or lane.in_the_way) and (not lane.flights or self._is_full(lane)):
                self._kick(lane)

    def _take_all(self, lane: Lane[T]) -> list[T]:
        """Empty the lane. Its items no longer count as pending."""
        taken = list(lane.items)
        lane.items.clear()
        self._release(lane.size)
        lane.size = lane.whole = 0
        return taken

    def _release(self, size: int) -> None:
        self.pending_bytes -= size
        self._notify()

    async def _hurry(self, done: Callable[[], bool]) -> None:
        """Send what lingers, until `done`."""
        self._hurried += 1
        try:
            self._kick_all()
            while not done():
                await self._changed.wait()
        finally:
            self._hurried -= 1

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -- sending -----------------------------------------------------------------------------------------------

    def _kick_all(self) -> None:
        for lane in list(self._lanes.values()):
            self._kick(lane)

    def _kick(self, lane: Lane[T]) -> None:
        """Send the next entry of `lane` if it is due; forget the lane if it is empty."""
        if lane.starting:
            return
        if not lane.items:
            if not lane.flights:
                self._forget(lane)
        elif not self._stranded(lane) and (self._fits_beside(lane) if lane.flights else self._due(lane)):
            _stop_timer(lane)
            lane.starting = True
            self._link.spawn(self._post_next(lane))

    def _fits_beside(self, lane: Lane[T]) -> bool:
        """Whether the next entry may be sent while others are in flight; see the module's docstring."""
        if lane.in_the_way or not self._is_full(lane) or len(lane.flights) >= MAX_IN_FLIGHT:
            return False
        if self._sequence - lane.flights[0].sequence >= MAX_AHEAD:
            return False
        keys = self._format.keys(islice(lane.items, self._reach(lane)[0]))
        lane.in_the_way = not all(keys.isdisjoint(flight.keys) for flight in lane.flights)
        return not lane.in_the_way

    def _is_full(self, lane: Lane[T]) -> bool:
        batching = self._batching
        return len(lane.items) >= batching.max_items or lane.size >= batching.max_bytes or lane.whole > 0

    def _due(self, lane: Lane[T]) -> bool:
        batching = self._batching
        due_bytes = batching.max_bytes if batching.due_bytes is None else batching.due_bytes
        if self._hurried or lane.whole or lane.size >= due_bytes or len(lane.items) >= batching.max_items:
            return True
        loop, end = asyncio.get_running_loop(), lane.since + batching.linger_s
        if loop.time() >= end:
            return True
        if lane.timer is None and end < float("inf"):
            lane.timer = loop.call_at(end, self._linger_ended, lane)
        return False

    def _linger_ended(self, lane: Lane[T]) -> None:
        lane.timer = None
        self._kick(lane)

    def _forget(self, lane: Lane[T]) -> None:
        _stop_timer(lane)
        if self._lanes.get((lane.segment, lane.txn_id)) is lane:
            del self._lanes[lane.segment, lane.txn_id]
        if not self._lanes:
            self._link.sending.pop(self, None)
        self._notify()

    def _reach(self, lane: Lane[T]) -> tuple[int, int]:
        """The number of items in the next entry, and their size."""
        if not lane.whole and len(lane.items) <= self._batching.max_items and lane.size <= self._batching.max_bytes:
            return len(lane.items), lane.size
        size, ends = 0, False
        for count, item in enumerate(islice(lane.items, self._batching.max_items)):
            larger = size + self._format.size(item)
            if count and (ends or item.whole or larger > self._batching.max_bytes):
                return count, size
            size, ends = larger, item.whole
        return min(len(lane.items), self._batching.max_items), size

    def _take(self, lane: Lane[T]) -> Flight[T]:
        """Take the next entry."""
        count, size = self._reach(lane)
        taken = [lane.items.popleft() for _ in range(count)]
        flight = Flight(taken, size, self._sequence, self._format.keys(taken))
        self._sequence += 1
        lane.size -= size
        lane.whole -= taken[0].whole
        lane.flights.append(flight)
        return flight

    async def _post_next(self, lane: Lane[T]) -> None:
        """Post the next entry of a lane. Runs as a task of its own."""
        lane.starting = False
        if lane.items and not self._stranded(lane):
            flight = self._take(lane)
            self._kick(lane)
            outcome = self._final_failure(lane.txn_id) or await self._post(lane, flight)
            self._landed(lane, flight, outcome)
        self._change_routes()
        self._kick(lane)

    def _landed(self, lane: Lane[T], flight: Flight[T], outcome: str | MetatxnError | None) -> None:
        lane.flights.remove(flight)
        lane.in_the_way = False
        if outcome is None and not lane.discarded:
            lane.take_back(flight)
            return
        self._release(flight.size)
        if isinstance(outcome, MetatxnError) and not lane.discarded:
            self._failures.setdefault(lane.txn_id, outcome)
        self._format.done(flight.items, _ended(lane.txn_id) if outcome is None else outcome)

    async def _post(self, lane: Lane[T], flight: Flight[T]) -> str | MetatxnError | None:
        """The position, the failure, or None if the segment accepted nothing and is gone."""
        try:
            return await self._link.publish(lane.segment, self._entry(lane, flight))
        except (SegmentSealed, NotFound) as error:
            return await self._strand(lane, error)
        except MetatxnError as error:
            return error
        except asyncio.CancelledError:
            return MetatxnError("the client was closed while this was being sent", definite=False)
        except Exception as error:  # noqa: BLE001  a bug must reach the caller, not die with its task
            failure = MetatxnError(f"{type(error).__name__}: {error}", definite=False)
            failure.__cause__ = error
            return failure

    def _entry(self, lane: Lane[T], flight: Flight[T]) -> Entry:
        payload, count = self._format.encode(flight.items)
        txn_id = _parsed(lane.txn_id) if lane.txn_id is not None else None
        epoch = self._hold.epoch if self._hold is not None else None
        kind, sequence = self._format.kind, flight.sequence
        return Entry(payload, kind, count, txn_id, self._writer, self._producer, sequence, epoch=epoch)

    # -- segments that are gone --------------------------------------------------------------------------------

    async def _strand(self, lane: Lane[T], reason: MetatxnError) -> MetatxnError | None:
        """`reason` is definite: nothing of what was sent is in the log, so it gets a new sequence elsewhere."""
        if self._stranded(lane):
            return None  # another entry in flight at the same time has already found out
        ended = isinstance(reason, SegmentSealed) and not reason.children
        try:
            layout = await self._link.layout_behind(self.topic, lane.segment, patient=not ended)
        except MetatxnError as error:
            return error
        if lane.segment in layout.names and not ended:
            return reason
        if ended:
            self._ended.add(lane.segment)
        self._next_layout = layout.without(self._ended)
        return None

    def _stranded(self, lane: Lane[T]) -> bool:
        return self._next_layout is not None and lane.segment not in self._next_layout.names

    def _change_routes(self) -> None:
        """Change the routes if nothing is in flight to a segment that is gone; see the module's docstring."""
        if self._next_layout is None:
            return
        stranded = [lane for lane in self._lanes.values() if self._stranded(lane)]
        if any(lane.busy for lane in stranded):
            return
        self._layout, self._next_layout = self._next_layout, None
        moving: list[tuple[T, str | None]] = []
        for lane in stranded:
            lane.moved = True
            moving += [(item, lane.txn_id) for item in self._take_all(lane)]
            self._forget(lane)
        for item, txn_id in self._in_order(moving):
            self._route(item, txn_id)
        self._kick_all()

    def _in_order(self, moving: list[tuple[T, str | None]]) -> list[tuple[T, str | None]]:
        """The items of several lanes, in the order in which they move to others."""
        return moving


def _ended(txn_id: str | None) -> MetatxnError:
    return TransactionConflict(f"transaction {txn_id} ended before this was sent", txn_id=txn_id)


def _parsed(txn_id: str) -> TxnId:
    try:
        return TxnId.parse(txn_id)
    except ValueError as error:
        raise InvalidArgument(f"txn_id: {error}", field="txn_id") from None


def _stop_timer(lane: Lane[Any]) -> None:
    if lane.timer is not None:
        lane.timer.cancel()
        lane.timer = None
