"""Many transactions in one call (CONTRACT, `POST /v1/txns/batch`).

Method: every batch is compared with the same calls made one by one on another store, and the requests that a real etcd
has served are counted by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from coordinator.answers import Members
from coordinator.batches import TOGETHER, Done, ItemAnswer, run_batch
from coordinator.service import CoordinatorService
from coordinator.transactions import MAX_WRITERS_BYTES, Transactions, answered
from metastore.backends.etcd import EtcdStore
from metastore.backends.memory import MemoryStore
from metastore.errors import InvalidBatch, StoreUnavailable
from metastore.txn.store import INDEXES
from metatxn.wire import errors
from metatxn.wire.coordinator import BatchItem, BatchRequest
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from metatxn.wire.problems import MEDIA_TYPE
from tests.coordinator.conftest import FakeClock, id_of
from tests.coordinator.stores import Fault, FaultyStore, unavailable
from tests.coordinator.test_transactions import begin
from tests.servers import EtcdServer

UNKNOWN = "0" * 28 + "beef"
Item = dict[str, Any]


@pytest.fixture
async def other_http(clock: FakeClock) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a coordinator on a store of its own."""
    store = MemoryStore(INDEXES)
    transport = httpx.ASGITransport(app=CoordinatorService(store, clock=clock).app)
    async with httpx.AsyncClient(transport=transport, base_url="http://other") as client:
        yield client
    await store.close()


async def batch(http: httpx.AsyncClient, items: list[Item]) -> list[dict[str, Any]]:
    response = await http.post("/v1/txns/batch", json={"items": items})
    assert response.status_code == 200, response.text
    answers: list[dict[str, Any]] = response.json()["items"]
    assert len(answers) == len(items)
    return answers


async def one_by_one(http: httpx.AsyncClient, items: list[Item]) -> list[dict[str, Any]]:
    """The same items as single calls, in the form of a batch's answer."""
    answers = []
    for item in items:
        body = {name: value for name, value in item.items() if name not in ("op", "txn_id")}
        path = "/v1/txns" if item["op"] == "begin" else f"/v1/txns/{item['txn_id']}/{item['op']}"
        response = await http.post(path, json=body)
        kind = "problem" if response.headers["content-type"] == MEDIA_TYPE else "txn"
        answers.append({"status": response.status_code, kind: response.json()})
    return answers


def parsed(items: list[Item]) -> list[BatchItem]:
    return BatchRequest.model_validate({"items": items}).items


def without_revisions(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Side by side, items may be applied in another order; everything else must be equal."""
    for answer in answers:
        answer.get("txn", {}).pop("revision", None)
    return answers


async def prepared_world(http: httpx.AsyncClient) -> None:
    """Transactions 1 to 6: plain, kept alive, with writers, prepared, under a key, committed."""
    for key in "kn":
        assert (await http.post(f"/v1/transaction-keys/{key}/connect", json={"epoch": -1})).json()["epoch"] == 0
    for fields in ({}, {}, {}, {}, {"transaction_key": "k", "epoch": 0, "version": 1}, {}):
        assert (await http.post("/v1/txns", json=fields)).status_code == 201
    for number, verb, body in (
        (2, "keep-alive", {"timeout_ms": 9_000}),
        (3, "writers", {"add": ["w"]}),
        (4, "prepare", {}),
        (6, "commit", {}),
    ):
        assert (await http.post(f"/v1/txns/{number:032x}/{verb}", json=body)).status_code == 200


def end(op: str, number: int, **fields: object) -> Item:
    return {"op": op, "txn_id": f"{number:032x}", **fields}


def under(key: str, version: int) -> Item:
    return {"op": "begin", "transaction_key": key, "epoch": 0, "version": version}


STORIES: dict[str, list[Item]] = {
    "commits of every kind": [end("commit", number) for number in range(1, 7)],
    "aborts of every kind": [end("abort", number, reason="r") for number in range(1, 7)],
    "writers": [end("commit", 1, writers=["b", "a"]), end("commit", 3, writers=[]), end("commit", 6, writers=["x"])],
    "the same transaction again": [end("commit", 1), end("abort", 1), end("commit", 1), end("commit", 1, writers=[])],
    "the other way first": [end("abort", 2), end("commit", 2), end("abort", 2)],
    "unknown among known": [end("commit", 1), end("commit", 0xBEEF), end("abort", 2)],
    "commit, then begin under its key": [end("commit", 5), under("k", 2)],
    "begin under its key, then commit": [under("k", 2), end("commit", 5)],
    "versions of one key": [under("n", version) for version in (1, 1, 2, 2)],
    "a stale epoch": [{"op": "begin", "transaction_key": "k", "epoch": 7}, {"op": "begin", "timeout_ms": 5}],
    "nothing": [],
}


@pytest.mark.parametrize("story", STORIES)
async def test_a_batch_answers_as_the_single_calls_would(
    http: httpx.AsyncClient, other_http: httpx.AsyncClient, story: str
) -> None:
    """In the same order, with the same states, problems and identifiers."""
    await prepared_world(http)
    await prepared_world(other_http)
    expected = without_revisions(await one_by_one(other_http, STORIES[story]))
    assert without_revisions(await batch(http, STORIES[story])) == expected
    for number in range(1, 10):
        path = f"/v1/txns/{number:032x}"
        there, here = (await other_http.get(path)).json(), (await http.get(path)).json()
        assert {**here, "revision": 0} == {**there, "revision": 0}


async def test_a_committed_version_is_not_begun_again(http: httpx.AsyncClient) -> None:
    """200 instead of 201, as by itself."""
    await http.post("/v1/transaction-keys/k/connect", json={"epoch": -1})
    again = under("k", 1)
    (first,) = await batch(http, [again])
    assert first["status"] == 201
    open_, done, repeated = await batch(http, [again, {"op": "commit", "txn_id": first["txn"]["txn_id"]}, again])
    assert (open_["status"], open_["txn"]) == (200, first["txn"])
    assert (done["status"], done["txn"]["state"]) == (200, "COMMITTED")
    assert (repeated["status"], repeated["txn"]["already_committed"]) == (200, True)


async def test_a_newer_connection_commits_a_prepared_transaction(http: httpx.AsyncClient) -> None:
    """DESIGN §5.15: its epoch is old, and the key still holds it."""
    await http.post("/v1/transaction-keys/k/connect", json={"epoch": -1})
    txn_id = (await http.post("/v1/txns", json={"transaction_key": "k", "epoch": 0})).json()["txn_id"]
    await http.post(f"/v1/txns/{txn_id}/prepare")
    await http.post("/v1/transaction-keys/k/connect", json={"epoch": -1})
    (answer,) = await batch(http, [{"op": "commit", "txn_id": txn_id}])
    assert (answer["status"], answer["txn"]["state"]) == (200, "COMMITTED")


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"op": "end"}, "items.1.op"),
        ({}, "items.1.op"),
        ({"op": None}, "items.1.op"),
        ({"op": "commit"}, "items.1.txn_id"),
        ({"op": "commit", "txn_id": "x"}, "items.1.txn_id"),
        ({"op": "abort", "txn_id": 5}, "items.1.txn_id"),
        ({"op": "abort", "txn_id": UNKNOWN, "writers": []}, "items.1.writers"),
        ({"op": "commit", "txn_id": UNKNOWN, "writers": ["a", ""]}, "items.1.writers.1"),
        ({"op": "commit", "txn_id": UNKNOWN, "writers": [f"{n:05}" * 50 for n in range(2_000)]}, "items.1.writers"),
        ({"op": "begin", "timeout_ms": 0}, "items.1.timeout_ms"),
        ({"op": "begin", "properties": {"x": 1}}, "items.1.properties.x"),
        ({"op": "begin", "properties": {"begin": 1}}, "items.1.properties.begin"),
        ({"op": "begin", "epoch": 1}, "items.1.epoch"),
        ({"op": "begin", "transaction_key": "k", "version": 1}, "items.1.epoch"),
        ({"op": "begin", "transaction_key": "a&b"}, "items.1.transaction_key"),
        ([], "items.1"),
        (None, "items.1"),
    ],
)
async def test_one_bad_item_refuses_the_batch_and_changes_nothing(
    http: httpx.AsyncClient, store: FaultyStore, bad: object, field: str
) -> None:
    """CONTRACT: bad input names the field and never changes anything."""
    if isinstance(bad, dict) and len(bad.get("writers") or ()) > 1_000:
        assert len(json.dumps(bad["writers"])) > MAX_WRITERS_BYTES
    revision = await store.current_revision()
    response = await http.post("/v1/txns/batch", json={"items": [{"op": "begin"}, bad, {"op": "begin"}]})
    assert (response.status_code, response.json()["code"]) == (422, ErrorCode.INVALID_ARGUMENT), response.text
    assert response.json()["field"] == field
    assert await store.current_revision() == revision


async def test_more_than_a_thousand_items_are_refused(http: httpx.AsyncClient, store: FaultyStore) -> None:
    revision = await store.current_revision()
    for items in ([{"op": "begin"}] * 1_001, "all", None):
        response = await http.post("/v1/txns/batch", json={"items": items})
        assert (response.status_code, response.json()["field"]) == (422, "items")
    assert await store.current_revision() == revision


async def test_each_item_fails_by_itself(http: httpx.AsyncClient, store: FaultyStore) -> None:
    """A store error is one item's problem, with what is known of that item."""
    (begun,) = await batch(http, [{"op": "begin"}])
    store.faults.extend([Fault.UNAVAILABLE, Fault.NONE, Fault.LOSE_REPLY])
    items = [{"op": "commit", "txn_id": begun["txn"]["txn_id"]}, {"op": "begin"}, {"op": "begin"}]
    failed, first, second = await batch(http, items)
    assert (failed["status"], failed["problem"]["code"], failed["problem"]["definite"]) == (
        503,
        "STORE_UNAVAILABLE",
        True,
    )
    assert (first["status"], second["status"]) == (201, 201)


async def test_a_store_that_cannot_be_read_refuses_the_batch_before_anything_happens(
    http: httpx.AsyncClient, store: FaultyStore
) -> None:
    """`definite: true` is a promise: no begin of the same batch may have been applied."""
    store.before_reads.append(unavailable)
    items = [{"op": "begin"}, {"op": "commit", "txn_id": TxnId(0, 1)}]
    response = await http.post("/v1/txns/batch", json={"items": items})
    assert (response.status_code, response.json()["definite"]) == (503, True)
    assert store.sent == []


async def test_what_happens_between_the_common_read_and_a_commit_is_not_overlooked(
    transactions: Transactions, store: FaultyStore
) -> None:
    """DESIGN §5.1: a decision checks the records that were presumed absent. Writers are remembered meanwhile, and the
    commit counts them."""
    txn_id = await begin(transactions)
    store.before_applies.append(lambda: transactions.add_writers(txn_id, ["late"]))
    (txn,) = done(await run_batch(transactions, parsed([end("commit", txn_id.sequence)])))
    assert (txn["state"], txn["writers"]) == ("COMMITTED", ["late"])


# -- plain items in one apply ------------------------------------------------------------------------------------------


async def opened(transactions: Transactions, count: int) -> list[TxnId]:
    return [await begin(transactions) for _ in range(count)]


def done(answers: list[ItemAnswer]) -> list[Members]:
    """Those that succeeded."""
    return [answer.txn for answer in answers if isinstance(answer, Done)]


def commits(txn_ids: list[TxnId]) -> list[BatchItem]:
    return parsed([end("commit", txn_id.sequence) for txn_id in txn_ids])


async def test_plain_items_share_an_apply_and_begins_read_nothing(
    transactions: Transactions, store: FaultyStore
) -> None:
    begun = await run_batch(transactions, parsed([{"op": "begin"}] * (2 * TOGETHER)))
    what = "the incarnation, a block of ids (read and moved), and two applies"
    assert len(store.sent) == 3 and store.requests == 5, what
    txn_ids = [id_of(header) for header in done(begun)]
    store.sent.clear()
    store.requests = 0
    decided = done(await run_batch(transactions, commits(txn_ids)))
    assert len(store.sent) == store.requests == 2, "two applies: what began here is presumed"
    assert decided == [await transactions.get(txn_id) for txn_id in txn_ids]


async def test_what_is_too_much_for_one_apply_goes_in_halves(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore
) -> None:
    """Down to the one item that is too much by itself, which alone is refused."""
    truth.max_batch_bytes = 4_000
    items: list[Item] = [{"op": "begin"}] * (TOGETHER - 1)
    items.insert(7, {"op": "begin", "properties": {str(n): "x" * 1_000 for n in range(4)}})
    begun = await run_batch(transactions, parsed(items))
    assert isinstance(begun.pop(7), InvalidBatch)
    txn_ids = [id_of(header) for header in done(begun)]
    assert len(set(txn_ids)) == TOGETHER - 1
    store.sent.clear()
    assert [header["state"] for header in done(await run_batch(transactions, commits(txn_ids)))] == ["COMMITTED"] * (
        TOGETHER - 1
    )
    assert len(store.sent) < TOGETHER, "parts, not one by one"


async def test_items_that_share_an_apply_may_differ(transactions: Transactions, store: FaultyStore) -> None:
    """What is made once for items that are alike belongs to no other one."""
    fields: list[Item] = [{}, {}, {"timeout_ms": 7}, {"owner": "a"}, {"properties": {"n": "1"}}, {"timeout_ms": 7}]
    begun = done(await run_batch(transactions, parsed([{"op": "begin", **some} for some in fields])))
    ids = [header["txn_id"] for header in begun]
    wishes: list[Item] = [{"writers": ["x"]}, {"writers": ["y"]}, {}, {}, {"reason": "r"}, {"reason": "s"}]
    ops = ["commit"] * 4 + ["abort"] * 2
    items = [{"op": op, "txn_id": txn_id, **wish} for op, txn_id, wish in zip(ops, ids, wishes, strict=True)]
    ended = done(await run_batch(transactions, parsed(items)))
    for header, final, op, some, wish in zip(begun, ended, ops, fields, wishes, strict=True):
        assert header["deadline_ms"] == header["created_ms"] + some.get("timeout_ms", 60_000)
        assert final == await transactions.get(id_of(header))
        assert (final.get("owner"), final.get("properties")) == (some.get("owner"), some.get("properties"))
        assert (final["state"] == "COMMITTED") == (op == "commit")
        assert (final.get("writers"), final.get("reason")) == (wish.get("writers"), wish.get("reason"))
    assert len(store.sent) == 3, "a block of ids, and two applies"


async def test_one_that_is_not_as_it_was_read_takes_nobody_with_it(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore, clock: FakeClock
) -> None:
    """One is kept alive all the time; another is aborted by somebody else while the apply of all is on its way."""
    txn_ids = await opened(transactions, 10)
    await transactions.keep_alive(txn_ids[3], 90_000)
    other = Transactions(truth, clock)
    store.before_applies.append(lambda: other.abort(txn_ids[5]))
    store.sent.clear()
    answers = await run_batch(transactions, commits(txn_ids))
    assert isinstance(refused := answers.pop(5), errors.MetatxnError) and refused.code is ErrorCode.INVALID_TXN_STATE
    assert [header["state"] for header in done(answers)] == ["COMMITTED"] * 9
    assert len(store.sent) == 1 + 9, "all of them in vain, then each that is still open"
    cas = transactions.metrics.registry
    counted = [
        cas.get_sample_value("pulsar_txn_metadata_store_header_cas_total", {"result": result})
        for result in ("ok", "conflict", "reject")
    ]
    assert counted == [9, 1, 1]


LOST = [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.DELAY]


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("rival", [False, True])
async def test_a_lost_reply_of_many_ends_is_resolved_for_each(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore, clock: FakeClock, fault: Fault, rival: bool
) -> None:
    """DESIGN §5.11: also when somebody aborts one of them before they are read."""
    txn_ids = await opened(transactions, 8)
    other = Transactions(truth, clock)
    store.faults.append(fault)
    if rival:
        store.before_reads.append(lambda: answered(other.abort(txn_ids[2])))
    answers = await run_batch(transactions, commits(txn_ids))
    await store.deliver()
    for txn_id, answer in zip(txn_ids, answers, strict=True):
        header = await other.get(txn_id)
        if rival and fault is not Fault.LOSE_REPLY and txn_id == txn_ids[2]:
            assert isinstance(answer, errors.MetatxnError) and answer.code is ErrorCode.INVALID_TXN_STATE
            assert header["state"] == "ABORTED"
        else:
            assert done([answer]) == [header] and header["state"] == "COMMITTED"
    ended = transactions.metrics.registry.get_sample_value("metatxn_transactions_ended_total", {"result": "committed"})
    assert ended == (7 if rival and fault is not Fault.LOSE_REPLY else 8)


async def test_a_lost_reply_of_many_ends_is_not_called_off_by_the_reads_behind_it(
    transactions: Transactions, store: FaultyStore
) -> None:
    """The probe says that they have changed, and then the store goes away."""
    txn_ids = await opened(transactions, 2)
    store.faults.append(Fault.LOSE_REPLY)
    store.before_reads.extend([None, None, *[unavailable] * 100])
    for answer in await run_batch(transactions, commits(txn_ids)):
        assert isinstance(answer, errors.MetatxnError) and answer.code is ErrorCode.OUTCOME_UNKNOWN
    store.before_reads.clear()
    assert {(await transactions.get(txn_id))["state"] for txn_id in txn_ids} == {"COMMITTED"}


@pytest.mark.parametrize("fault", LOST)
async def test_a_lost_reply_of_many_begins_is_resolved_for_each(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore, fault: Fault
) -> None:
    await begin(transactions)
    store.faults.append(fault)
    begun = await run_batch(transactions, parsed([{"op": "begin"}] * 8))
    assert all(isinstance(answer, Done) and answer.created for answer in begun)
    headers = done(begun)
    assert len((await truth.scan("/txn/")).records) == 1 + len(headers) == 9
    await store.deliver()  # if too late, under ids of which nobody was told
    assert [await transactions.get(id_of(header)) for header in headers] == headers
    assert len((await truth.scan("/txn/")).records) == (9 + 8 if fault is Fault.DELAY else 9)


@pytest.mark.parametrize(("op", "state"), [("begin", "OPEN"), ("commit", "COMMITTED"), ("abort", "ABORTED")])
async def test_nobody_knows_is_said_of_each(
    transactions: Transactions, store: FaultyStore, op: str, state: str
) -> None:
    """With its own id, and later its header tells."""
    txn_ids = await opened(transactions, 3)
    items: list[Item] = [{"op": op}] * 3 if op == "begin" else [end(op, txn_id.sequence) for txn_id in txn_ids]
    store.faults.extend([Fault.DELAY, *[Fault.UNAVAILABLE] * 100])
    answers = await run_batch(transactions, parsed(items))
    unknown = [answer for answer in answers if isinstance(answer, errors.MetatxnError)]
    assert [error.code for error in unknown] == [ErrorCode.OUTCOME_UNKNOWN] * 3
    store.faults.clear()
    await store.deliver()
    found = [await transactions.get(TxnId.parse(str(error.members["txn_id"]))) for error in unknown]
    assert len({header["txn_id"] for header in found}) == 3
    assert {header["state"] for header in found} == {state}


async def test_what_certainly_did_not_happen_is_said_of_each(transactions: Transactions, store: FaultyStore) -> None:
    txn_ids = await opened(transactions, 2)
    store.faults.extend([Fault.UNAVAILABLE, Fault.UNAVAILABLE])
    answers = await run_batch(transactions, [*commits(txn_ids), *parsed([{"op": "begin"}] * 2)])
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 4
    assert {(await transactions.get(txn_id))["state"] for txn_id in txn_ids} == {"OPEN"}


async def test_what_is_too_large_together_is_done_one_by_one(transactions: Transactions, store: FaultyStore) -> None:
    """Each by itself fits: 64 properties, and writers with long names."""
    properties = {f"{number:0256}": "x" * 1_024 for number in range(64)}
    begun = await run_batch(transactions, parsed([{"op": "begin", "properties": properties}] * TOGETHER))
    assert all(isinstance(answer, Done) and answer.created for answer in begun)
    txn_ids = await opened(transactions, 5)
    writers = [f"{number:0250}" for number in range(1_500)]
    items = parsed([end("commit", txn_id.sequence, writers=writers) for txn_id in txn_ids])
    answers = await run_batch(transactions, items)
    assert [len(header["writers"]) for header in done(answers)] == [1_500] * 5


def served(server: EtcdServer) -> int:
    """Requests for keys that the server has got, by its own count."""
    text = httpx.get(f"http://{server.endpoint}/metrics", timeout=60).text
    found = re.findall(r'^grpc_server_started_total\{[^}]*grpc_service="etcdserverpb.KV"[^}]*\} (\S+)$', text, re.M)
    assert found
    return int(sum(map(float, found)))


async def test_a_hundred_items_cost_about_one_request(
    etcd: EtcdStore, etcd_server: EtcdServer, clock: FakeClock
) -> None:
    """CONTRACT. A thousand begins: applies of 42, six in a request, and a block of ids. A thousand commits: eight
    reads of 128 headers, and applies of 42, three in a request. Nothing else may creep in."""
    transactions = Transactions(etcd, clock)
    at_first = served(etcd_server)
    begun = await run_batch(transactions, parsed([{"op": "begin"}] * 1_000))
    after_begins = served(etcd_server)
    headers = done(begun)
    assert len({header["txn_id"] for header in headers}) == 1_000
    decided = await run_batch(transactions, parsed([{"op": "commit", "txn_id": h["txn_id"]} for h in headers]))
    after_commits = served(etcd_server)
    assert [header["state"] for header in done(decided)] == ["COMMITTED"] * 1_000
    assert after_begins - at_first <= 8
    assert after_commits - after_begins <= 16
