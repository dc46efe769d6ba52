"""Goal: nothing is written that a running process might not know, and a process never serves a store that it cannot
read; whatever order processes start in, and no matter who raises the cluster version meanwhile.

Method: processes that speak different versions, over one store in memory. Their calls take turns in an order that a
seed decides. Release 0.2.0 is what it leaves in a store, and what it reads there.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import pkgutil
from collections.abc import Sequence
from typing import Any

import pytest

from metastore import upgrade
from metastore.api import Ephemeral, MetadataStore
from metastore.backends.memory import MemoryStore
from metastore.check import StoreCheck, dump
from metastore.errors import StoreTooNew, StoreWentBack
from metastore.incarnation import IncarnationGuard
from metastore.membership import Membership
from metastore.txn import paths, records
from metastore.txn.records.json_record import JsonRecord
from metastore.txn.records.operations import AckOp, OffsetOp
from metastore.txn.records.policies import PolicyRecord
from metastore.txn.records.processes import BrokerRecord, CoordinatorRecord, Incarnation, VersionRecord
from metastore.txn.records.quotas import QuotaRecord
from metastore.txn.records.segments import Compaction, LedgerRecord, OwnerRecord, SegmentRecord
from metastore.txn.records.subscriptions import SubscriptionRecord
from metastore.txn.records.topics import SchemaHistory, TopicRecord
from metastore.txn.records.transactions import TransactionKey
from metastore.txn.store import INDEXES
from metastore.types import RangeResult, Snapshot
from metastore.upgrade import UpgradeRefused, raise_version, read_upgrade
from metastore.versions import FIRST, RELEASES, SPEAKS, ClusterVersion, Feature
from tests.coordinator.stores import ShuffledStore, WrappedStore

SEGMENT = "segment://public/default/orders/0000-ffff-0"
LATER_MS = 10**9


class Process(WrappedStore):
    """A process with its own client, that speaks versions up to `speaks`."""

    def __init__(self, truth: MetadataStore, name: str, speaks: int = SPEAKS) -> None:
        super().__init__(truth)
        self.name = name
        self.membership = Membership(self, "broker", RELEASES.get(speaks, "9.0.0"), speaks)
        self.guard = IncarnationGuard(self, lambda: 1, interval_ms=LATER_MS, speaks=speaks)

    async def start(self) -> Process:
        await self.membership.announce(self.name, f"http://{self.name}")
        await self.guard.start()
        return self

    async def stop(self) -> None:
        await self.membership.withdraw()
        await self.guard.stop()

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        MetadataStore._assert_open(self)
        return await super().get_many(wanted)


class Shuffled(ShuffledStore):
    """Lets others run around the calls that only start-up and upgrades make, too."""

    async def range(self, *bounds: str, **options: Any) -> RangeResult:
        await self._let_others_run()
        found = await super().range(*bounds, **options)
        await self._let_others_run()
        return found

    async def ephemeral(self, key: str, value: bytes, ttl_ms: int) -> Ephemeral:
        await self._let_others_run()
        return await super().ephemeral(key, value, ttl_ms)


@pytest.fixture
def truth() -> MemoryStore:
    return MemoryStore(INDEXES)


async def served_by_0_2_0(store: MetadataStore, *brokers: str) -> None:
    """What processes of release 0.2.0 leave in a store."""
    first = Incarnation(id="f" * 32, begun_ms=1)
    batch = store.batch().create(paths.INCARNATION, first.encode())
    for broker in brokers:
        batch.put(paths.broker_process(broker), BrokerRecord(url=f"http://{broker}").encode())
    await store.apply(batch)


async def version_in(store: MetadataStore) -> int:
    record = await store.get(paths.VERSION)
    assert record is not None
    return VersionRecord.decode(record.value).version


async def own(store: MetadataStore, broker: str) -> None:
    owner = OwnerRecord(broker=broker, url=f"http://{broker}", generation=1)
    await store.apply(store.batch().put(paths.segment_owner(SEGMENT), owner.encode()))


def as_0_2_0_reads_it(incarnation: bytes) -> str | None:
    """Why release 0.2.0 does not start."""
    said = json.loads(incarnation)
    return said.get("went_back") if not said.get("recovering") else "recovering"


async def kept_out(store: MetadataStore) -> bool:
    record = await store.get(paths.INCARNATION)
    assert record is not None
    return as_0_2_0_reads_it(record.value) is not None


# -- starting ----------------------------------------------------------------------------------------------------------


async def test_a_new_store_begins_with_the_version_of_its_first_process(truth: MemoryStore) -> None:
    process = await Process(truth, "a").start()
    assert (await version_in(truth), process.guard.version.current) == (SPEAKS, SPEAKS)
    assert await kept_out(truth)
    assert [finding async for finding in StoreCheck(truth).findings()] == []


async def test_a_store_of_release_0_2_0_keeps_its_version(truth: MemoryStore) -> None:
    await served_by_0_2_0(truth)
    process = await Process(truth, "a").start()
    assert (await version_in(truth), process.guard.version.current) == (FIRST, FIRST)
    assert not await kept_out(truth)


@pytest.mark.parametrize("key", [paths.id_sequence(0), paths.topic("public/default/orders")])
async def test_so_does_one_from_before_incarnations(truth: MemoryStore, key: str) -> None:
    await truth.apply(truth.batch().put(key, b"1"))
    await Process(truth, "a").start()
    assert await version_in(truth) == FIRST


async def test_a_process_that_does_not_speak_the_version_changes_nothing(truth: MemoryStore) -> None:
    await Process(truth, "a", SPEAKS + 1).start()
    before = [record async for record in dump(truth)]
    late = Process(truth, "late")
    with pytest.raises(StoreTooNew, match=rf"version is {SPEAKS + 1}, .* speaks up to {SPEAKS}"):
        await late.start()
    await late.stop()
    assert [record async for record in dump(truth)] == before


async def test_one_that_runs_refuses_the_store_once_it_has_looked(truth: MemoryStore) -> None:
    process = await Process(truth, "a").start()
    record = await truth.get(paths.VERSION)
    assert record is not None
    await truth.apply(truth.batch().replace(record, VersionRecord(version=SPEAKS + 1).encode()))
    await process.guard.look()
    with pytest.raises(StoreTooNew):
        await process.get("/anything")
    with pytest.raises(UpgradeRefused, match="Start a later release"):
        await raise_version(truth, lambda: 1)


async def test_a_store_that_goes_back_is_refused_behind_the_barrier_too(truth: MemoryStore) -> None:
    saw, other = await Process(truth, "a").start(), await Process(truth, "b").start()
    await saw.guard.went_back("it was at revision 9, and now it is at revision 5")
    await other.guard.look()
    assert other.refusal is not None and "revision 9" in other.refusal
    with pytest.raises(StoreWentBack, match="revision 9"):
        await Process(truth, "c").start()
    await truth.apply(truth.batch().put(paths.VERSION, VersionRecord(version=FIRST).encode()))
    with pytest.raises(UpgradeRefused, match="metatxn store recover"):
        await raise_version(truth, lambda: 1)


def test_a_version_that_is_read_late_does_not_count() -> None:
    version = ClusterVersion(FIRST)
    assert not any(map(version.allows, Feature))
    version.learn(SPEAKS)
    version.learn(FIRST)
    assert all(map(version.allows, Feature))


# -- finalizing --------------------------------------------------------------------------------------------------------


async def test_the_version_is_raised_once_and_processes_learn_it(truth: MemoryStore) -> None:
    await served_by_0_2_0(truth)
    process = await Process(truth, "a").start()
    await own(truth, "a")
    before = await raise_version(truth, lambda: 7)
    assert (before.version, before.target, [each.id for each in before.processes]) == (FIRST, SPEAKS, ["a"])
    assert await kept_out(truth)
    await process.guard.look()
    assert process.guard.version.current == SPEAKS
    after = await read_upgrade(truth)
    assert (after.complete, after.finalized_ms, after.obstacles) == (True, 7, [])
    revision = await truth.current_revision()
    assert (await raise_version(truth, lambda: 8)).complete
    assert await truth.current_revision() == revision, "nothing is left to do"


async def test_processes_of_earlier_releases_stand_in_the_way(truth: MemoryStore) -> None:
    await served_by_0_2_0(truth, "old-broker")
    coordinator = CoordinatorRecord(url="http://old-coordinator").encode()
    await truth.apply(truth.batch().put(paths.coordinator_process("old-coordinator"), coordinator))
    await Process(truth, "new").start()
    await Process(truth, "early", FIRST).start()
    await truth.apply(truth.batch().put(paths.broker_process("new"), BrokerRecord(url="http://new").encode()))
    with pytest.raises(UpgradeRefused) as refused:
        await raise_version(truth, lambda: 1)
    named = ["old-broker", "old-coordinator", "early"]
    assert [name for name in (*named, "new") if f"http://{name}" in str(refused.value)] == named
    assert len(refused.value.obstacles) == 3
    assert await version_in(truth) == FIRST and not await kept_out(truth)


async def test_the_owners_of_segments_have_to_run(truth: MemoryStore) -> None:
    """One that is frozen may wake up later, and go on with what it knows."""
    await served_by_0_2_0(truth)
    await Process(truth, "new").start()
    await own(truth, "frozen")
    with pytest.raises(UpgradeRefused, match=f"broker http://frozen does not run, and owns {SEGMENT}"):
        await raise_version(truth, lambda: 1)
    await raise_version(truth, lambda: 1, accept_absent=True)
    assert await version_in(truth) == SPEAKS


@pytest.mark.parametrize(
    "owner",
    [
        OwnerRecord(broker="", url="", generation=3),
        OwnerRecord(broker="gone", url="http://gone", generation=3, deleted=True),
    ],
)
async def test_what_nobody_owns_does_not_count(truth: MemoryStore, owner: OwnerRecord) -> None:
    await served_by_0_2_0(truth)
    await Process(truth, "new").start()
    await truth.apply(truth.batch().put(paths.segment_owner(SEGMENT), owner.encode()))
    await raise_version(truth, lambda: 1)


async def test_a_store_that_nobody_has_served_has_no_version_to_raise(truth: MemoryStore) -> None:
    with pytest.raises(UpgradeRefused, match="no process has ever served"):
        await raise_version(truth, lambda: 1)


async def test_a_process_that_starts_after_the_look_is_not_overlooked(
    truth: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served_by_0_2_0(truth)
    await Process(truth, "new").start()
    look = upgrade.read_upgrade

    async def interrupted(store: MetadataStore) -> upgrade.Upgrade:
        found = await look(store)
        await Process(truth, "early", FIRST).start()
        return found

    monkeypatch.setattr(upgrade, "read_upgrade", interrupted)
    with pytest.raises(UpgradeRefused, match="a process has started meanwhile"):
        await raise_version(truth, lambda: 1)
    assert await version_in(truth) == FIRST


async def test_whoever_starts_while_the_version_is_raised_speaks_it_or_stops_that() -> None:
    """In whatever order the calls of both arrive: never does a process serve that does not speak the version."""
    for seed in range(200):
        truth = MemoryStore(INDEXES)
        await served_by_0_2_0(truth)
        await Process(truth, "new").start()
        shuffled = Shuffled(truth, seed)
        early = Process(shuffled, "early", FIRST)
        ends = await asyncio.gather(early.start(), raise_version(shuffled, lambda: 1), return_exceptions=True)
        assert [type(end) for end in ends] in ([Process, UpgradeRefused], [StoreTooNew, upgrade.Upgrade]), (seed, ends)
        await early.stop()


# -- forms -------------------------------------------------------------------------------------------------------------


def ledger(**facts: object) -> bytes:
    listed = LedgerRecord.model_validate({"id": 1, "storage": "s", "entries": 1, **facts})
    return SegmentRecord(topic="t", range=(0, 65535), storage="s", ledgers=(listed,)).encode()


def segment(**facts: object) -> bytes:
    return SegmentRecord.model_validate({"topic": "t", "range": (0, 65535), "storage": "s", **facts}).encode()


def topic(**facts: object) -> bytes:
    fields = {"name": "t", "segments": (SEGMENT,), "next_segment": 1, "created_ms": 1}
    return TopicRecord.model_validate(fields | facts).encode()


def subscription(**facts: object) -> bytes:
    fields = {"incarnation": 1, "type": "shared", "initial": "earliest", "created_ms": 1}
    return SubscriptionRecord.model_validate(fields | facts).encode()


KEY_OF_KAFKA = TransactionKey(epoch=1, updated_ms=1, last_txn_id="0" * 31 + "1").encode()


def ack_op(**facts: object) -> bytes:
    fields = {"segment": SEGMENT, "subscription": "s", "incarnation": 1, "position": "1:0"}
    return AckOp.model_validate(fields | {"batch_index": 0, "batch_size": 2} | facts).encode()


OFFSET = OffsetOp(segment=SEGMENT, group="g", offset=1).encode()
OF_2: dict[str, tuple[str, bytes]] = {
    "hidden": (paths.segment(SEGMENT), ledger(hidden=0)),
    "hidden bytes": (paths.segment(SEGMENT), ledger(hidden_bytes=0)),
    "form": (paths.segment(SEGMENT), ledger(form=(1, 1))),
    "former form": (paths.segment(SEGMENT), ledger(former=True)),
    "offset of a ledger": (paths.segment(SEGMENT), ledger(first_offset=0)),
    "compaction": (paths.segment(SEGMENT), segment(compaction=Compaction(through="1:0", revision=1))),
    "removed parents": (paths.segment(SEGMENT), segment(removed_parents={})),
    "next offset": (paths.segment(SEGMENT), segment(next_offset=0)),
    "policy of a topic": (paths.topic("t"), topic(policy=PolicyRecord(retention_ms=1))),
    "first segment": (paths.topic("t"), topic(first_segment=0)),
    "format of Kafka": (paths.topic("t"), topic(format="kafka")),
    "format of Pulsar": (paths.topic("t"), topic(format="pulsar")),
    "versions of a schema": (paths.topic("t"), topic(schema_history=SchemaHistory(version=2, created_ms=1))),
    "key_shared": (paths.subscription("t", "s"), subscription(type="key_shared")),
    "ack timeout": (paths.subscription("t", "s"), subscription(ack_timeout_ms=1)),
    "redelivery delay": (paths.subscription("t", "s"), subscription(redelivery_delay_ms=1)),
    "isolation": (paths.subscription("t", "s"), subscription(isolation="read_uncommitted")),
    "seek to a revision": (paths.subscription("t", "s"), subscription(acked={SEGMENT: (("1:0:0", "1:1:0"),)})),
    "exclusive producer": (paths.exclusive_producer("t"), b'{"epoch":1}'),
    "schema of Pulsar's clients": (paths.pulsar_schema("t", 0), b'{"type":1,"data":"","created_ms":1}'),
    "read hold": (paths.read_hold("t", "h"), b'{"revision":1,"created_ms":1,"until_ms":1}'),
    "policy": (paths.CLUSTER_POLICY, PolicyRecord(retention_ms=1).encode()),
    "group": (paths.group("g"), b'{"generation":0,"updated_ms":1}'),
    "committed offset": (paths.group_offset("g", SEGMENT), b'{"offset":1,"committed_ms":1}'),
    "counts of deliveries": (paths.delivery_counts(SEGMENT, "s", 1), b'{"through":"1:0:0"}'),
    "drain": (paths.drain_of_storage("a"), b'{"since_ms":1}'),
    "key of a producer of Kafka's": (paths.transaction_key(None, "k"), KEY_OF_KAFKA),
    "where counters continue": (paths.FIRST_NUMBER, b'{"number":7}'),
    "quota": (paths.DEFAULT_QUOTA, QuotaRecord(requests_per_second=1).encode()),
    "use of quotas": (paths.quota_use("a"), b'{"uses":{}}'),
    "offset in a transaction": (f"{paths.OPS}{'0' * 31}1/{'s'}:o:g", OFFSET),
    "acknowledgement of a run": (f"{paths.OPS}{'0' * 31}1/s:a:s:{1:020d}:{1:020d}", ack_op(batch_last=1)),
}
OF_1: dict[str, tuple[str, bytes]] = {
    "mark of a cursor": (paths.cursor_mark(SEGMENT, "s", 1), b'{"before":"1:0:0"}'),
    "size of a ledger": (paths.segment(SEGMENT), ledger(bytes=7, last_ms=1)),
    "segment": (paths.segment(SEGMENT), segment()),
    "topic": (paths.topic("t"), topic()),
    "acknowledgement": (f"{paths.OPS}{'0' * 31}1/s:a:s:{1:020d}:{1:020d}", ack_op()),
    "subscription": (paths.subscription("t", "s"), subscription(max_redeliveries=1, dead_letter_topic="d")),
}


async def newer_than_the_cluster(key: str, value: bytes, version: int | None) -> bool:
    store = MemoryStore()
    batch = store.batch().put(key, value)
    if version is not None:
        batch.put(paths.VERSION, VersionRecord(version=version).encode())
    await store.apply(batch)
    found = [finding.problem async for finding in StoreCheck(store).findings() if finding.key == key]
    return f"its form needs cluster version 2, and that of this cluster is {version}" in found


@pytest.mark.parametrize("name", OF_2)
async def test_a_form_of_a_later_version_is_found(name: str) -> None:
    assert await newer_than_the_cluster(*OF_2[name], FIRST)
    assert not await newer_than_the_cluster(*OF_2[name], SPEAKS)
    assert not await newer_than_the_cluster(*OF_2[name], None), "nobody knows the version of this cluster"


@pytest.mark.parametrize("name", OF_1)
async def test_a_form_that_every_release_knows_is_in_order(name: str) -> None:
    assert not await newer_than_the_cluster(*OF_1[name], FIRST)


async def test_a_version_of_a_later_release_is_a_finding() -> None:
    store = MemoryStore()
    for version, count in ((0, 1), (FIRST, 0), (SPEAKS, 0), (SPEAKS + 1, 1)):
        await store.apply(store.batch().put(paths.VERSION, VersionRecord(version=version).encode()))
        assert len([finding async for finding in StoreCheck(store).findings()]) == count


FIELDS_OF_0_2_0: dict[str, str] = {
    "AckOp": "kind segment subscription incarnation position batch_index batch_size cumulative writer",
    "AckedBucket": "ranges",
    "BrokerRecord": "url storage",
    "CoordinatorRecord": "url coordinator_id",
    "DedupChunk": "rows",
    "DedupRow": "txn_id writer producer segment runs",
    "DedupSnapshot": "name chunks through",
    "GcHorizon": "revision finalized_ms",
    "Header": "state timeout_ms created_ms finalized_ms owner key epoch version writers reason expired_by properties",
    "Incarnation": "id begun_ms earlier recovered_ms went_back recovering",
    "Lease": "deadline_ms",
    "LedgerRecord": "id storage entries",
    "MarkDelete": "before",
    "MergeClaim": "other child claimed_ms",
    "Outcome": "highest aborted counted_writers",
    "OwnerRecord": "broker url generation deleted",
    "Prepared": "prepared_ms deadline_ms",
    "RememberedWriters": "writers",
    "SegmentRecord": "topic range storage state parents children ledgers first_position trimmed planned dedup merge",
    "SubscriptionRecord": "incarnation type initial created_ms dead_letter_topic max_redeliveries starts deleted",
    "TopicRecord": "name segments next_segment created_ms arrow_schema deleted",
    "TransactionKey": "epoch updated_ms txn_id last_version session fenced_sessions deleted",
    "WriteOp": "kind segment after count writer sequence",
}
NEEDS_2: dict[str, str] = {
    "AckOp": "batch_last",
    "CommittedOffset": "offset committed_ms leader_epoch metadata",
    "Compaction": "through revision",
    "DeliveryCountsRecord": "through counts",
    "DrainRecord": "since_ms",
    "ExclusiveProducerRecord": "epoch session producer claimed_ms until_ms",
    "FirstNumber": "number",
    "FormerSchema": "version arrow_schema created_ms",
    "GroupRecord": "generation updated_ms",
    "LedgerRecord": "hidden hidden_bytes form former first_offset",
    "OffsetOp": "kind segment group offset leader_epoch metadata",
    "PrincipalUse": "rates limited",
    "PulsarSchemaRecord": "type data created_ms name properties",
    "ReadHoldRecord": "revision created_ms until_ms principal",
    "QuotaRecord": "requests_per_second bytes_in_per_second bytes_out_per_second",
    "QuotaUseRecord": "uses",
    "PolicyRecord": " ".join(PolicyRecord.model_fields),
    "SchemaHistory": "version created_ms former forgotten",
    "SegmentRecord": "compaction removed_parents next_offset",
    "SubscriptionRecord": "ack_timeout_ms redelivery_delay_ms max_redelivery_delay_ms isolation acked",
    "TopicRecord": "policy first_segment format schema_history",
    "TransactionKey": "last_txn_id ended_by_holder",
}
"""What only `OF_2` above shows, or a part of that."""
WITHOUT_MEANING_TO_0_2_0: dict[str, str] = {
    "BrokerRecord": "draining listeners peer kafka pulsar",  # it drains, and has other clients, once the version allows
    "CoordinatorRecord": "listeners",
    "Header": "ended_by renewed_ms renewals",  # only shown, and no process writes a header that has it
    "Incarnation": "barrier restoring",  # for later releases; what is being restored is also `recovering`
    "Lease": "renewed_ms renewals",  # only shown
    "LedgerRecord": "bytes last_ms latest_record_ms",  # measured again where they are missing
    "OwnerRecord": "listeners",
    "Prepared": "renewed_ms renewals",  # only shown
    "ProcessRecord": "service url release speaks",  # for anyone who raises the version
    "SegmentRecord": "created_ms sealed_ms",  # only shown
    "SubscriptionRecord": "deleted_ms",  # it decides only when something is forgotten
    "TopicRecord": "deleted_ms",  # the same
    "VersionRecord": "version finalized_ms",
}


def test_every_field_of_every_record_has_a_version() -> None:
    """Anyone who adds a field decides here what a process of the release before does with it, which ignores the field,
    and drops it when it writes the record. If that does harm, it needs a `Feature`, and `form_law` has to know it."""
    known: dict[str, set[str]] = {}
    for listed in (FIELDS_OF_0_2_0, NEEDS_2, WITHOUT_MEANING_TO_0_2_0):
        for name, fields in listed.items():
            assert not known.setdefault(name, set()) & {*fields.split()}, name
            known[name].update(fields.split())
    names = [module.name for module in pkgutil.iter_modules(records.__path__)]
    modules = [importlib.import_module(f"{records.__name__}.{name}") for name in names]
    models = {name: kind for module in modules for name, kind in vars(module).items() if _is_record(kind)}
    assert known == {name: {*kind.model_fields} for name, kind in models.items()}


def _is_record(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, JsonRecord) and kind is not JsonRecord
