"""Goal: what is stored is what people read with `etcdctl`, and older readers survive newer writers.

Method: exact bytes, round trips, and values with fields nobody knows.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from metastore.txn import paths
from metastore.txn.records.groups import CommittedOffset, GroupRecord
from metastore.txn.records.json_record import JsonRecord
from metastore.txn.records.operations import AckOp, OffsetOp, Outcome, WriteOp, decode_op
from metastore.txn.records.processes import BrokerRecord, CoordinatorRecord, Incarnation
from metastore.txn.records.segments import (
    DedupChunk,
    DedupRow,
    DedupSnapshot,
    LedgerRecord,
    MergeClaim,
    OwnerRecord,
    SegmentRecord,
)
from metastore.txn.records.subscriptions import AckedBucket, DeliveryCountsRecord, MarkDelete, SubscriptionRecord
from metastore.txn.records.topics import TopicRecord
from metastore.txn.records.transactions import GcHorizon, Header, Lease, Prepared, RememberedWriters, TransactionKey
from metastore.txn.states import ExpiredBy, TxnState, may_become
from metatxn.wire.ids import TxnId

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
IDS = st.builds(TxnId, st.integers(0, 2**16 - 1), st.integers(0, 2**112 - 1))

SAMPLES: list[JsonRecord] = [
    Header(state=TxnState.OPEN, timeout_ms=2, created_ms=1),
    Header(
        state=TxnState.ABORTED,
        timeout_ms=2,
        created_ms=1,
        finalized_ms=3,
        owner="me",
        key="k",
        epoch=0,
        version=7,
        writers=("a", "b"),
        reason="é",
        expired_by=ExpiredBy.TIMEOUT,
        properties={"a": "b"},
    ),
    Lease(deadline_ms=5, renewed_ms=3, renewals=2),
    Prepared(prepared_ms=1, deadline_ms=2),
    RememberedWriters(writers=()),
    WriteOp(segment="segment://t/n/x/0-1-0", after="1:2", count=3, writer="w", sequence=4),
    AckOp(segment="s", subscription="sub", incarnation=1, position="1:2", batch_index=0, cumulative=True, writer="w"),
    AckOp(segment="s", subscription="sub", incarnation=1, position="1:2", batch_index=0, batch_size=9, batch_last=3),
    OffsetOp(segment="s", group="g", offset=7, leader_epoch=1, metadata="é"),
    GroupRecord(generation=3, updated_ms=4),
    CommittedOffset(offset=7, committed_ms=4, leader_epoch=1, metadata="é"),
    TransactionKey(epoch=3, updated_ms=4, txn_id="0" * 32, last_version=1, session="s", fenced_sessions=("r",)),
    Outcome(highest="1:2", counted_writers=()),
    GcHorizon(revision=9),
]


@pytest.mark.parametrize("record", SAMPLES, ids=lambda record: type(record).__name__)
def test_round_trip(record: JsonRecord) -> None:
    assert type(record).decode(record.encode()) == record


OBJECTS = [record for record in SAMPLES if not isinstance(record, RememberedWriters)]


@pytest.mark.parametrize("record", OBJECTS, ids=lambda record: type(record).__name__)
def test_unknown_fields_are_ignored(record: JsonRecord) -> None:
    newer = json.loads(record.encode()) | {"from_the_future": {"x": [1]}}
    assert type(record).decode(json.dumps(newer).encode()) == record


def test_values_are_compact_json_without_absent_fields() -> None:
    header = Header(state=TxnState.OPEN, timeout_ms=2, created_ms=1)
    assert header.encode() == b'{"state":"OPEN","timeout_ms":2,"created_ms":1}'
    assert TransactionKey(epoch=3, updated_ms=4).encode() == b'{"epoch":3,"updated_ms":4}'


SEGMENT = SegmentRecord(
    topic="t/n/x",
    range=(0, 1),
    storage="s",
    ledgers=(LedgerRecord(id=1, storage="s", entries=4),),
    planned=2,
    dedup=DedupSnapshot(name="d", chunks=1, through=1),
    merge=MergeClaim(other="o", child="c", claimed_ms=3),
)
STORED: list[tuple[JsonRecord, str]] = [
    (
        TopicRecord(name="t/n/x", segments=("segment://t/n/x/0-1-0",), next_segment=1, created_ms=2),
        '{"name":"t/n/x","segments":["segment://t/n/x/0-1-0"],"next_segment":1,"created_ms":2}',
    ),
    (
        SEGMENT,
        '{"topic":"t/n/x","range":[0,1],"storage":"s","state":"active","parents":[],"children":[],'
        '"ledgers":[{"id":1,"storage":"s","entries":4}],"first_position":"0:-1","trimmed":[],"planned":2,'
        '"dedup":{"name":"d","chunks":1,"through":1},"merge":{"other":"o","child":"c","claimed_ms":3}}',
    ),
    (OwnerRecord(broker="b", url="u", generation=1), '{"broker":"b","url":"u","generation":1}'),
    (
        DedupChunk(rows=(DedupRow(producer="p", runs=((1, 2, 1, 3, 4, ((0, 1),)), (3, 1, 1, 4, 0, None))),)),
        '{"rows":[{"producer":"p","runs":[[1,2,1,3,4,[[0,1]]],[3,1,1,4,0,null]]}]}',
    ),
    (
        SubscriptionRecord(
            incarnation=1,
            type="shared",
            initial="latest",
            created_ms=2,
            starts={"s": "1:2:0"},
            acked={"s": (("1:3:0", "1:4:0"),)},
        ),
        '{"incarnation":1,"type":"shared","initial":"latest","created_ms":2,"starts":{"s":"1:2:0"},'
        '"acked":{"s":[["1:3:0","1:4:0"]]}}',
    ),
    (MarkDelete(before="1:2:0"), '{"before":"1:2:0"}'),
    (AckedBucket(ranges=(("1:2:0", "1:3:0"),)), '{"ranges":[["1:2:0","1:3:0"]]}'),
    (
        DeliveryCountsRecord(through="1:9:0", counts=(("1:2:0", "1:3:0", 4),)),
        '{"through":"1:9:0","counts":[["1:2:0","1:3:0",4]]}',
    ),
    (CoordinatorRecord(url="u", coordinator_id=3), '{"url":"u","coordinator_id":3}'),
    (BrokerRecord(url="u", storage="s"), '{"url":"u","storage":"s"}'),
    (Incarnation(id="i", begun_ms=1, earlier=("h",)), '{"id":"i","begun_ms":1,"earlier":["h"]}'),
]


@pytest.mark.parametrize(("record", "stored"), STORED)
def test_a_store_written_before_opens(record: JsonRecord, stored: str) -> None:
    """The bytes that the version before wrote, and would read."""
    assert record.encode() == stored.encode()
    assert type(record).decode(stored.encode()) == record


def test_remembered_writers_are_a_plain_list() -> None:
    """DESIGN §4."""
    assert RememberedWriters(writers=("w1", "w2")).encode() == b'["w1","w2"]'
    for value in (b'{"writers":["w1"]}', b"[1]", b""):
        with pytest.raises(ValueError):
            RememberedWriters.decode(value)


def test_no_writers_is_not_all_writers() -> None:
    header = Header(state=TxnState.COMMITTED, timeout_ms=2, created_ms=1, finalized_ms=3, writers=())
    assert Header.decode(header.encode()).writers == ()
    assert Header.decode(header.model_copy(update={"writers": None}).encode()).writers is None


def test_operations_are_told_apart_by_kind() -> None:
    write = WriteOp(segment="s", after="1:2", count=3)
    ack = AckOp(segment="s", subscription="sub", incarnation=1, position="1:2")
    assert decode_op(write.encode()) == write
    assert decode_op(ack.encode()) == ack
    assert decode_op(b'{"kind":"write","segment":"s","after":"1:2","count":3,"new":1}') == write
    with pytest.raises(ValidationError):
        decode_op(b'{"kind":"seal","segment":"s"}')


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b'{"state":"DONE","timeout_ms":1,"created_ms":1}', b"\xff"])
def test_a_damaged_header_is_an_error(value: bytes) -> None:
    with pytest.raises(ValueError):
        Header.decode(value)


# -- states ----------------------------------------------------------------------------------------------------


def test_two_transitions_and_no_more() -> None:
    allowed = {(one, other) for one in TxnState for other in TxnState if may_become(one, other)}
    assert allowed == {(TxnState.OPEN, TxnState.COMMITTED), (TxnState.OPEN, TxnState.ABORTED)}
    assert [state for state in TxnState if state.final] == [TxnState.COMMITTED, TxnState.ABORTED]


# -- ids -------------------------------------------------------------------------------------------------------


@given(IDS)
def test_an_id_round_trip(txn_id: TxnId) -> None:
    assert TxnId.parse(str(txn_id)) == txn_id
    assert len(str(txn_id)) == 32


@given(IDS, IDS)
def test_text_order_is_numeric_order(one: TxnId, other: TxnId) -> None:
    assert (str(one) < str(other)) == (one < other)


def test_the_coordinator_has_the_top_16_bits() -> None:
    assert str(TxnId(0xABCD, 1)) == "abcd" + "0" * 27 + "1"


@pytest.mark.parametrize(
    "text", ["", "0" * 31, "0" * 33, "A" * 32, "g" * 32, " " + "0" * 31, "٠" * 32, "0" * 32 + "\n"]
)
def test_malformed_ids(text: str) -> None:
    with pytest.raises(ValueError, match="32 lower-case hexadecimal digits"):
        TxnId.parse(text)


@pytest.mark.parametrize(("coordinator", "sequence"), [(-1, 1), (2**16, 1), (0, -1), (0, 2**112)])
def test_ids_out_of_range_are_a_programming_error(coordinator: int, sequence: int) -> None:
    with pytest.raises(AssertionError):
        TxnId(coordinator, sequence)


# -- paths -----------------------------------------------------------------------------------------------------


def test_the_public_layout() -> None:
    txn = TxnId(1, 2)
    text = str(txn)
    segment = "segment://t/n/x/0-1-0"
    escaped = "segment%3A%2F%2Ft%2Fn%2Fx%2F0-1-0"
    assert paths.header(txn) == f"/txn/{text}"
    assert paths.lease(txn) == f"/txn-lease/{text}"
    assert paths.remembered_writers(txn) == f"/txn-writers/{text}"
    assert paths.prepared(txn) == f"/txn-prepared/{text}"
    assert paths.write_op(txn, segment, 3, 4) == f"/txn-op/{text}/{escaped}:w:{3:020d}:{4:020d}"
    assert paths.writes_by_segment(segment) == f"{escaped}/"
    assert paths.deadline_entry(5, txn) == f"/idx/txn-by-deadline/{5:020d}/{text}"
    assert paths.final_state_entry(TxnState.COMMITTED, 6, text) == f"/idx/txn-by-final-state/COMMITTED/{6:020d}/{text}"
    assert paths.outcome(segment, txn) == f"/segment-state/{escaped}/outcome/{text}"
    assert paths.segment_owner(segment) == f"/segment-owner/{escaped}"
    assert paths.transaction_key("me", "a/b") == "/txn-key/me&a%2Fb"
    assert paths.id_sequence(1) == f"/txn-seq/{1:020d}"
    assert paths.txn_id_of_header(paths.header(txn)) == txn


@given(TEXT, TEXT, st.integers(0, 10**6), st.integers(0, 10**6), IDS)
def test_operations_of_one_segment_are_one_prefix(
    segment: str, other: str, generation: int, counter: int, txn: TxnId
) -> None:
    key = paths.write_op(txn, segment, generation, counter)
    assert paths.op_key_parts(key) == (str(txn), key.rpartition("/")[2])
    assert key.startswith(paths.ops_of_transaction(txn))
    assert key.startswith(paths.write_ops_of_segment(txn, other)) == (segment == other)


@given(st.none() | TEXT.filter(bool), TEXT)
def test_a_transaction_key_round_trip(owner: str | None, key: str) -> None:
    assert paths.parse_transaction_key(paths.transaction_key(owner, key)) == (owner, key)
