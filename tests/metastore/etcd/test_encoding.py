"""Goal: what is encoded by hand is, byte for byte in meaning, what the message classes say.

Method: for any keys, values and revisions, each encoded field is parsed as a part of a request and compared with the
same request built from messages. That etcd reads it so is held by every other test of this folder.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metastore.backends import etcd_encoding as encoding
from metastore.backends.etcd_stubs import (
    Compare,
    DeleteRangeRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
)

# Lengths around each step of the length prefix: 1, 2 and 3 bytes.
TEXTS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([127, 128, 129, 4_095, 4_096, 16_383, 16_384, 70_000]).map(lambda size: b"k" * size),
)
REVISIONS = st.integers(1, 2**63 - 1)


@given(TEXTS, TEXTS, REVISIONS, st.integers(0, 2**63 - 1))
def test_compares_are_those_of_the_messages(key: bytes, end: bytes, revision: int, version: int) -> None:
    made = TxnRequest.FromString(
        encoding.is_absent(key)
        + encoding.is_empty(key, end)
        + encoding.is_first(key)
        + encoding.is_version(key, version)
        + encoding.is_at(key, revision)
    )
    assert made == TxnRequest(
        compare=[
            Compare(target=Compare.CREATE, key=key, create_revision=0),
            Compare(target=Compare.CREATE, key=key, range_end=end, create_revision=0),
            Compare(target=Compare.VERSION, key=key, version=1),
            Compare(target=Compare.VERSION, key=key, version=version),
            Compare(target=Compare.MOD, key=key, mod_revision=revision),
        ]
    )


@given(TEXTS, TEXTS, TEXTS)
def test_operations_are_those_of_the_messages(key: bytes, end: bytes, value: bytes) -> None:
    fields = (
        encoding.put(key, value)
        + encoding.delete(key)
        + encoding.delete_range(key, end)
        + encoding.else_read(key)
        + encoding.else_read_first(key, end)
    )
    expected = TxnRequest(
        success=[
            RequestOp(request_put=PutRequest(key=key, value=value)),
            RequestOp(request_delete_range=DeleteRangeRequest(key=key)),
            RequestOp(request_delete_range=DeleteRangeRequest(key=key, range_end=end)),
        ],
        failure=[
            RequestOp(request_range=RangeRequest(key=key)),
            RequestOp(request_range=RangeRequest(key=key, range_end=end, limit=1)),
        ],
    )
    assert TxnRequest.FromString(fields) == expected
    nested = TxnRequest(success=[RequestOp(request_txn=expected)])
    assert TxnRequest.FromString(encoding.txn(fields)) == nested


@given(TEXTS, TEXTS)
def test_reads_are_those_of_the_messages(key: bytes, end: bytes) -> None:
    span = RangeRequest(key=key, range_end=end, limit=50)
    made = TxnRequest.FromString(encoding.then_read(key) + encoding.then_range(span.SerializeToString()))
    assert made == TxnRequest(success=[RequestOp(request_range=RangeRequest(key=key)), RequestOp(request_range=span)])


def test_an_empty_transaction_is_one_all_the_same() -> None:
    made = TxnRequest.FromString(encoding.txn(b""))
    assert made.success[0].WhichOneof("request") == "request_txn"
