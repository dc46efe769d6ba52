"""Goal: the messages that the shim loads are those of etcd's protocol.

Method: names and numbers of every field that the store sets or reads, as etcd's `rpc.proto` and `kv.proto` have them.
A wrong number would not fail loudly: the server skips fields that it does not know.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from google.protobuf.message import Message

from metastore.backends import etcd_stubs as stubs

FIELDS: dict[type[Message], dict[str, int]] = {
    stubs.KeyValue: {"key": 1, "create_revision": 2, "mod_revision": 3, "version": 4, "value": 5, "lease": 6},
    stubs.Event: {"type": 1, "kv": 2},
    stubs.RangeRequest: {
        "key": 1,
        "range_end": 2,
        "limit": 3,
        "revision": 4,
        "sort_order": 5,
        "sort_target": 6,
        "keys_only": 8,
    },
    stubs.RangeResponse: {"header": 1, "kvs": 2, "more": 3},
    stubs.PutRequest: {"key": 1, "value": 2, "lease": 3},
    stubs.DeleteRangeRequest: {"key": 1, "range_end": 2},
    stubs.RequestOp: {"request_range": 1, "request_put": 2, "request_delete_range": 3, "request_txn": 4},
    stubs.ResponseOp: {"response_range": 1, "response_txn": 4},
    stubs.Compare: {
        "result": 1,
        "target": 2,
        "key": 3,
        "version": 4,
        "create_revision": 5,
        "mod_revision": 6,
        "range_end": 64,
    },
    stubs.TxnRequest: {"compare": 1, "success": 2, "failure": 3},
    stubs.TxnResponse: {"header": 1, "succeeded": 2, "responses": 3},
    stubs.CompactionRequest: {"revision": 1, "physical": 2},
    stubs.StatusResponse: {"header": 1, "version": 2, "dbSize": 3, "errors": 8},
    stubs.WatchRequest: {"create_request": 1},
    stubs.WatchCreateRequest: {"key": 1, "range_end": 2, "start_revision": 3, "fragment": 8},
    stubs.WatchResponse: {
        "header": 1,
        "created": 3,
        "canceled": 4,
        "compact_revision": 5,
        "cancel_reason": 6,
        "fragment": 7,
        "events": 11,
    },
    stubs.LeaseGrantRequest: {"TTL": 1, "ID": 2},
    stubs.LeaseKeepAliveRequest: {"ID": 1},
    stubs.LeaseKeepAliveResponse: {"ID": 2, "TTL": 3},
    stubs.LeaseRevokeRequest: {"ID": 1},
    stubs.MemberListResponse: {"header": 1, "members": 2},
    stubs.Member: {"ID": 1, "clientURLs": 4},
    stubs.ResponseHeader: {"cluster_id": 1, "member_id": 2, "revision": 3},
    stubs.AuthenticateRequest: {"name": 1, "password": 2},
    stubs.AuthenticateResponse: {"token": 2},
}


@pytest.mark.parametrize("message", FIELDS, ids=lambda message: message.__name__)
def test_fields_have_the_numbers_of_the_protocol(message: type[Message]) -> None:
    known = {field.name: field.number for field in message.DESCRIPTOR.fields}
    assert {name: known.get(name) for name in FIELDS[message]} == FIELDS[message]


def test_enums_have_the_numbers_of_the_protocol() -> None:
    assert (stubs.Compare.EQUAL, stubs.Compare.VERSION, stubs.Compare.CREATE, stubs.Compare.MOD) == (0, 0, 1, 2)
    assert (stubs.Event.PUT, stubs.Event.DELETE) == (0, 1)
    assert (stubs.RangeRequest.KEY, stubs.RangeRequest.DESCEND) == (0, 2)


def test_etcd3_itself_can_be_imported_behind_it() -> None:
    program = "import metastore.backends.etcd_stubs, etcd3; etcd3.etcdrpc.TxnRequest(); etcd3.Etcd3Client"
    subprocess.run([sys.executable, "-c", program], check=True)
