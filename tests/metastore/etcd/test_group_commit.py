"""Goal: applies that wait together reach etcd as one request, and each gets its own answer.

Method: applies are submitted in one turn of the event loop on a real server; the size of each group is recorded, and
members of one request are known by their common revision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from metastore.backends.etcd import EtcdStore
from metastore.backends.etcd_group_commit import FLAT_FROM, NESTED_AFTER_REFUSAL
from metastore.backends.etcd_stubs import Compare, PutRequest, RequestOp, TxnRequest
from metastore.backends.options import EtcdOptions
from metastore.errors import CheckFailed, InvalidBatch, StoreFull, StoreUnavailable
from metastore.types import Absent, Applied, AtVersion, Batch, Check, EmptyRange, FirstVersion, Record
from tests.metastore.etcd.conftest import SMALL, OpenStore
from tests.servers import EtcdServer, free_port


async def together(store: EtcdStore, batches: Iterable[Batch]) -> list[Applied | BaseException]:
    return await asyncio.gather(*(store.apply(batch) for batch in batches), return_exceptions=True)


def revisions(answers: Iterable[object]) -> list[int]:
    return [answer.revision for answer in answers if isinstance(answer, Applied)]


async def test_what_waits_together_is_one_request(
    etcd_server: EtcdServer, open_store: OpenStore, sizes: list[int]
) -> None:
    store = await open_store(etcd_server, on_group=sizes.append)
    answers = await together(store, (store.batch().create(f"/k/{n}", b"") for n in range(100)))
    assert sizes == [100]
    assert len(revisions(answers)) == 100 and len(set(revisions(answers))) == 1


async def test_a_lone_apply_leaves_alone(etcd_server: EtcdServer, open_store: OpenStore, sizes: list[int]) -> None:
    store = await open_store(etcd_server, on_group=sizes.append)
    for n in range(3):
        await store.apply(store.batch().create(f"/k/{n}", b""))
    assert sizes == [1, 1, 1]


async def test_a_lone_apply_that_is_refused_writes_nothing(
    etcd_server: EtcdServer, open_store: OpenStore, sizes: list[int]
) -> None:
    """It is sent once, whatever it checks, and is told what was there at the revision of the answer."""
    store = await open_store(etcd_server, on_group=sizes.append)
    taken = await store.apply(store.batch().create("/k/taken", b"1"))
    record = await store.get("/k/taken")
    assert record is not None
    checks: dict[Check, Record | None] = {
        Absent("/k/taken"): record,
        AtVersion("/k/taken", taken.revision + 1): record,
        FirstVersion("/k/other"): None,
        EmptyRange("/k/", "/k0"): record,
        EmptyRange("/a", "/z"): record,  # around the markers
    }
    for check, found in checks.items():
        sizes.clear()
        with pytest.raises(CheckFailed) as failed:
            await store.apply(store.batch().check(Absent("/k/free"), check).put("/k/more", b""))
        assert sizes == [1]
        assert (failed.value.check, failed.value.current, failed.value.revision) == (check, found, taken.revision)
    assert await store.current_revision() == taken.revision and await store.get("/k/more") is None


async def test_a_request_holds_no_more_than_the_server_takes(
    etcd_server: EtcdServer, open_store: OpenStore, sizes: list[int]
) -> None:
    store = await open_store(etcd_server, on_group=sizes.append, max_txn_ops=128, max_request_bytes=100_000)
    answers = await together(store, (store.batch().create(f"/k/{n}", b"") for n in range(300)))
    assert len(revisions(answers)) == 300
    assert sizes == [127, 127, 46], "127 puts + the marker = 128"
    sizes.clear()
    answers = await together(store, (store.batch().create(f"/large/{n}", bytes(30_000)) for n in range(7)))
    assert len(revisions(answers)) == 7
    assert sizes == [3, 3, 1]


@pytest.mark.parametrize(("flag", "found"), [(64, 64), (128, 128), (300, 256), (2_000, 512)])
async def test_a_store_finds_out_what_its_server_takes(
    flag: int, found: int, tmp_path: Path, open_store: OpenStore, sizes: list[int]
) -> None:
    """A server that takes less than any server does by default refuses groups, and they are split."""
    with EtcdServer(tmp_path / "etcd", max_txn_ops=flag) as server:
        store = await open_store(server, on_group=sizes.append)
        answers = await together(store, (store.batch().create(f"/k/{n}", b"") for n in range(600)))
    assert len(revisions(answers)) == 600
    if flag >= 128:
        assert max(sizes) == found - 1 and len(sizes) == -(-600 // (found - 1))


async def test_where_checks_fail_groups_travel_nested(
    etcd_server: EtcdServer, open_store: OpenStore, sizes: list[int]
) -> None:
    """A flat group that is refused goes again, nested; those behind it are nested at once, and later ones flat."""
    store = await open_store(etcd_server, on_group=sizes.append, max_txn_ops=128)
    await store.apply(store.batch().create("/taken", b""))

    async def group(number: int) -> list[int]:
        sizes.clear()
        batches = [store.batch().create(f"/{number}/{n}", b"") for n in range(FLAT_FROM)]
        await together(store, [*batches, store.batch().create("/taken", b"")])
        return list(sizes)

    whole = FLAT_FROM + 1
    assert await group(0) == [whole, whole]
    assert [await group(n) for n in range(1, NESTED_AFTER_REFUSAL)] == [[whole]] * (NESTED_AFTER_REFUSAL - 1)
    assert await group(NESTED_AFTER_REFUSAL) == [whole, whole]


async def test_one_apply_can_be_wide(etcd_server: EtcdServer, open_store: OpenStore) -> None:
    store = await open_store(etcd_server, max_txn_ops=128)
    wide = store.batch()
    for n in range(1_000):
        wide.create(f"/k/{n:04d}", b"") if n < 126 else wide.put(f"/k/{n:04d}", b"")
    with pytest.raises(InvalidBatch, match="split the batch"):
        await store.apply(wide)
    wide.checks = wide.checks[:90]
    applied = await store.apply(wide)
    found = await store.scan("/k/")
    assert {record.version for record in found.records} == {applied.revision} and len(found.records) == 1_000
    with pytest.raises(CheckFailed) as failed:
        await store.apply(wide)
    assert failed.value.check == Absent("/k/0000") and failed.value.current == found.records[0]


async def test_etcd_itself_lets_siblings_pass_what_they_write(etcd_server: EtcdServer, open_store: OpenStore) -> None:
    """The reason for the joining rule. Should this ever fail, the rule can be relaxed."""
    store = await open_store(etcd_server, "")

    def put_if_absent(absent: bytes, put: bytes) -> RequestOp:
        compare = Compare(target=Compare.CREATE, key=absent, create_revision=0)
        write = RequestOp(request_put=PutRequest(key=put))
        return RequestOp(request_txn=TxnRequest(compare=[compare], success=[write]))

    request = TxnRequest(success=[put_if_absent(b"/skew/x", b"/skew/y"), put_if_absent(b"/skew/y", b"/skew/x")])
    answer = await store._connection.kv.Txn(request, timeout=5)
    assert [response.response_txn.succeeded for response in answer.responses] == [True, True]


async def test_no_write_skew_through_the_store(
    etcd_server: EtcdServer, open_store: OpenStore, sizes: list[int]
) -> None:
    store = await open_store(etcd_server, on_group=sizes.append)
    one = store.batch().check(Absent("/x")).put("/y", b"")
    two = store.batch().check(Absent("/y")).put("/x", b"")
    answers = await together(store, [one, two])
    assert sizes == [1, 1]
    assert [type(answer) for answer in answers] == [Applied, CheckFailed], "in the order of the calls"
    assert isinstance(answers[1], CheckFailed)
    assert answers[1].current == await store.get("/y")


async def test_applies_of_one_key_stay_in_order_across_slots(
    etcd_server: EtcdServer, open_store: OpenStore, sizes: list[int]
) -> None:
    """Every apply checks what the one before wrote; a pair of slots that did not wait would fail most of them."""
    store = await open_store(etcd_server, on_group=sizes.append, pipeline=4)
    calls = []
    for n in range(50):
        chain = store.batch().check(Absent(f"/chain/{n + 1}")).put(f"/chain/{n}", b"").put("/last", str(n).encode())
        calls += [chain, store.batch().put(f"/other/{n}", b"")]
    answers = await together(store, calls)
    assert len(revisions(answers)) == 100
    chained = revisions(answers[::2])
    assert chained == sorted(set(chained))
    last = await store.get("/last")
    assert last is not None and last.value == b"49"
    assert max(sizes) > 2, "the others did not wait for the chain"


async def test_a_refused_apply_fails_alone(etcd_server: EtcdServer, open_store: OpenStore, sizes: list[int]) -> None:
    """The client believes that the server takes 8 MB; it takes 1.5 MiB, and does not say which member was too much."""
    store = await open_store(etcd_server, on_group=sizes.append, max_request_bytes=8 << 20)
    store.max_batch_bytes = 8 << 20
    batches = [store.batch().create(f"/k/{n:02d}", b"") for n in range(40)]
    batches[23].put("/large", bytes(1_800_000))
    batches[30].put("/too", bytes(3_000_000))
    answers = await together(store, batches)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, InvalidBatch)] == [23, 30]
    assert len(revisions(answers)) == 38
    assert len((await store.scan("/")).records) == 38
    assert sizes[0] == 40 and 1 in sizes


async def test_a_full_store_says_so(tmp_path: Path, open_store: OpenStore) -> None:
    """Two traps. Nested puts alone would pass the quota on 3.4.23: the marker at the top level makes them count. And
    the request that first crosses the quota is applied *and* answered with NOSPACE: its marker tells."""
    with EtcdServer(tmp_path / "small", flags=SMALL) as server:
        store = await open_store(server)
        batches = [store.batch().create(f"/k/{n:02d}", bytes(500_000)) for n in range(60)]
        answers = [(await together(store, [batch]))[0] for batch in batches]
        full = next(n for n, answer in enumerate(answers) if isinstance(answer, StoreFull))
        assert 0 < full < 50
        assert all(isinstance(answer, StoreFull) for answer in answers[full:])
        stored = (await store.scan("/k/", keys_only=True)).records
        assert [record.version for record in stored] == revisions(answers)
        assert "is full: compact and defragment it" in (await store.why_full() or "")


async def test_markers_are_no_records(etcd_server: EtcdServer, open_store: OpenStore) -> None:
    store = await open_store(etcd_server)
    start = await store.current_revision()
    async with store.watch("/", start + 1) as watch:
        await store.apply(store.batch().put("/a", b"").put("/z", b""))
        assert [event.key for event in (await anext(watch)).events] == ["/a", "/z"]  # type: ignore[union-attr]
    assert [record.key for record in (await store.range("", "~")).records] == ["/a", "/z"]
    assert [record.key for record in (await store.range("", "~", limit=2, reverse=True)).records] == ["/z", "/a"]
    await store.apply(store.batch().delete_range("", "~"))
    assert (await store.scan("/")).records == []


async def test_operators_read_the_records_with_etcdctl(etcd_server: EtcdServer) -> None:
    store = await EtcdStore.open([f"http://{etcd_server.endpoint}"], "/seen")
    await store.apply(store.batch().put("/a", b'{"state":"OPEN"}'))
    command = [etcd_server.etcdctl_binary, "--endpoints", etcd_server.endpoint, "get", "--prefix", "/seen/"]
    shown = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env={"ETCDCTL_API": "3"})
    output, _ = await shown.communicate()
    key, value, marker, batch = output.decode().splitlines()
    assert (key, value) == ("/seen/a", '{"state":"OPEN"}')
    assert marker.startswith("/seen/batch/") and batch == '{"batch":1}'
    await store.close()
    left = await asyncio.to_thread(etcd_server.etcdctl, "get", "--prefix", "/seen/batch/")
    assert "kvs" not in left, "a store that is closed removes its markers"


async def test_a_wrong_port_is_named(open_store: OpenStore) -> None:
    port = free_port()
    with pytest.raises(StoreUnavailable) as failed:
        await EtcdStore.open([f"127.0.0.1:{port}"], options=EtcdOptions(deadline_ms=300))
    message = str(failed.value)
    assert f"127.0.0.1:{port}" in message and "Is it running there?" in message and "\n" not in message
