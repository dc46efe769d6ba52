"""A store whose records are checked when the test is over, a clock that stands still, and a coordinator on both."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import httpx
import pytest

from coordinator.answers import Members
from coordinator.service import CoordinatorService
from coordinator.settling import Settling
from coordinator.timeout_sweep import TimeoutSweep
from coordinator.transaction_keys import Begun, TransactionKeys
from coordinator.transactions import Transactions
from metastore.api import MetadataStore
from metastore.backends.etcd import EtcdStore
from metastore.backends.memory import MemoryStore
from metastore.txn import paths
from metastore.txn.records.transactions import TransactionKey
from metastore.txn.store import INDEXES, read_transaction
from metastore.types import RangeResult, Snapshot
from metatxn.wire import errors
from metatxn.wire.coordinator import BeginRequest, ConnectRequest, TransactionHeader
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from tests.coordinator.stores import FaultyStore
from tests.servers import EtcdServer

START_MS = 1_767_225_600_000
SKEW_MS = 500


class FakeClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms

    async def pause(self, seconds: float) -> None:
        """In place of sleeping."""
        self.now_ms += int(seconds * 1000)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def truth() -> AsyncIterator[MemoryStore]:
    """What is really stored. Afterwards: indexes, side records and keys agree with the headers."""
    store = MemoryStore(INDEXES)
    yield store
    await check_records(store)
    await store.close()


@pytest.fixture
async def etcd(etcd_server: EtcdServer) -> AsyncIterator[EtcdStore]:
    """As `truth`, on a real etcd."""
    store = await EtcdStore.open([etcd_server.endpoint], f"/{secrets.token_hex(6)}", INDEXES)
    yield store
    await check_records(store)
    await store.close()


@pytest.fixture
def store(truth: MemoryStore) -> FaultyStore:
    return FaultyStore(truth)


class CountedReads:
    """What a store was asked since `start`: ranges and the rows they answered, and keys that were read one by one."""

    def __init__(self, store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.start()
        read_range, read_keys = store.range, store.get_many

        async def counted_range(*arguments: str, **options: Any) -> RangeResult:
            result = await read_range(*arguments, **options)
            self.ranges += 1
            self.rows += len(result.records)
            return result

        async def counted_keys(wanted: Sequence[str]) -> Snapshot:
            self.keys += len(wanted)
            return await read_keys(wanted)

        monkeypatch.setattr(store, "range", counted_range)
        monkeypatch.setattr(store, "get_many", counted_keys)

    def start(self) -> None:
        self.ranges = self.rows = self.keys = 0


@pytest.fixture
def counted(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> CountedReads:
    return CountedReads(store, monkeypatch)


@pytest.fixture
def coordinate(store: FaultyStore, clock: FakeClock) -> Callable[..., Transactions]:
    """A new coordinator on the same store: as after a restart, or a second process."""

    def make(coordinator_id: int = 0, *, id_block_size: int = 1_000) -> Transactions:
        settling = Settling(store, clock, pause=clock.pause)
        return Transactions(store, clock, coordinator_id, settling=settling, id_block_size=id_block_size)

    return make


@pytest.fixture
def transactions(coordinate: Callable[..., Transactions]) -> Transactions:
    return coordinate()


@pytest.fixture
def keys(transactions: Transactions) -> TransactionKeys:
    return transactions.keys


@pytest.fixture
def sweep(transactions: Transactions) -> TimeoutSweep:
    return TimeoutSweep(transactions, max_clock_skew_ms=SKEW_MS)


@pytest.fixture
async def http(store: FaultyStore, clock: FakeClock) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a coordinator's application, without a network between them."""
    service = CoordinatorService(store, clock=clock)
    await service.presence.start("http://coordinator")
    transport = httpx.ASGITransport(app=service.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as client:
        yield client
    await service.presence.stop()


async def refusal(verb: Awaitable[object], code: ErrorCode) -> errors.MetatxnError:
    """The error that `verb` ends in, which must be `code`."""
    with pytest.raises(errors.MetatxnError) as refused:
        await verb
    assert refused.value.code is code, refused.value
    return refused.value


async def epoch_of(transactions: Transactions, key: str = "k", owner: str | None = None) -> int:
    """The epoch of a key; anyone who asks connects when nobody is connected."""
    try:
        return (await transactions.keys.get(key, owner)).epoch
    except errors.MetatxnError:
        return (await transactions.keys.connect(key, ConnectRequest(epoch=-1, owner=owner))).epoch


async def under_key(transactions: Transactions, key: str = "k", **fields: object) -> Begun:
    """Begin under a key, at its epoch unless `fields` have another one."""
    owner = fields.get("owner")
    if "epoch" not in fields:
        fields["epoch"] = await epoch_of(transactions, key, None if owner is None else str(owner))
    return await transactions.begin(BeginRequest.model_validate({"transaction_key": key, **fields}))


def id_of(txn: TransactionHeader | Members) -> TxnId:
    return TxnId.parse(str(txn["txn_id"] if isinstance(txn, dict) else txn.txn_id))


async def check_records(store: MetadataStore) -> None:
    """DESIGN §4: what every record promises about the others, whatever has happened."""
    headers = {paths.txn_id_of_header(record.key) for record in (await store.scan(paths.HEADERS)).records}
    deadlines = [record.key for record in (await store.scan(paths.DEADLINE_INDEX)).records]
    open_deadlines = []
    open_ids = set()
    for txn_id in headers:
        records = await read_transaction(store, txn_id)
        assert records is not None
        if records.header.state.final:
            assert not (records.lease_record or records.prepared_record or records.writers_record), txn_id
        else:
            open_ids.add(str(txn_id))
            open_deadlines.append(paths.deadline_entry(records.deadline_ms, txn_id))
    assert deadlines == sorted(open_deadlines), "the deadline index is not the deadlines of the open transactions"
    holding = set()
    for record in (await store.scan(paths.TRANSACTION_KEYS)).records:
        held = TransactionKey.decode(record.value).txn_id
        if held is not None:
            assert held in open_ids, f"{record.key} holds {held}, which is not open"
            holding.add(held)
    for txn_id in headers:
        records = await read_transaction(store, txn_id)
        assert records is not None
        if records.header.key is not None and not records.header.state.final:
            assert str(txn_id) in holding, f"{txn_id} is open, but its key does not hold it"
