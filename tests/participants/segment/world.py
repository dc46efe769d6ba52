"""One segment, or a few, over a store with faults and a device with real ledgers; and a coordinator of five lines.

A process is a `Node`: a mirror, a storage and the segments it opened. `World.crash` copies what lies on the device as
it is and lets the next node open the copy, so nothing that the dead one had in memory survives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

from metastore.api import MetadataStore
from metastore.txn import paths
from metastore.txn.records.operations import Outcome
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.transactions import GcHorizon, Header, Prepared
from metastore.txn.states import ExpiredBy, TxnState
from metastore.txn.store import TransactionRecords, begin, finalize, gc_horizon, read_transaction
from metastore.types import Revision
from metatxn.wire.frames import Entry, PayloadKind, RawFrame
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.common.metrics import BrokerMetrics
from participants.ledger.storage import LedgerStorage
from participants.segment.reading import Page
from participants.segment.recovery import SegmentContext, open_segment
from participants.segment.rolling import DEFAULT_MAX_LEDGER_BYTES
from participants.segment.segment import Segment
from participants.subscription.memory_pending_acks import open_memory_pending_acks
from participants.subscription.segment_subscriptions import SegmentSubscriptions
from participants.txn.header_mirror import HeaderMirror
from participants.txn.shared_materializing import SharedMaterializing
from tests.participants.broker.applications import Application
from tests.participants.devices import Device, DeviceKind, OnDevice, new_device
from tests.participants.segment.faulty_store import FaultyStore

SEGMENT = "segment://public/default/t/0000-ffff-0"
ALL_BYTES = 1 << 20


class Node(OnDevice):
    """One life of a broker process, without its HTTP server and its keepers."""

    def __init__(self, store: FaultyStore, device: Device, storage: LedgerStorage, clock: World) -> None:
        self.device = device
        self.metrics = BrokerMetrics()
        self.mirror = HeaderMirror(store)
        self.materializing = SharedMaterializing(store, rest_s=0)
        self.storage = storage
        self.segments: list[Segment] = []
        self.context = SegmentContext(
            self.storage.storage_id,
            "http://broker",
            self.storage,
            store,
            self.mirror,
            self.materializing,
            clock.now_ms,
            self.metrics,
            self._subscriptions_on,
            clock.max_ledger_bytes,
        )
        self._exit = AsyncExitStack()

    def _subscriptions_on(self, segment: Segment) -> SegmentSubscriptions:
        context = self.context
        return SegmentSubscriptions(segment, context.store, context.mirror, context.metrics, open_memory_pending_acks)

    async def start(self) -> None:
        await self._exit.enter_async_context(self.mirror.running())

    async def open(self, segment_id: str = SEGMENT) -> Segment:
        segment = await open_segment(segment_id, self.context)
        self.segments.append(segment)
        return segment

    async def stop(self) -> None:
        self.device.go()
        for segment in self.segments:
            await segment.close()
        await self.materializing.close()
        await self._exit.aclose()
        await self.storage.close()


class World:
    def __init__(self, directory: Path, device: DeviceKind = "local", store: MetadataStore | None = None) -> None:
        """On `store`, if there is one, and otherwise on one in memory."""
        self.store = FaultyStore(store)
        self.max_ledger_bytes = DEFAULT_MAX_LEDGER_BYTES
        self._directory = directory
        self.device = device
        self._numbers = count(1)
        self._time_ms = count(1_000)
        self._nodes: list[Node] = []
        self._borrowed: list[Application] = []

    def now_ms(self) -> int:
        return next(self._time_ms)

    # -- processes ---------------------------------------------------------------------------------------------

    def new_device(self, name: str) -> Device:
        """With nothing on it."""
        return new_device(self.device, self._directory / name)

    async def node(self, device: Device | None = None) -> Node:
        device = device or self.new_device(f"node-{len(self._nodes)}")
        node = Node(self.store, device, await device.open(), self)
        self._nodes.append(node)
        await node.start()
        return node

    async def first_node(self, *segments: str) -> Node:
        """A node whose storage holds new, empty segments."""
        node = await self.node()
        for segment_id in segments or (SEGMENT,):
            record = SegmentRecord(topic="public/default/t", range=(0, 0xFFFF), storage=node.storage.storage_id)
            await self.store.apply(self.store.batch().create(paths.segment(segment_id), record.encode()))
        return node

    async def segment(self) -> Segment:
        """A fresh segment on a fresh node."""
        return await (await self.first_node()).open()

    async def crash(self) -> Node:
        """The last node dies now; the next one finds what lies on its device."""
        dead = self._nodes[-1]
        copy = dead.device.copy()
        await dead.stop()
        return await self.node(copy)

    async def reopened(self) -> Segment:
        return await (await self.crash()).open()

    async def close(self) -> None:
        self.store.away = None
        self.store.events_flow.set()
        for node in self._nodes:
            await node.stop()
        await self.store.close()
        for application in self._borrowed:
            application.give_back()

    def borrow(self, application: Application) -> Application:
        """It is given back at the end."""
        self._borrowed.append(application)
        return application

    # -- a coordinator -----------------------------------------------------------------------------------------

    async def begin(self) -> TxnId:
        txn_id = TxnId(1, next(self._numbers))
        now = self.now_ms()
        header = Header(state=TxnState.OPEN, timeout_ms=now + 60_000, created_ms=now)
        await self.store.apply(begin(self.store.batch(), txn_id, header))
        return txn_id

    async def _records(self, txn_id: TxnId) -> TransactionRecords:
        records = await read_transaction(self.store, txn_id)
        assert records is not None
        return records

    async def decide(
        self,
        txn_id: TxnId,
        state: TxnState,
        *,
        writers: Sequence[str] | None = None,
        expired_by: ExpiredBy | None = None,
    ) -> Revision:
        records = await self._records(txn_id)
        final = records.header.model_copy(
            update={
                "state": state,
                "finalized_ms": self.now_ms(),
                "writers": tuple(writers) if writers is not None else None,
                "expired_by": expired_by,
            }
        )
        return (await self.store.apply(finalize(self.store.batch(), [records], final))).revision

    async def commit(self, txn_id: TxnId, writers: Sequence[str] | None = None) -> Revision:
        return await self.decide(txn_id, TxnState.COMMITTED, writers=writers)

    async def abort(self, txn_id: TxnId, expired_by: ExpiredBy | None = None) -> Revision:
        return await self.decide(txn_id, TxnState.ABORTED, expired_by=expired_by)

    async def time_out(self) -> Revision:
        """Whatever is open is aborted by its timeout. Returns the revision of the last decision."""
        revision = 0
        for record in (await self.store.inner.scan(paths.HEADERS)).records:
            if Header.decode(record.value).state is TxnState.OPEN:
                revision = await self.abort(paths.txn_id_of_header(record.key), expired_by=ExpiredBy.TIMEOUT)
        return revision

    async def prepare(self, txn_id: TxnId) -> None:
        records = await self._records(txn_id)
        prepared = Prepared(prepared_ms=self.now_ms(), deadline_ms=10**9)
        await self.store.apply(records.prepare(self.store.batch(), prepared))

    async def collect(self, txn_id: TxnId) -> None:
        """What header GC does: only when no operation record is left, and the horizon first."""
        assert not await self.operations(txn_id)
        record = (await self._records(txn_id)).header_record
        horizon = GcHorizon(revision=max(record.version, await gc_horizon(self.store)))
        await self.store.apply(self.store.batch().put(paths.GC_HORIZON, horizon.encode()))
        await self.store.apply(self.store.batch().remove(record))

    async def forget(self, segment_id: str) -> None:
        """What a restore does to a segment and its topic when the backup is older."""
        for key in (paths.segment(segment_id), paths.segment_owner(segment_id), paths.topic("public/default/t")):
            await self.store.inner.apply(self.store.inner.batch().delete(key))

    # -- looking -----------------------------------------------------------------------------------------------

    async def operations(self, txn_id: TxnId) -> list[str]:
        found = await self.store.inner.scan(paths.ops_of_transaction(txn_id))
        return [record.key for record in found.records]

    async def outcome(self, txn_id: TxnId, segment_id: str = SEGMENT) -> Outcome | None:
        record = await self.store.inner.get(paths.outcome(segment_id, txn_id))
        return Outcome.decode(record.value) if record else None


def entry(
    payload: str,
    txn_id: TxnId | None = None,
    *,
    writer: str | None = None,
    producer: str | None = None,
    sequence: int | None = None,
) -> Entry:
    return Entry(payload.encode(), PayloadKind.BYTES, 1, txn_id, writer, producer, sequence)


async def publish(
    segment: Segment,
    payload: str,
    txn_id: TxnId | None = None,
    *,
    writer: str | None = None,
    producer: str | None = None,
    sequence: int | None = None,
) -> Position:
    found, _ = await segment.publish(entry(payload, txn_id, writer=writer, producer=producer, sequence=sequence))
    return found


def sending(
    segment: Segment,
    payload: str,
    txn_id: TxnId | None = None,
    *,
    writer: str | None = None,
    producer: str | None = None,
    sequence: int | None = None,
) -> asyncio.Task[Position]:
    return asyncio.create_task(
        publish(segment, payload, txn_id, writer=writer, producer=producer, sequence=sequence),
        name=f"publish {payload}",
    )


def payload_of(frame: RawFrame) -> str:
    return bytes(frame.payload).decode()


async def committed(segment: Segment) -> list[str]:
    """Everything a read-committed reader sees from the start."""
    seen: list[str] = []
    at = segment.ledgers.start
    while True:
        page = await segment.reader.read_committed(at, ALL_BYTES)
        seen += map(payload_of, page.frames)
        if page.end:
            return seen
        at = page.next


async def uncommitted(segment: Segment) -> list[str]:
    seen: list[str] = []
    at = segment.ledgers.start
    while True:
        page = await segment.reader.read_uncommitted(at, ALL_BYTES)
        seen += map(payload_of, page.frames)
        if page.end:
            return seen
        at = page.next


async def snapshot(segment: Segment, revision: Revision | None = None) -> list[str]:
    seen: list[str] = []
    at = segment.ledgers.start
    while True:
        page: Page = await segment.reader.read_snapshot(at, ALL_BYTES, revision)
        revision = page.revision
        seen += map(payload_of, page.frames)
        if page.end:
            return seen
        at = page.next


async def until(segment: Segment, holds: object) -> None:
    """Wait, change by change, until `holds()` is true."""
    assert callable(holds)
    while not holds():
        await segment.changed.wait()


async def released(segment: Segment, *txn_ids: TxnId) -> None:
    """Wait until the decisions have reached the readers of the segment."""
    for txn_id in txn_ids:
        await until(segment, lambda txn_id=txn_id: _is_released(segment, txn_id))


def _is_released(segment: Segment, txn_id: TxnId) -> bool:
    transaction = segment.buffer.get(txn_id)
    return transaction is None or transaction.released


async def materialized(segment: Segment, *txn_ids: TxnId) -> None:
    """Wait until the decisions are durable and nothing of them is left to do."""
    await released(segment, *txn_ids)
    while segment._tasks:
        await asyncio.wait(segment._tasks)


def assert_at_the_floor(segment: Segment, node: Node) -> None:
    """Nothing of decided transactions is left in memory, outcomes aside."""
    assert list(segment.buffer.tracked()) == []
    assert segment.buffer.pinned_by is None
    assert not node.mirror._listeners
    assert not segment.dedup._transactions
    assert not segment.dedup._in_flight
    assert not segment.publisher._arrivals
    assert not segment._tasks
