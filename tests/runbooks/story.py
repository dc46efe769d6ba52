"""The transactions that the runbooks look at: the same every time, to the millisecond, on any store.

Coordinator and broker are the production code, without their HTTP servers and sweeps; the clock is set by hand. One
transaction of each kind:

    …1  committed at 08:00, collected since         …5  open, has written to two topics
    …2  committed with two of its three writers     …6  open, kept alive
    …3  aborted by its owner                        …7  prepared
    …4  aborted by its timeout                      …8  open under a transaction key, at its second epoch
                                                    …9  open, has written nothing, due at 09:08
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from coordinator.gc_sweep import GcSweep
from coordinator.key_sweep import KeySweep
from coordinator.metrics import CoordinatorMetrics
from coordinator.transactions import Transactions
from metastore.api import MetadataStore
from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord, CoordinatorRecord
from metastore.urls import open_store
from metastore.versions import ClusterVersion
from metatxn.wire.broker import Message
from metatxn.wire.coordinator import BeginRequest, ConnectRequest
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.ids import TxnId
from participants.broker.broker import Broker
from participants.common.metrics import BrokerMetrics
from participants.ledger.local import LocalStorage
from participants.messages.payloads import encode_messages
from participants.topic.layout import LayoutUpkeep
from tests.participants.segment.world import materialized

COORDINATOR_URL = "http://127.0.0.1:8470"
BROKER_URL = "http://127.0.0.1:8471"
COORDINATOR_ID = "3f9c2a7d51e0b846"
STORAGE_ID = "c41be09d2f5a4e7f8b6a1d3c5e7f9012"
MINUTE_MS = 60_000
NEVER_MS = 10**9

FIRST_ORDERS = "segment://public/default/orders/0000-7fff-0"
SECOND_ORDERS = "segment://public/default/orders/8000-ffff-1"
PAYMENTS = "segment://public/default/payments/0000-ffff-0"


class Story:
    """One coordinator and one broker on `store`.

    `fixed_revisions` on etcd: the decisions that a page names have the same revision every time, whichever of the
    applies before them travelled together.
    """

    def __init__(self, store: MetadataStore, storage: LocalStorage, *, fixed_revisions: bool) -> None:
        self._store = store
        self._fixed_revisions = fixed_revisions
        self._time = datetime(2026, 3, 2, 8, tzinfo=UTC)
        self._transactions = Transactions(store, self._now_ms)
        self.broker = Broker(
            store,
            storage,
            BROKER_URL,
            clock=self._now_ms,
            metrics=BrokerMetrics(),
            reconcile_interval_ms=NEVER_MS,
        )
        LayoutUpkeep(self.broker)

    def _now_ms(self) -> int:
        return round(self._time.timestamp() * 1000)

    def _at(self, hour: int, minute: int, second: int = 0) -> None:
        """The clock is set, and stands still."""
        self._time = self._time.replace(hour=hour, minute=minute, second=second)

    async def tell(self) -> None:
        await self._announce()
        await self._create_topics()
        await self._collected()
        await self._committed_with_writers()
        await self._aborted()
        await self._timed_out()
        await self._open()
        await self._swept()

    async def decide_one(self) -> None:
        """One more transaction begins and is committed, for those who watch."""
        txn_id = await self._begin(BeginRequest())
        self._time += timedelta(seconds=1)
        await self._transactions.commit(txn_id)

    # -- scenes ------------------------------------------------------------------------------------------------

    async def _announce(self) -> None:
        """As the two services do."""
        coordinator = CoordinatorRecord(url=COORDINATOR_URL).encode()
        await self._store.ephemeral(paths.coordinator_process(COORDINATOR_ID), coordinator, 10 * MINUTE_MS)
        broker = BrokerRecord(url=BROKER_URL).encode()
        await self._store.ephemeral(paths.broker_process(STORAGE_ID), broker, 10 * MINUTE_MS)

    async def _create_topics(self) -> None:
        for name, segments in (("public/default/orders", 2), ("public/default/payments", 1)):
            topic = await self.broker.topics.create(name, segments, None, STORAGE_ID, self._now_ms())
            await self.broker.open_all(topic.segments)

    async def _collected(self) -> None:
        await self._transactions.keys.connect("once", ConnectRequest(epoch=-1))
        txn_id = await self._begin()
        await self._write(txn_id, FIRST_ORDERS)
        await self._reach(100)
        await self._transactions.commit(txn_id)
        await self._materialized(txn_id, FIRST_ORDERS)
        self._at(9, 0)
        gc = GcSweep(self._store, self._now_ms, CoordinatorMetrics(), retention_ms=60 * MINUTE_MS)
        assert (await gc.collect_once()).deleted == 1

    async def _committed_with_writers(self) -> None:
        self._at(9, 1)
        await self._reach(200)
        await self._transactions.keys.connect("nightly", ConnectRequest(epoch=-1))
        txn_id = await self._begin(
            BeginRequest(transaction_key="nightly", epoch=0, version=41, properties={"job": "load"})
        )
        for writer in ("task-0", "task-1", "task-1-again"):
            await self._write(txn_id, PAYMENTS, writer=writer, sequence=1)
        self._at(9, 1, 20)
        await self._reach(300)
        await self._transactions.commit(txn_id, ["task-0", "task-1-again"])
        await self._materialized(txn_id, PAYMENTS)

    async def _aborted(self) -> None:
        self._at(9, 2)
        txn_id = await self._begin(BeginRequest(owner="shop"))
        await self._write(txn_id, FIRST_ORDERS)
        await self._write(txn_id, SECOND_ORDERS)
        self._at(9, 2, 30)
        await self._reach(400)
        await self._transactions.abort(txn_id, "the customer left")
        await self._materialized(txn_id, FIRST_ORDERS, SECOND_ORDERS)

    async def _timed_out(self) -> None:
        self._at(9, 3)
        txn_id = await self._begin(BeginRequest(timeout_ms=1_000))
        self._at(9, 3, 5)
        assert await self._transactions.expire(txn_id, max_clock_skew_ms=2_000)

    async def _open(self) -> None:
        self._at(9, 4)
        two_topics = await self._begin(BeginRequest(owner="shop", timeout_ms=60 * MINUTE_MS))
        await self._write(two_topics, FIRST_ORDERS)
        await self._write(two_topics, FIRST_ORDERS)
        await self._write(two_topics, PAYMENTS)

        self._at(9, 5)
        kept_alive = await self._begin(BeginRequest())
        await self._write(kept_alive, SECOND_ORDERS)
        self._at(9, 5, 50)
        await self._transactions.keep_alive(kept_alive, 15 * MINUTE_MS)

        self._at(9, 6)
        prepared = await self._begin()
        await self._write(prepared, PAYMENTS)
        await self._transactions.prepare(prepared, 24 * 60 * MINUTE_MS)

        self._at(9, 7)
        await self._transactions.keys.connect("nightly", ConnectRequest(epoch=-1))
        request = BeginRequest(transaction_key="nightly", epoch=1, version=42, timeout_ms=20 * MINUTE_MS)
        keyed = await self._begin(request)
        await self._transactions.add_writers(keyed, ["task-0", "task-1"])
        await self._write(keyed, PAYMENTS, writer="task-0", sequence=1)
        await self._transactions.keys.connect("weekly", ConnectRequest(epoch=-1))
        await self._transactions.keys.delete("weekly")
        await self._begin()
        sweep = KeySweep(self._store, self._now_ms, ClusterVersion(), retention_ms=60 * MINUTE_MS)
        assert await sweep.forget_once() == 1
        await self._reach(500)

    async def _swept(self) -> None:
        """ZooKeeper's empty directories are gone: they go a second after their last record."""
        janitor = getattr(self._store, "_janitor", None)
        while janitor and janitor._task:
            await asyncio.wait([janitor._task])

    # -- steps -------------------------------------------------------------------------------------------------

    async def _begin(self, request: BeginRequest | None = None) -> TxnId:
        txn_id = (await self._transactions.begin(request)).txn_id
        assert txn_id is not None
        return TxnId.parse(txn_id)

    async def _write(
        self, txn_id: TxnId, segment_id: str, *, writer: str | None = None, sequence: int | None = None
    ) -> None:
        segment = await self.broker.segment(segment_id)
        payload = encode_messages([Message(key="7", value={"id": 7})])
        await segment.publish(Entry(payload, PayloadKind.MESSAGES, 1, txn_id, writer, None, sequence))

    async def _materialized(self, txn_id: TxnId, *segment_ids: str) -> None:
        for segment_id in segment_ids:
            await materialized(await self.broker.segment(segment_id), txn_id)

    async def _reach(self, revision: int) -> None:
        """What comes next has the revision behind this one."""
        if self._fixed_revisions:
            while (reached := await self._store.current_revision()) < revision:
                await self._store.apply(self._store.batch().put("padding", b""))
            assert reached == revision, f"the story is at revision {reached} already"


@asynccontextmanager
async def told(url: str, data_dir: Path) -> AsyncIterator[Story]:
    """The story, told on the empty store at `url`; it can go on."""
    data_dir.mkdir()
    (data_dir / "storage.json").write_text(json.dumps({"format": 1, "storage_id": STORAGE_ID}))
    async with AsyncExitStack() as exits:
        storage = LocalStorage.open(data_dir)
        exits.push_async_callback(storage.close)
        on_etcd = url.startswith("etcd:")
        # One request at a time: whether a second one was ever needed would show in the markers.
        store = await (open_store(url, pipeline=1) if on_etcd else open_store(url))
        exits.push_async_callback(store.close)
        story = Story(store, storage, fixed_revisions=on_etcd)
        exits.push_async_callback(story.broker.stop)
        await story.broker.start()
        await story.tell()
        yield story
