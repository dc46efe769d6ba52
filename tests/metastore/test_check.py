"""Goal: a store that the layout's own writers made is clean, also while they write, and each broken law is found.

Method: one store with every kind of record, made by the batches that coordinators and brokers use; then one record is
broken by hand at a time, past the batches, and the check must name it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

from metastore.api import MetadataStore
from metastore.backends.memory import MemoryStore
from metastore.check import StoreCheck, dump
from metastore.keys import escape
from metastore.txn import paths
from metastore.txn.laws.law import Finding
from metastore.txn.records.groups import CommittedOffset, GroupRecord
from metastore.txn.records.operations import AckOp, OffsetOp, Outcome, WriteOp
from metastore.txn.records.subscriptions import AckedBucket, DeliveryCountsRecord, MarkDelete, SubscriptionRecord
from metastore.txn.records.topics import ExclusiveProducerRecord, PulsarSchemaRecord, TopicRecord
from metastore.txn.records.transactions import GcHorizon, Header, Prepared, TransactionKey
from metastore.txn.states import ExpiredBy, TxnState
from metastore.txn.store import (
    INDEXES,
    TransactionRecords,
    begin,
    finalize,
    put_ack_ops,
    put_offset_op,
    put_write_op,
    read_transaction,
)
from metastore.types import Batch, RangeResult, Snapshot
from metastore.urls import InvalidStoreUrl, open_store, open_store_to_read
from metatxn.wire.ids import TxnId
from tests.metastore.opening import fresh_url

TOPIC = "public/default/orders"
SEGMENTS = [f"segment://{TOPIC}/0-7fff-0", f"segment://{TOPIC}/8000-ffff-1"]
SEGMENT = SEGMENTS[0]
OPEN, KEPT_ALIVE, PREPARED, KEYED, COMMITTED, ABORTED, COLLECTED = (TxnId(0, number) for number in range(1, 8))
KEY = paths.transaction_key("me", "nightly/1")
SUBSCRIPTION = paths.subscription(TOPIC, "s")
GROUP = paths.group("g")
GROUP_OFFSET = paths.group_offset("g", SEGMENT)
HOLD = paths.exclusive_producer(TOPIC)
READ_HOLD = paths.read_hold(TOPIC, "h")
OF_PULSAR = paths.topic("public/default/pulsar")
PULSAR_SCHEMA = paths.pulsar_schema("public/default/pulsar", 3)
MARK = paths.cursor_mark(SEGMENT, "s", 2)
DELIVERIES = paths.delivery_counts(SEGMENT, "s", 2)
BUCKET = paths.cursor_bucket(SEGMENT, "s", 2, (1, 2, 0))
ACK = paths.ack_op(OPEN, SEGMENT, "s", 3, 9)


def packed(value: object) -> bytes:
    return json.dumps(value).encode()


async def read(store: MetadataStore, txn_id: TxnId) -> TransactionRecords:
    records = await read_transaction(store, txn_id)
    assert records
    return records


async def create_topic(store: MetadataStore) -> None:
    topic = {"name": TOPIC, "segments": SEGMENTS, "next_segment": 2, "created_ms": 1}
    batch = store.batch().create(paths.topic(TOPIC), packed(topic))
    for number, segment in enumerate(SEGMENTS):
        ledgers = [{"id": 1, "storage": "b", "entries": 4}, {"id": 2, "storage": "b"}]
        hash_range = [number * 0x8000, number * 0x8000 + 0x7FFF]
        record = {"topic": TOPIC, "range": hash_range, "storage": "b", "ledgers": ledgers}
        batch.create(paths.segment(segment), packed(record))
        batch.create(paths.segment_owner(segment), packed({"broker": "b", "url": "http://b", "generation": 3}))
    await store.apply(batch)


async def begin_open(store: MetadataStore, txn_id: TxnId, header: Header | None = None) -> None:
    header = header or Header(state=TxnState.OPEN, timeout_ms=1_000, created_ms=1)
    await store.apply(begin(store.batch(), txn_id, header))


async def write(store: MetadataStore, txn_id: TxnId, counter: int, segment: str = SEGMENT) -> None:
    op = WriteOp(segment=segment, after="1:-1", count=2, writer="w")
    await store.apply(put_write_op(store.batch(), txn_id, 3, counter, op))


async def decide(store: MetadataStore, txn_id: TxnId, state: TxnState, writers: tuple[str, ...] | None = None) -> None:
    records = await read(store, txn_id)
    final = records.header.model_copy(update={"state": state, "finalized_ms": 50, "writers": writers})
    await store.apply(finalize(store.batch(), [records], final))


async def collect(store: MetadataStore, txn_id: TxnId) -> None:
    header = (await read(store, txn_id)).header_record
    await store.apply(store.batch().put(paths.GC_HORIZON, GcHorizon(revision=header.version).encode()))
    await store.apply(store.batch().remove(header))


async def fill(store: MetadataStore) -> None:
    """Every kind of record, in each of its states."""
    await store.lease_ids(paths.id_sequence(0), 100)
    await create_topic(store)
    keyed = Header(state=TxnState.OPEN, timeout_ms=1_000, created_ms=1, owner="me", key="nightly/1", epoch=2, version=8)
    held = TransactionKey(epoch=2, updated_ms=1, txn_id=str(KEYED), last_version=7)
    await store.apply(begin(store.batch(), KEYED, keyed).create(KEY, held.encode()))
    for txn_id in (OPEN, KEPT_ALIVE, PREPARED, COMMITTED, ABORTED, COLLECTED):
        await begin_open(store, txn_id)
    for counter, txn_id in enumerate((OPEN, KEPT_ALIVE, PREPARED, KEYED, COMMITTED, ABORTED)):
        await write(store, txn_id, counter, SEGMENTS[counter % 2])
    for txn_id in (KEPT_ALIVE, PREPARED):
        await store.apply((await read(store, txn_id)).keep_alive(store.batch(), 2_000, 1_500))
    await store.apply((await read(store, KEPT_ALIVE)).remember_writers(store.batch(), ("w",)))
    await store.apply((await read(store, PREPARED)).prepare(store.batch(), Prepared(prepared_ms=5, deadline_ms=9_000)))
    await decide(store, COMMITTED, TxnState.COMMITTED, ("w", "x"))
    await decide(store, ABORTED, TxnState.ABORTED)
    await decide(store, COLLECTED, TxnState.ABORTED)
    outcomes = {
        COMMITTED: Outcome(highest="1:3", counted_writers=("w",)),
        ABORTED: Outcome(highest="2:0", aborted=True),
        COLLECTED: Outcome(highest="1:2", aborted=True),
    }
    batch = store.batch()
    for txn_id, outcome in outcomes.items():
        batch.create(paths.outcome(SEGMENT, txn_id), outcome.encode())
    await store.apply(batch)
    await collect(store, COLLECTED)
    await subscribe(store)
    for key in ("/cluster/broker/b", "/cluster/coordinator/c"):
        await store.apply(store.batch().create(key, b"{}"))


async def subscribe(store: MetadataStore) -> None:
    """A subscription in its second life, its cursor, and an acknowledgement that is pending."""
    live = SubscriptionRecord(incarnation=2, type="shared", initial="latest", created_ms=1, starts={SEGMENT: "1:0:0"})
    dropped = SubscriptionRecord(incarnation=1, type="shared", initial="earliest", created_ms=1, deleted=True)
    batch = store.batch().create(SUBSCRIPTION, live.encode())
    batch.create(paths.subscription("public/default/gone", "s"), dropped.encode())
    batch.create(MARK, MarkDelete(before="1:1:0").encode())
    counts = (("1:1:0", "1:2:0", 3), ("1:2:0", "1:3:0", 1))
    batch.create(DELIVERIES, DeliveryCountsRecord(through="1:5:0", counts=counts).encode())
    batch.create(BUCKET, AckedBucket(ranges=(("1:2:0", "1:2:1"), ("1:2:3", "1:4:0"))).encode())
    op = AckOp(segment=SEGMENT, subscription="s", incarnation=2, position="1:1", batch_index=0, batch_size=2)
    await store.apply(put_ack_ops(batch, OPEN, 3, [(9, op)]))
    await store.apply(store.batch().create(GROUP, GroupRecord(generation=1, updated_ms=1).encode()))
    held = ExclusiveProducerRecord(epoch=1, session="a", claimed_ms=1, until_ms=2)
    await store.apply(store.batch().create(HOLD, held.encode()))
    read_hold = {"revision": 2**50, "created_ms": 1, "until_ms": 2}
    await store.apply(store.batch().create(READ_HOLD, packed(read_hold)))
    named = TopicRecord(name="public/default/pulsar", segments=(), next_segment=0, created_ms=1, format="pulsar")
    schema = PulsarSchemaRecord(type=1, data="e30=", created_ms=1)
    await store.apply(store.batch().create(OF_PULSAR, named.encode()).create(PULSAR_SCHEMA, schema.encode()))
    batch = store.batch().create(GROUP_OFFSET, CommittedOffset(offset=3, committed_ms=1).encode())
    await store.apply(put_offset_op(batch, OPEN, OffsetOp(segment=SEGMENT, group="g", offset=4), None))


def _group_damages() -> Iterator[Damage]:
    op = paths.offset_op(OPEN, SEGMENT, "g")
    entry = f"{paths.OFFSETS_INDEX}g/{op.removeprefix(paths.OPS)}"

    def of_group(**fields: object) -> dict[str, bytes | None]:
        return {op: packed({"kind": "offset", "segment": SEGMENT, "group": "g", "offset": 4} | fields)}

    yield Damage("offset of another group", of_group(group="h"), op, "the key says")
    yield Damage("offset before all", of_group(offset=-1), op, "negative")
    yield Damage("offset of no group", {GROUP: None}, op, "does not exist")
    yield Damage("offset without entry", {entry: None}, op, "missing in its index")
    yield Damage("offset entry without op", {op: None}, entry, "no operation")
    yield Damage("group before all", {GROUP: packed({"generation": -1, "updated_ms": 1})}, GROUP, "negative")
    yield Damage("committed for no group", {GROUP: None}, GROUP_OFFSET, "does not exist")
    negative = packed({"offset": -1, "committed_ms": 1})
    yield Damage("committed before all", {GROUP_OFFSET: negative}, GROUP_OFFSET, "negative")


def _hold_damages() -> Iterator[Damage]:
    hold = {"epoch": 2, "session": "a", "claimed_ms": 1, "until_ms": 5}
    yield Damage("no epoch", {HOLD: packed(hold | {"epoch": 0})}, HOLD, "not valid")
    yield Damage("held forever", {HOLD: packed({"epoch": 2, "session": "a"})}, HOLD, "without a time")
    of_nothing = paths.exclusive_producer("public/default/ghost")
    yield Damage("exclusive producer of nothing", {of_nothing: packed({"epoch": 1})}, of_nothing, "does not exist")
    deleted = {"name": TOPIC, "segments": SEGMENTS, "next_segment": 2, "created_ms": 1, "deleted": True}
    yield Damage("held behind its deletion", {paths.topic(TOPIC): packed(deleted)}, HOLD, "is deleted")
    read = {"revision": 0, "created_ms": 1, "until_ms": 2}
    yield Damage("held below the horizon", {READ_HOLD: packed(read)}, READ_HOLD, "revision 0 is held, but the horizon")
    ghost = paths.read_hold("public/default/ghost", "h")
    yield Damage("reader of nothing", {ghost: packed(read | {"revision": 2**50})}, ghost, "does not exist")


def _pulsar_schema_damages() -> Iterator[Damage]:
    schema = {"type": 1, "data": "e30=", "created_ms": 1}
    topic = {"name": "public/default/pulsar", "segments": [], "next_segment": 0, "created_ms": 1}
    yield Damage("schema of no type", {PULSAR_SCHEMA: packed(schema | {"type": 0})}, PULSAR_SCHEMA, "the type 0")
    yield Damage("schema that is no bytes", {PULSAR_SCHEMA: packed(schema | {"data": "?"})}, PULSAR_SCHEMA, "be read")
    yield Damage("schema of no topic", {OF_PULSAR: None}, PULSAR_SCHEMA, "does not exist")
    deleted = packed(topic | {"format": "pulsar", "deleted": True})
    yield Damage("schema behind its deletion", {OF_PULSAR: deleted}, PULSAR_SCHEMA, "is deleted")
    yield Damage("schema of another format", {OF_PULSAR: packed(topic)}, PULSAR_SCHEMA, "not the format pulsar")
    no_version = paths.pulsar_schemas("public/default/pulsar") + "3"
    yield Damage("schema without a version", {no_version: packed(schema)}, no_version, "malformed")


async def findings(store: MetadataStore, page: int = 7) -> list[Finding]:
    return [finding async for finding in StoreCheck(store, page).findings()]


@pytest.fixture
async def store() -> MemoryStore:
    store = MemoryStore(INDEXES)
    await fill(store)
    return store


async def test_what_the_writers_made_is_clean(store: MemoryStore) -> None:
    for page in (1, 7, 1_000):
        check = StoreCheck(store, page)
        assert [finding async for finding in check.findings()] == []
        assert check.records == len((await store.scan("/")).records)


async def test_an_empty_store_is_clean() -> None:
    assert await findings(MemoryStore(INDEXES)) == []


async def test_ledgers_that_were_dropped_from_between_others_are_no_damage(store: MemoryStore) -> None:
    """What is hidden in the others, and what is to be deleted, is as their owner records it."""
    whole: dict[str, object] = {"storage": "b", "entries": 4, "bytes": 8, "hidden": 1, "hidden_bytes": 8}
    ledgers = [whole | {"id": 1}, whole | {"id": 4, "hidden": 0, "hidden_bytes": None}, {"id": 9, "storage": "b"}]
    record = segment_value(ledgers=ledgers, trimmed=[whole | {"id": 3}], first_position="0:-1")
    await store.apply(store.batch().put(paths.segment(SEGMENT), record))
    assert await findings(store) == []


async def test_dump_is_everything_in_order(store: MemoryStore) -> None:
    everything = (await store.scan("/")).records
    assert [record async for record in dump(store, page=3)] == everything
    below = [record async for record in dump(store, paths.OPS, page=3)]
    assert below == (await store.scan(paths.OPS)).records and len(below) == 8


# -- each law, broken by hand --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Damage:
    """What is written past all batches (None deletes), and what the check says at which key."""

    name: str
    puts: Mapping[str, bytes | None]
    at: str
    says: str


def header(state: TxnState = TxnState.OPEN, **fields: object) -> bytes:
    sane = Header(state=state, timeout_ms=1_000, created_ms=1)
    return sane.model_copy(update=fields).encode()


def op_key(txn_id: TxnId, counter: int = 0, segment: str = SEGMENT) -> str:
    return paths.write_op(txn_id, segment, 3, counter)


def entry_of(op: str, segment: str = SEGMENT) -> str:
    return paths.WRITES_INDEX + paths.writes_by_segment(segment) + op.removeprefix(paths.OPS)


def segment_value(**fields: object) -> bytes:
    return packed({"topic": TOPIC, "range": [0, 0x7FFF], "storage": "b", "ledgers": []} | fields)


def op_value(**fields: object) -> bytes:
    return packed({"kind": "write", "segment": SEGMENT, "after": "1:-1", "count": 2} | fields)


def ghost(kind: str) -> str:
    return f"/{kind}/{TxnId(0, 90)}"


def damages() -> Iterator[Damage]:
    open_ = paths.header(OPEN)
    deadline = paths.deadline_entry(1_000, OPEN)
    final = paths.final_state_entry(TxnState.COMMITTED, 50, str(COMMITTED))
    sequence = paths.id_sequence(0)
    topic = {"name": TOPIC, "segments": SEGMENTS, "next_segment": 2, "created_ms": 1}
    segment, owner = paths.segment(SEGMENT), paths.segment_owner(SEGMENT)
    late = paths.deadline_entry(1_001, OPEN)
    committed = paths.header(COMMITTED)
    horizon = paths.GC_HORIZON

    yield Damage("header undecodable", {open_: b"{"}, open_, "cannot be read")
    yield Damage("header key", {"/txn/zz": header()}, "/txn/zz", "malformed")
    yield Damage("open written twice", {open_: header()}, open_, "more than once")
    born_final = {ghost("txn"): header(TxnState.ABORTED, finalized_ms=1)}
    yield Damage("final written once", born_final, ghost("txn"), "written only once")
    yield Damage("final without time", {committed: header(TxnState.COMMITTED)}, committed, "without the time")
    expired = header(TxnState.COMMITTED, finalized_ms=50, expired_by=ExpiredBy.TIMEOUT)
    yield Damage("committed and expired", {committed: expired}, committed, "expired by timeout")
    writers = header(TxnState.ABORTED, finalized_ms=50, writers=("w",))
    yield Damage("aborted with writers", {paths.header(ABORTED): writers}, paths.header(ABORTED), "list of writers")
    decided = header(finalized_ms=4)
    yield Damage("open with time", {open_: decided}, open_, "time of a decision")
    yield Damage("id not leased", {sequence: b"1"}, open_, "not been leased")
    yield Damage("no sequence", {sequence: None}, open_, "not been leased")
    yield Damage("sequence undecodable", {sequence: b"x"}, sequence, "cannot be read")
    yield Damage("sequence key", {"/txn-seq/7": b"1"}, "/txn-seq/7", "malformed")

    yield Damage("deadline entry missing", {deadline: None}, open_, "missing in the deadline index")
    yield Damage("deadline entry elsewhere", {late: b""}, late, "its deadline is 1000")
    kept = paths.deadline_entry(1_000, KEPT_ALIVE)
    yield Damage("deadline entry from before the keep-alive", {kept: b""}, kept, "its deadline is 2000")
    of_final = paths.deadline_entry(1_000, COMMITTED)
    yield Damage("deadline entry of a final one", {of_final: b""}, of_final, "which is COMMITTED")
    of_none = paths.deadline_entry(1_000, TxnId(0, 90))
    yield Damage("deadline entry of none", {of_none: b""}, of_none, "without a header")
    unpadded = f"{paths.DEADLINE_INDEX}1000/{OPEN}"
    yield Damage("deadline entry unpadded", {unpadded: b""}, unpadded, "malformed")
    yield Damage("final entry missing", {final: None}, committed, "missing in the index of final states")
    other_state = paths.final_state_entry(TxnState.ABORTED, 50, str(COMMITTED))
    yield Damage("final entry of another state", {other_state: b""}, other_state, "it is COMMITTED at 50")
    of_open = paths.final_state_entry(TxnState.ABORTED, 50, str(OPEN))
    yield Damage("final entry of an open one", {of_open: b""}, of_open, "it is OPEN")
    gone = paths.final_state_entry(TxnState.ABORTED, 50, str(COLLECTED))
    yield Damage("final entry of a collected one", {gone: b""}, gone, "without a header")
    strange = f"{paths.FINAL_STATE_INDEX}DONE/{50:020d}/{OPEN}"
    yield Damage("final entry of no state", {strange: b""}, strange, "malformed")

    beside = {
        paths.lease: packed({"deadline_ms": 1}),
        paths.prepared: packed({"prepared_ms": 1, "deadline_ms": 1}),
        paths.remembered_writers: b"[]",
    }
    for build, value in beside.items():
        name = build.__name__
        yield Damage(f"{name} of a final one", {build(ABORTED): value}, build(ABORTED), "is ABORTED")
        yield Damage(f"{name} of a collected one", {build(COLLECTED): value}, build(COLLECTED), "without a header")
        yield Damage(f"{name} undecodable", {build(PREPARED): b"7"}, build(PREPARED), "cannot be read")
    both = {paths.lease(PREPARED): packed({"deadline_ms": 1})}
    yield Damage("prepared and kept alive", both, paths.header(PREPARED), "prepared but has a keep-alive")

    keyed = paths.header(KEYED)
    yield Damage("key lost its transaction", {KEY: packed({"epoch": 2, "updated_ms": 1})}, keyed, "does not hold it")
    yield Damage("key gone", {KEY: None}, keyed, "does not hold it")

    def key(**fields: object) -> dict[str, bytes | None]:
        return {KEY: packed({"epoch": 2, "updated_ms": 1, "txn_id": str(KEYED)} | fields)}

    yield Damage("key at another epoch", key(epoch=3), keyed, "epoch 2, but its transaction key has epoch 3")
    yield Damage("key says committed", key(last_version=8), keyed, "version 8 is OPEN")
    yield Damage("key holds a final one", key(txn_id=str(ABORTED)), KEY, "which is ABORTED")
    yield Damage("key holds a collected one", key(txn_id=str(COLLECTED)), KEY, "without a header")
    yield Damage("key holds a stranger", key(txn_id=str(OPEN)), KEY, "belongs to another key")
    yield Damage("key holds nonsense", key(txn_id="7"), KEY, "cannot be read")
    yield Damage("key deleted and held", key(deleted=True), KEY, "is deleted but holds")
    yield Damage("key with negative epoch", key(epoch=-1), KEY, "negative")
    yield Damage(
        "key unescaped", {"/txn-key/&a b": packed({"epoch": 0, "updated_ms": 1})}, "/txn-key/&a b", "malformed"
    )

    op = op_key(OPEN)
    lonely = op_key(TxnId(0, 90))
    yield Damage("op without entry", {entry_of(op): None}, op, "missing in its index")
    yield Damage("entry without op", {op: None}, entry_of(op), "no operation")
    yield Damage(
        "entry of another segment", {entry_of(op, SEGMENTS[1]): b""}, entry_of(op, SEGMENTS[1]), "does not fit"
    )
    yield Damage("entry too short", {"/idx/writes-by-segment/x": b""}, "/idx/writes-by-segment/x", "malformed")
    ack_entry = f"{paths.ACKS_INDEX}{escape(SEGMENT)}/s/{op.removeprefix(paths.OPS)}"
    yield Damage("ack entry of a write", {ack_entry: b""}, ack_entry, "does not fit")
    yield Damage("op without a header", {lonely: op_value(), entry_of(lonely): b""}, lonely, "is gone")
    yield Damage("op undecodable", {op: b"{}"}, op, "cannot be read")
    yield Damage("op of no transaction", {f"{paths.OPS}7/x:w:1:1": op_value()}, f"{paths.OPS}7/x:w:1:1", "malformed")
    odd = f"{paths.OPS}{OPEN}/7"
    yield Damage("op with another number", {odd: op_value()}, odd, "malformed")
    unpadded_op = f"{paths.write_ops_of_segment(OPEN, SEGMENT)}1:1"
    yield Damage("op unpadded", {unpadded_op: op_value()}, unpadded_op, "malformed")
    yield Damage("op value of another segment", {op: op_value(segment=SEGMENTS[1])}, op, "the key says")
    yield Damage("op after nothing", {op: op_value(after="x")}, op, "not a position")
    yield Damage("op of less than nothing", {op: op_value(count=-1)}, op, "negative")
    of_owner = packed({"broker": "b", "url": "http://b", "generation": 2})
    yield Damage("op of a later generation", {owner: of_owner}, op, "written by generation 3")
    yield Damage("op without owner", {owner: None}, op, "owner record is absent")
    yield Damage("op without segment", {segment: None}, op, "does not exist")
    ack = f"{paths.OPS}{OPEN}/{escape(SEGMENT)}:a:s:{1:020d}:{1:020d}"
    ack_value = packed({"kind": "ack", "segment": SEGMENT, "subscription": "t", "incarnation": 1, "position": "1:1"})
    yield Damage("ack of another subscription", {ack: ack_value}, ack, "the key says")

    def ack_op(**fields: object) -> dict[str, bytes | None]:
        sane = {"kind": "ack", "segment": SEGMENT, "subscription": "s", "incarnation": 2, "position": "1:1"}
        return {ACK: packed(sane | fields)}

    yield Damage("ack nowhere", ack_op(position="1"), ACK, "not a position")
    yield Damage("ack of no message", ack_op(batch_index=2, batch_size=2), ACK, "no message 2")
    yield Damage("ack up to no message", ack_op(batch_index=0, batch_size=2, batch_last=2), ACK, "last message 2")
    yield Damage("ack that ends before", ack_op(batch_index=1, batch_size=3, batch_last=1), ACK, "last message 1")
    yield Damage("ack of a later incarnation", ack_op(incarnation=3), ACK, "which is at incarnation 2")
    yield from _group_damages()
    yield from _hold_damages()
    yield from _pulsar_schema_damages()
    index_entry = f"{paths.ACKS_INDEX}{paths.acks_by_subscription(SEGMENT, 's')}{ACK.removeprefix(paths.OPS)}"
    yield Damage("ack without entry", {index_entry: None}, ACK, "missing in its index")
    yield Damage("ack entry without op", {ACK: None}, index_entry, "no operation")

    def subscription(**fields: object) -> dict[str, bytes | None]:
        sane = {"incarnation": 2, "type": "shared", "initial": "latest", "created_ms": 1}
        return {SUBSCRIPTION: packed(sane | fields)}

    yield Damage("subscription gone", {SUBSCRIPTION: None}, MARK, "which is absent")
    yield Damage("subscription undecodable", {SUBSCRIPTION: b"7"}, SUBSCRIPTION, "cannot be read")
    yield Damage("subscription of no incarnation", subscription(incarnation=0), SUBSCRIPTION, "begin with 1")
    yield Damage("subscription from nowhere", subscription(starts={SEGMENT: "1:1"}), SUBSCRIPTION, "not a place")
    passed = subscription(acked={SEGMENT: [["1:3:0", "1:2:0"]]})
    yield Damage("subscription that has passed backwards", passed, SUBSCRIPTION, "not in order")
    lost = paths.subscription("public/default/none", "s")
    sane = subscription()[SUBSCRIPTION]
    yield Damage("subscription without topic", {lost: sane}, lost, "does not exist")
    yield Damage("subscription of nothing", {"/subscription/x": sane}, "/subscription/x", "malformed")
    yield Damage("cursor of an earlier incarnation", subscription(incarnation=1), MARK, "at incarnation 1")
    yield Damage("cursor nowhere", {MARK: packed({"before": "1:1"})}, MARK, "is not ledger:entry:index")
    touching = packed({"ranges": [["1:1:0", "1:2:0"], ["1:2:0", "1:3:0"]]})
    yield Damage("ranges that touch", {BUCKET: touching}, BUCKET, "overlap, touch")
    for what, counts in {
        "overlap": [["1:1:0", "1:3:0", 2], ["1:2:0", "1:4:0", 1]],
        "not ledger:entry:index": [["1:1", "1:3:0", 2]],
        "none that was delivered": [["1:1:0", "1:3:0", 0]],
    }.items():
        damaged = packed({"through": "1:9:0", "counts": counts})
        yield Damage(f"counts {what}", {DELIVERIES: damaged}, DELIVERIES, what)
    yield Damage("bucket undecodable", {BUCKET: b"[]"}, BUCKET, "cannot be read")
    elsewhere = paths.cursor_mark("nowhere", "s", 2)
    yield Damage("cursor without segment", {elsewhere: packed({"before": "1:1:0"})}, elsewhere, "does not exist")
    strange_cursor = paths.cursor("x", "s", 2) + "lease"
    yield Damage("cursor of another kind", {strange_cursor: b"{}"}, strange_cursor, "malformed")

    def outcome(txn_id: TxnId, **fields: object) -> dict[str, bytes | None]:
        return {paths.outcome(SEGMENT, txn_id): packed(fields)}

    path = paths.outcome(SEGMENT, COMMITTED)
    yield Damage("outcome undecodable", {path: b"-"}, path, "cannot be read")
    yield Damage(
        "outcome aborted of a committed one", outcome(COMMITTED, highest="1:1", aborted=True), path, "COMMITTED"
    )
    more = outcome(COMMITTED, highest="1:1", counted_writers=["z"])
    yield Damage("outcome of other writers", more, path, "counts other writers")
    yield Damage("outcome of nothing", outcome(COMMITTED, highest="1:1"), path, "either")
    nowhere = outcome(COMMITTED, highest="end", counted_writers=["w"])
    yield Damage("outcome nowhere", nowhere, path, "not a position")
    of_open_one = outcome(OPEN, highest="1:1", aborted=True)
    yield Damage("outcome of an open one", of_open_one, paths.outcome(SEGMENT, OPEN), "it is OPEN")
    stray = paths.outcome("nowhere", COLLECTED)
    yield Damage("outcome without segment", {stray: packed({"highest": "1:1", "aborted": True})}, stray, "not exist")
    yield Damage("state unknown", {"/segment-state/x/y/z": b""}, "/segment-state/x/y/z", "malformed")
    later = GcHorizon(revision=1 << 40).encode()
    yield Damage("horizon in the future", {horizon: later}, horizon, "in the future")
    yield Damage("horizon undecodable", {horizon: b""}, horizon, "cannot be read")

    name = paths.topic(TOPIC)
    yield Damage("topic gone", {name: None}, segment, "does not exist")
    yield Damage("topic undecodable", {name: b"[]"}, name, "cannot be read")
    unborn = packed({field: value for field, value in topic.items() if field != "created_ms"})
    yield Damage("topic that brokers cannot read", {name: unborn}, name, "created_ms")
    yield Damage("topic renamed", {name: packed(topic | {"name": "x"})}, name, "calls itself")
    yield Damage("topic would reuse an id", {name: packed(topic | {"next_segment": 1})}, name, "would be reused")
    twice = packed(topic | {"segments": [*SEGMENTS, SEGMENT], "next_segment": 3})
    yield Damage("topic lists one twice", {name: twice}, name, "is repeated")
    yield Damage("topic forgot a segment", {name: packed(topic | {"segments": SEGMENTS[1:]})}, segment, "not list it")
    yield Damage("topic without segment", {segment: None}, name, "does not exist")
    yield Damage("segments overlap", {segment: segment_value(range=[0, 0x8000])}, name, "overlap")
    yield Damage("segment undecodable", {segment: b"{}"}, segment, "topic: Field required")
    yield Damage("segment range", {segment: segment_value(range=[5, 4])}, segment, "empty")
    two = [{"id": 2, "storage": "b", "entries": 1}, {"id": 1, "storage": "b"}]
    yield Damage("ledgers out of order", {segment: segment_value(ledgers=two)}, segment, "not in order")
    unsealed = [{"id": number, "storage": "b"} for number in (1, 2, 3)]
    yield Damage("three unsealed ledgers", {segment: segment_value(ledgers=unsealed)}, segment, "not sealed")
    sealed = [{"id": 1, "storage": "b", "entries": 4}]
    of_one: dict[str, tuple[dict[str, object], str]] = {
        "indexed without a length": ({"entries": None, "hidden": 1}, "1 has an index of what is hidden in it, but no"),
        "rewritten without a length": ({"entries": None, "form": [1, 1]}, "1 has another form, but no final length"),
        "hidden without an index": ({"hidden_bytes": 1}, "1 bytes of ledger 1 are hidden, but no index"),
        "hidden where nothing is": ({"hidden_bytes": 1, "hidden": 0}, "1 bytes of ledger 1 are hidden, but no index"),
        "more hidden than there": ({"hidden_bytes": 9, "hidden": 1, "bytes": 8}, "are hidden, but it has 8"),
    }
    for what, (facts, problem) in of_one.items():
        yield Damage(what, {segment: segment_value(ledgers=[sealed[0] | facts])}, segment, problem)
    dropped = segment_value(ledgers=sealed, trimmed=sealed)
    yield Damage("ledger to be deleted", {segment: dropped}, segment, "listed, and to be deleted: [1]")
    endless = segment_value(state="sealed", ledgers=[{"id": 1, "storage": "b"}])
    yield Damage("sealed without a length", {segment: endless}, segment, "no final length")
    yield Damage("active with children", {segment: segment_value(children=[SEGMENTS[1]])}, segment, "two destinations")
    childless = segment_value(state="sealed", ledgers=sealed, children=["x"])
    yield Damage("child that is none", {segment: childless}, segment, "child x does not exist")
    orphan = segment_value(state="sealed", ledgers=sealed, children=[SEGMENTS[1]])
    yield Damage("child of somebody else", {segment: orphan}, segment, "does not name it as a parent")
    yield Damage("parent of somebody else", {segment: segment_value(parents=[SEGMENTS[1]])}, segment, "as a child")
    yield Damage("parent that is none", {segment: segment_value(parents=["x"])}, segment, "parent x does not exist")
    claim = {"other": SEGMENTS[1], "child": "x", "claimed_ms": 1}
    yield Damage("claimed alone", {segment: segment_value(merge=claim)}, segment, "which is not")
    snapshot = {"name": "3-opened", "chunks": 1, "through": 1}
    yield Damage("chunk missing", {segment: segment_value(dedup=snapshot)}, segment, "is missing")
    chunk = paths.dedup_chunk(SEGMENT, "3-opened", 1)
    whole = {segment: segment_value(dedup=snapshot), paths.dedup_chunk(SEGMENT, "3-opened", 0): b"{}", chunk: b"{}"}
    yield Damage("chunk too many", whole, chunk, "further one")
    lost = paths.dedup_chunk("x", "3-opened", 1)
    yield Damage("chunk without segment", {lost: b"{}"}, lost, "does not exist")
    yield Damage("chunk key", {lost[:-1]: b"{}"}, lost[:-1], "malformed")
    yield Damage("trimmed to nowhere", {segment: segment_value(first_position="x")}, segment, "`first_position`")
    yield Damage("owner undecodable", {owner: b"x"}, owner, "cannot be read")
    zero = packed({"broker": "b", "url": "u", "generation": 0})
    yield Damage("owner of generation zero", {owner: zero}, owner, "begin with 1")
    yield Damage("owner without segment", {segment: None}, owner, "does not exist")

    yield Damage("unknown key", {"/foreign/1": b""}, "/foreign/1", "not belong to any part of the layout")
    yield Damage(
        "unknown index", {"/idx/by-color/red": b""}, "/idx/by-color/red", "not belong to any part of the layout"
    )
    yield Damage("cursor of nobody", {"/cursor//s/0": b"{}"}, "/cursor//s/0", "malformed")


async def inflict(store: MetadataStore, damage: Damage) -> None:
    batch = Batch()  # without indexes: nothing moves along
    for key, value in damage.puts.items():
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
    await store.apply(batch)


@pytest.mark.parametrize("damage", [pytest.param(damage, id=damage.name) for damage in damages()])
async def test_damage_is_found(store: MemoryStore, damage: Damage) -> None:
    before = (await store.scan("/")).records
    await inflict(store, damage)
    after = (await store.scan("/")).records
    assert before != after, "the damage did none"
    found = await findings(store)
    matching = [finding for finding in found if finding.key == damage.at and damage.says in finding.problem]
    assert matching, found
    assert all(finding.action.endswith(".") for finding in found)
    assert (await store.scan("/")).records == after, "a check changes nothing"


async def test_an_undecodable_record_is_reported_once(store: MemoryStore) -> None:
    """Its neighbours cannot be judged, so they are not accused."""
    await inflict(store, Damage("", {paths.header(OPEN): b"{"}, "", ""))
    (finding,) = await findings(store)
    assert finding.key == paths.header(OPEN)


# -- while it is served --------------------------------------------------------------------------------------------


class _Busy(MemoryStore):
    """Lets the writers run before every read."""

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        await asyncio.sleep(0)
        return await super().get_many(wanted)

    async def range(
        self, start: str, end: str, *, limit: int = 0, reverse: bool = False, keys_only: bool = False
    ) -> RangeResult:
        await asyncio.sleep(0)
        return await super().range(start, end, limit=limit, reverse=reverse, keys_only=keys_only)


async def _live(store: MetadataStore, worker: int) -> None:
    """Transactions from begin to collection, without end."""
    ids = iter(await store.lease_ids(paths.id_sequence(worker), 1_000_000))
    while True:
        txn_id = TxnId(worker, next(ids))
        await begin_open(store, txn_id)
        for counter in range(3):
            await write(store, txn_id, counter)
            await store.apply((await read(store, txn_id)).keep_alive(store.batch(), 2_000 + counter, 1_500))
        await decide(store, txn_id, TxnState.COMMITTED)
        for record in (await store.scan(paths.ops_of_transaction(txn_id))).records:
            await store.apply(store.batch().remove(record))
        await collect(store, txn_id)


async def test_a_store_in_use_is_clean_and_its_damage_is_found() -> None:
    """No finding comes from reading at several revisions."""
    store = _Busy(INDEXES)
    await fill(store)
    before = await store.current_revision()
    workers = [asyncio.create_task(_live(store, number)) for number in range(1, 4)]
    try:
        for page in (20, 50, 200):  # smaller pages would be read more slowly than these writers begin
            for _ in range(5):
                assert await findings(store, page) == []
        await inflict(store, Damage("", {paths.deadline_entry(1_000, OPEN): None}, "", ""))
        assert [finding.key for finding in await findings(store, 20)] == [paths.header(OPEN)]
        assert await store.current_revision() > before + 500
        assert not any(worker.done() for worker in workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


# -- on the other backends -----------------------------------------------------------------------------------------


@pytest.fixture(params=["etcd", "sqlite", "zookeeper"])
def url(request: pytest.FixtureRequest) -> str:
    return fresh_url(request, request.param)


async def test_another_process_looks_while_one_serves(url: str, store: MemoryStore) -> None:
    serving = await open_store(url)
    await fill(serving)
    looking = await open_store_to_read(url)
    try:
        assert await findings(looking, 20) == []
        expected = [(record.key, record.value) for record in (await store.scan("/")).records]
        seen = [(record.key, record.value) async for record in dump(looking, page=9)]
        assert [pair for pair in seen if pair[0] != paths.GC_HORIZON] == [
            pair for pair in expected if pair[0] != paths.GC_HORIZON
        ]
        await inflict(serving, Damage("", {paths.deadline_entry(1_000, OPEN): None}, "", ""))
        assert [finding.key for finding in await findings(looking)] == [paths.header(OPEN)]
    finally:
        await looking.close()
        await serving.close()


async def test_a_store_in_memory_cannot_be_looked_at() -> None:
    with pytest.raises(InvalidStoreUrl, match="another process"):
        await open_store_to_read("memory://")


def test_damages_have_names_of_their_own() -> None:
    names = [damage.name for damage in damages()]
    assert len(set(names)) == len(names)
