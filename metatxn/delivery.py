"""Ordered, exactly-once delivery to the segments of one topic, from any thread.

    put ──▶ lane (segment, transaction) ──▶ one entry in flight per lane ──▶ broker

A lane posts one entry at a time, so its items arrive in the order of `put`; what is put meanwhile waits and travels
as the next entry. Lanes are independent of each other. Every entry carries (producer, sequence) and keeps both
through all of its retries. A sequence is never used twice by one `Delivery`, not even in another segment: the child
of a merge inherits what both of its parents have seen.

When a segment turns out to be sealed, the entry in flight and everything behind it move, in order, to the lanes of
the segments that took over, before anything newer can get there: routes change only under the lock.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from metatxn.errors import InvalidArgument, MetatxnError, NotFound, SegmentSealed, TransactionConflict
from metatxn.topics import Layout

MAX_PENDING_BYTES = 32 * 1024 * 1024
"""Above it `put` waits."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one POST carries, its name and number included."""

    segment: str
    txn_id: str | None
    writer: str | None
    producer: str
    sequence: int
    payload: bytes
    count: int
    content_type: str


class Link(Protocol):
    """The way to the brokers."""

    @property
    def executor(self) -> Executor: ...

    def layout(self, topic: str) -> Layout: ...

    def layout_without(self, topic: str, segment: str) -> Layout | None:
        """The newest layout once `segment` takes no more writes in it; None if it still does after some time."""

    def publish(self, entry: Entry) -> str:
        """Append `entry`, exactly once, and answer its position. Raises `MetatxnError`."""


T = TypeVar("T")


class Format(Protocol[T]):
    """What a kind of item needs to be delivered."""

    content_type: str

    def size(self, item: T) -> int: ...

    def split(self, item: T, layout: Layout) -> Iterable[tuple[str, T]]:
        """The item, or its pieces, each with the segment it goes to."""

    def encode(self, items: list[T]) -> tuple[bytes, int]:
        """The payload of one entry and its count of messages or rows."""

    def done(self, items: list[T], outcome: str | MetatxnError) -> None:
        """They are durable at this position, or they failed."""


@dataclass(slots=True)
class Lane(Generic[T]):
    segment: str
    txn_id: str | None
    items: deque[T] = field(default_factory=deque)
    size: int = 0
    busy: bool = False
    discarded: bool = False


class Delivery(Generic[T]):
    def __init__(
        self,
        link: Link,
        topic: str,
        form: Format[T],
        *,
        name: str | None,
        writer: str | None = None,
        max_entry_bytes: int,
        max_entry_items: int,
        fill: bool = False,
    ) -> None:
        """With `fill`, entries wait until they are full or flushed; without, an idle lane sends at once."""
        assert max_entry_bytes > 0 and max_entry_items > 0
        self.topic = topic
        self._link = link
        self._format = form
        # The name is for people. Two producers of one name must not take each other's sequences for retries.
        self._producer = f"{name}/{uuid.uuid4().hex}" if name else uuid.uuid4().hex
        self._writer = writer
        self._max_bytes = max_entry_bytes
        self._max_items = max_entry_items
        self._fill = fill
        self._sequences = itertools.count()
        self._changed = threading.Condition()
        self._layout: Layout | None = None
        self._lanes: dict[tuple[str, str | None], Lane[T]] = {}
        self._pending_bytes = 0
        self._flushing = 0
        self._failures: dict[str | None, MetatxnError] = {}
        self._closed = False

    def put(self, item: T, txn_id: str | None) -> None:
        """Queue `item`; waits while too much is pending. Raises the transaction's first failure, if it has one."""
        layout = self._layout or self._link.layout(self.topic)
        with self._changed:
            self._layout = self._layout or layout
            self._changed.wait_for(lambda: self._pending_bytes < MAX_PENDING_BYTES)
            if self._closed:
                raise InvalidArgument("it is closed", action="Open another one.")
            if txn_id is not None and txn_id in self._failures:
                raise self._failures[txn_id]
            self._enqueue(item, txn_id)

    def flush(self, txn_id: str | None = None, *, everything: bool = False) -> None:
        """Wait until all that was put inside `txn_id` (None: outside transactions) is durable. Raises the first
        failure among it: of a transaction until `discard`, otherwise once."""
        with self._changed:
            wanted = list(self._lanes) if everything else [key for key in self._lanes if key[1] == txn_id]
            transactions = {key[1] for key in wanted} | (set(self._failures) if everything else {txn_id})
            self._flushing += 1
            try:
                self._kick_all()
                self._changed.wait_for(lambda: not any(lane.txn_id in transactions for lane in self._lanes.values()))
            finally:
                self._flushing -= 1
            failures = [self._failures[txn] for txn in transactions if txn in self._failures]
            if None in transactions:
                self._failures.pop(None, None)
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Flush everything and take no more. Raises the first failure."""
        with self._changed:
            self._closed = True
        self.flush(everything=True)

    def drop(self) -> None:
        """Take no more, and forget what was not sent yet."""
        with self._changed:
            self._closed = True
            for lane in list(self._lanes.values()):
                self._forget_items(lane)

    def discard(self, txn_id: str) -> None:
        """The transaction ended without its items: forget those not sent yet, and its failure."""
        with self._changed:
            dropped: list[T] = []
            for lane in [lane for lane in self._lanes.values() if lane.txn_id == txn_id]:
                lane.discarded = True
                dropped += self._forget_items(lane)
            failure = self._failures.pop(txn_id, None)
        if dropped:
            reason = failure or TransactionConflict(f"transaction {txn_id} ended before this was sent", txn_id=txn_id)
            self._format.done(dropped, reason)

    # -- under the lock ----------------------------------------------------------------------------------------

    def _enqueue(self, item: T, txn_id: str | None) -> None:
        """Raises `NotFound` when no segment takes it; nothing is queued then."""
        assert self._layout is not None
        pieces = list(self._format.split(item, self._layout))
        for segment, piece in pieces:
            lane = self._lanes.setdefault((segment, txn_id), Lane(segment, txn_id))
            size = self._format.size(piece)
            lane.items.append(piece)
            lane.size += size
            self._pending_bytes += size
        for segment in {segment for segment, _ in pieces}:
            self._kick(self._lanes[segment, txn_id])

    def _forget_items(self, lane: Lane[T]) -> list[T]:
        forgotten = self._take_all(lane)
        self._kick(lane)
        self._changed.notify_all()
        return forgotten

    def _take_all(self, lane: Lane[T]) -> list[T]:
        """Empties the lane; its items no longer count as pending."""
        taken = list(lane.items)
        self._release(taken)
        lane.items.clear()
        lane.size = 0
        return taken

    def _kick_all(self) -> None:
        for lane in list(self._lanes.values()):
            self._kick(lane)

    def _kick(self, lane: Lane[T]) -> None:
        """Post the next entry of `lane` if it is due; forget the lane when it is empty."""
        if lane.busy:
            return
        if not lane.items:
            self._lanes.pop((lane.segment, lane.txn_id), None)
            self._changed.notify_all()
            return
        if self._fill and not self._flushing and lane.size < self._max_bytes and len(lane.items) < self._max_items:
            return
        lane.busy = True
        self._link.executor.submit(self._post_next, lane)

    def _take(self, lane: Lane[T]) -> list[T]:
        taken: list[T] = []
        size = 0
        while lane.items and len(taken) < self._max_items:
            size += self._format.size(lane.items[0])
            if taken and size > self._max_bytes:
                break
            taken.append(lane.items.popleft())
        lane.size -= sum(map(self._format.size, taken))
        return taken

    def _release(self, items: Iterable[T]) -> None:
        self._pending_bytes -= sum(map(self._format.size, items))

    # -- in a thread of the pool -------------------------------------------------------------------------------

    def _post_next(self, lane: Lane[T]) -> None:
        with self._changed:
            items = self._take(lane)
            failure = self._failures.get(lane.txn_id) if lane.txn_id is not None else None
        outcome = failure or (self._post(lane, items) if items else None)
        if outcome is None and items:
            return  # moved to other lanes
        with self._changed:
            lane.busy = False
            self._release(items)
            if isinstance(outcome, MetatxnError) and not lane.discarded:
                self._failures.setdefault(lane.txn_id, outcome)
        if items and outcome is not None:
            self._format.done(items, outcome)
        with self._changed:
            self._kick(lane)
            self._changed.notify_all()

    def _post(self, lane: Lane[T], items: list[T]) -> str | MetatxnError | None:
        """The position, the failure, or None when the segment is gone and all of the lane has moved."""
        try:
            payload, count = self._format.encode(items)
            entry = Entry(
                lane.segment, lane.txn_id, self._writer, self._producer, next(self._sequences), payload, count,
                self._format.content_type,
            )  # fmt: skip
            return self._link.publish(entry)
        except (SegmentSealed, NotFound) as error:
            return self._move(lane, items, error)
        except MetatxnError as error:
            return error
        except Exception as error:  # noqa: BLE001  a bug must reach the caller, not die with a thread of the pool
            failure = MetatxnError(f"{type(error).__name__}: {error}", definite=False)
            failure.__cause__ = error
            return failure

    def _move(self, lane: Lane[T], items: list[T], reason: MetatxnError) -> MetatxnError | None:
        """`reason` is definite: nothing of `items` is in the log, so its pieces take new sequences."""
        try:
            layout = self._link.layout_without(self.topic, lane.segment)
        except MetatxnError as error:
            return error
        if layout is None:
            return reason
        homeless: list[tuple[T, MetatxnError]] = []
        with self._changed:
            self._layout = layout
            self._release(items)
            moving = [*items, *self._take_all(lane)]
            lane.busy = False
            for item in moving:
                try:
                    self._enqueue(item, lane.txn_id)
                except MetatxnError as error:
                    self._failures.setdefault(lane.txn_id, error)
                    homeless.append((item, error))
            self._kick(lane)
            self._changed.notify_all()
        for item, failure in homeless:
            self._format.done([item], failure)
        return None
