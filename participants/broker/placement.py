"""Which broker should own which segment of a storage that several brokers share.

Every broker decides this for itself, by the announcements that it sees in the store, and acts on its own segments only:

    it has no owner, or that is no longer announced         the wanted broker takes it
    it is ours, and another broker is wanted                we drain it and release the record, and that broker takes it
    the record says that it is ours, and we do not have it  the same, with nothing to drain: a claim of ours has
                                                            landed after we had given up

The wanted broker is, of the brokers that are announced with the segment's storage and not as draining, the one with the
highest hash of (broker, segment). So a broker that comes or goes moves only its own share, and one that drains gives up
all that it has. If all of them drain, what is owned stays, and what is free goes to one of them. Brokers that see
different announcements for a while disagree without harm: a segment is taken by a checked apply at the next generation,
and every write of its owner checks that generation (DESIGN §5.2). Announcements only say when to try.

This is slow on purpose: no owner that is announced is replaced before the announcements have stayed the same for a
while, and only a few segments move at a time. The next one moves when the last one was taken, so that those that were
given up never wait in line to be opened. A broker that drains does not wait for the announcements, because it leaves
anyway, and moves more segments at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import structlog

from metastore.api import MetadataStore
from metastore.background import in_background
from metastore.errors import MetastoreError
from metastore.keys import unescape
from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord
from metastore.txn.records.segments import OwnerRecord, SegmentRecord
from metastore.types import Event, Record
from metastore.watches import Mirror
from participants.common.signal import Signal

SETTLE_MS = 2_000
"""How long the announcements must stay the same before a segment moves away from an owner."""
TAKEN_WITHIN_S = 10.0
"""How long a segment that was given up holds the next ones back while no broker takes it."""
_LOOK_EVERY_S = 1.0
_MOVES_AT_ONCE = 2
_MOVES_OF_A_DRAIN = 8
_PLACED_PER_TURN = 200

log = structlog.get_logger()


def wanted(segment_id: str, brokers: Iterable[str]) -> str | None:
    """The broker that should own the segment, by rendezvous hashing; None if there are no brokers."""
    return max(brokers, key=lambda broker: _weight(broker, segment_id), default=None)


def _weight(broker: str, segment_id: str) -> bytes:
    return hashlib.sha256(f"{broker}\0{segment_id}".encode()).digest()


class Placement:
    """Watches which brokers are announced, which segments exist and who owns them; takes and gives up segments until it
    is stopped.

    `take` begins to own a segment, and `give_up` ends it. `kept` are the segments that this broker has or is about to
    have. `deposed` is called with a kept segment that another broker has taken, `owned` with every segment that got an
    owner, and `seen` with every changed record of a segment.
    """

    def __init__(
        self,
        store: MetadataStore,
        broker: str,
        storage: str,
        *,
        kept: Callable[[], Container[str]],
        take: Callable[[str], None],
        give_up: Callable[[str], Coroutine[Any, Any, None]],
        deposed: Callable[[str, OwnerRecord], None],
        owned: Callable[[str], None],
        seen: Callable[[str, SegmentRecord], None],
        settle_ms: int = SETTLE_MS,
    ) -> None:
        self._store = store
        self._broker = broker
        self._storage = storage
        self._kept = kept
        self._take = take
        self._give_up = give_up
        self._deposed = deposed
        self._owned = owned
        self._seen = seen
        self._settle_s = settle_ms / 1000
        self._announced = Mirror(store, paths.BROKERS, self._announcement)
        self._owners = Mirror(store, paths.SEGMENT_OWNERS, self._owner)
        self._segments = Mirror(store, paths.SEGMENTS, self._segment)
        self._of_storage: dict[str, None] = {}
        """The segments whose ledgers are in this storage. The set is maintained by events, because reading every record
        each time would be slow."""
        self.ended: set[str] = set()
        """The deleted segments of this storage that are not completely gone."""
        self.changed = Signal()
        """Set when something was announced, taken or created."""
        self.moved = Signal()
        """Notified when a segment has another owner, or none."""
        self._stood_still_since = 0.0
        self._moving: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Raises the store's errors."""
        async with AsyncExitStack() as stack:
            for mirror in (self._announced, self._owners, self._segments):
                await stack.enter_async_context(mirror.running())
            task = in_background(self._balance_forever(), "placement")
            try:
                yield
            finally:
                tasks = [task, *self._moving.values()]
                for each in tasks:
                    each.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def announced(self) -> bool:
        """Whether the watch shows that this broker is announced."""
        return paths.broker_process(self._broker) in self._announced.records

    @property
    def draining(self) -> bool:
        """Whether the watch shows that this broker is being drained."""
        record = self._announced.records.get(paths.broker_process(self._broker))
        return record is not None and bool(BrokerRecord.decode(record.value).draining)

    @property
    def can_leave(self) -> bool:
        """Whether another broker of this storage could take what is here."""
        return any(broker != self._broker for broker in self._candidates(draining=False))

    @property
    def moving(self) -> bool:
        """Whether segments are being given up, or were and no broker has taken them yet."""
        return bool(self._moving)

    def owner(self, segment_id: str) -> OwnerRecord | None:
        """The owner of a segment, as far as it is known here, and if it is announced: callers must not be sent to a
        dead broker."""
        record = self._owners.records.get(paths.segment_owner(segment_id))
        owner = OwnerRecord.decode(record.value) if record else None
        return owner if owner is not None and self._is_announced(owner.broker) else None

    def is_awaited(self, segment_id: str) -> bool:
        """Whether the segment has no owner yet and is not deleted, as far as is known here."""
        record = self._owners.records.get(paths.segment_owner(segment_id))
        is_deleted = record is not None and OwnerRecord.decode(record.value).deleted
        return not is_deleted and self.owner(segment_id) is None

    def sees(self, segment_id: str) -> bool:
        """Whether the watch shows the segment's record."""
        return paths.segment(segment_id) in self._segments.records

    def may_take(self, owner: OwnerRecord) -> bool:
        """Whether a segment with this owner may be taken."""
        return owner.broker == self._broker or not self._is_announced(owner.broker)

    # -- what is seen ------------------------------------------------------------------------------------------

    def _announcement(self, _: Event) -> None:
        self._stood_still_since = asyncio.get_running_loop().time()
        self.changed.notify()

    def _owner(self, event: Event) -> None:
        """Handle the event of an owner's record. A broker that was frozen learns here that it lost its segments."""
        segment_id = unescape(event.key.removeprefix(paths.SEGMENT_OWNERS))
        owner = OwnerRecord.decode(event.record.value) if event.record else None
        if owner is not None and owner.broker != self._broker and segment_id in self._kept():
            self._deposed(segment_id, owner)
        if owner is not None and owner.broker:
            self._owned(segment_id)
        self.moved.notify()
        self.changed.notify()

    def _segment(self, event: Event) -> None:
        segment_id = unescape(event.key.removeprefix(paths.SEGMENTS))
        record = SegmentRecord.decode(event.record.value) if event.record is not None else None
        if record is not None and record.storage == self._storage and record.state != "deleted":
            self._of_storage[segment_id] = None
            self._seen(segment_id, record)
        else:
            self._of_storage.pop(segment_id, None)
            if record is not None and record.storage == self._storage:
                self.ended.add(segment_id)
            else:
                self.ended.discard(segment_id)
        self.changed.notify()

    def _is_announced(self, broker: str) -> bool:
        return bool(broker) and paths.broker_process(broker) in self._announced.records

    def _candidates(self, *, draining: bool) -> list[str]:
        """The announced brokers of this storage, without those that drain or with them."""
        found = {key: BrokerRecord.decode(record.value) for key, record in self._announced.records.items()}
        return [
            unescape(key.removeprefix(paths.BROKERS))
            for key, record in found.items()
            if record.storage == self._storage and (draining or not record.draining)
        ]

    def _settled(self) -> bool:
        return asyncio.get_running_loop().time() - self._stood_still_since >= self._settle_s

    # -- what is done ------------------------------------------------------------------------------------------

    async def _balance_forever(self) -> None:
        while True:
            changed = self.changed.next()
            await self._balance()
            await asyncio.wait([changed], timeout=min(_LOOK_EVERY_S, self._settle_s))

    async def _balance(self) -> None:
        """Take and give up segments, some in each turn of the event loop. Only a broker that is announced takes part:
        one that was frozen waits until it is announced again. What changes meanwhile is looked at anew, because it is
        told to `changed`."""
        candidates, draining = self._candidates(draining=False), self._candidates(draining=True)
        for number, segment_id in enumerate(list(self._of_storage), 1):
            if not self.announced:
                return
            if segment_id in self._of_storage:
                self._place(segment_id, candidates or draining, may_move=bool(candidates))
            if number % _PLACED_PER_TURN == 0:
                await asyncio.sleep(0)

    def _place(self, segment_id: str, candidates: Sequence[str], *, may_move: bool) -> None:
        is_wanted = wanted(segment_id, candidates) == self._broker
        if segment_id in self._kept():
            if not is_wanted and may_move and (self.draining or self._settled()):
                self._move(segment_id)
        elif is_wanted and self._is_free(segment_id):
            self._take(segment_id)
        elif not is_wanted and (record := self._claimed(segment_id)):
            self._in_turn(segment_id, self._let_go(record))

    def _is_free(self, segment_id: str) -> bool:
        record = self._owners.records.get(paths.segment_owner(segment_id))
        if record is None:
            return True
        owner = OwnerRecord.decode(record.value)
        return not owner.broker or (self.may_take(owner) and (owner.broker == self._broker or self._settled()))

    def _claimed(self, segment_id: str) -> Record | None:
        """The owner's record, if it names this broker."""
        record = self._owners.records.get(paths.segment_owner(segment_id))
        return record if record and OwnerRecord.decode(record.value).broker == self._broker else None

    def _move(self, segment_id: str) -> None:
        if self._in_turn(segment_id, self._hand_over(segment_id)):
            log.info("segment moves to another broker", segment=segment_id)

    def _in_turn(self, segment_id: str, giving_up: Coroutine[Any, Any, None]) -> bool:
        most = _MOVES_OF_A_DRAIN if self.draining else _MOVES_AT_ONCE
        if segment_id in self._moving or len(self._moving) >= most:
            giving_up.close()
            return False
        self._moving[segment_id] = in_background(self._moved(segment_id, giving_up), f"give up {segment_id}")
        return True

    async def _moved(self, segment_id: str, giving_up: Coroutine[Any, Any, None]) -> None:
        try:
            await giving_up
        finally:
            del self._moving[segment_id]

    async def _hand_over(self, segment_id: str) -> None:
        """Wait until another broker has taken it, or has not done so in time."""
        await self._give_up(segment_id)
        if segment_id in self._kept():
            return  # it is still being opened; it can move later
        with suppress(TimeoutError):
            async with asyncio.timeout(TAKEN_WITHIN_S):
                while self._is_left_alone(segment_id):
                    await self.changed.wait()
        asyncio.get_running_loop().call_soon(self.changed.notify)  # the next one moves

    def _is_left_alone(self, segment_id: str) -> bool:
        """Whether no broker has taken it yet, as far as is known here."""
        owner = self.owner(segment_id)
        is_taken = owner is not None and owner.broker != self._broker
        return segment_id in self._of_storage and segment_id not in self._kept() and not is_taken

    async def _let_go(self, record: Record) -> None:
        """Release the record as it was seen. If it has changed, there is nothing to release."""
        owner = OwnerRecord(broker="", url="", generation=OwnerRecord.decode(record.value).generation)
        with suppress(MetastoreError):  # the next look comes soon
            await self._store.apply(self._store.batch().replace(record, owner.encode()))
