"""Goal: an apply whose reply was lost is answered with what really happened to it, and nothing lands later.

Method: the call that sends a transaction is replaced by one that loses requests or replies by plan, delivers them
late or twice; the server is real, and what it holds afterwards is compared with the answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

import grpc
import grpc.aio
import pytest

from metastore.backends.etcd import EtcdStore
from metastore.backends.etcd_group_commit import FLAT_FROM
from metastore.backends.etcd_stubs import TxnRequest, TxnResponse
from metastore.errors import CheckFailed, OutcomeUnknown, StoreFull, StoreUnavailable
from metastore.types import Absent, Applied, AtVersion, Batch, EmptyRange, FirstVersion
from tests.metastore.etcd.conftest import OpenStore
from tests.servers import EtcdServer

Send = Callable[[TxnRequest], Awaitable[TxnResponse]]
Fault = Callable[[TxnRequest, Send], Awaitable[TxnResponse]]


def error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details, None)


def lost() -> grpc.aio.AioRpcError:
    return error(grpc.StatusCode.UNAVAILABLE, "lost by the test")


async def request_lost(request: TxnRequest, send: Send) -> TxnResponse:
    raise lost()


async def reply_lost(request: TxnRequest, send: Send) -> TxnResponse:
    await send(request)
    raise lost()


async def delivered_twice(request: TxnRequest, send: Send) -> TxnResponse:
    await send(request)
    return await send(request)


async def refused(request: TxnRequest, send: Send) -> TxnResponse:
    raise error(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: refused by the test")


async def no_space(request: TxnRequest, send: Send) -> TxnResponse:
    raise error(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")


async def applied_without_space(request: TxnRequest, send: Send) -> TxnResponse:
    await send(request)
    return await no_space(request, send)


async def delivered(request: TxnRequest, send: Send) -> TxnResponse:
    return await send(request)


class Late:
    """Loses a request, and delivers it when the test says so."""

    async def __call__(self, request: TxnRequest, send: Send) -> TxnResponse:
        self.request, self._send = request, send
        raise lost()

    async def deliver(self) -> TxnResponse:
        return await self._send(self.request)


def inject(store: EtcdStore, *faults: Fault, on_fences: Fault | None = None) -> None:
    """The next transactions of `store` meet `faults`, in order; those behind them none. All fences meet `on_fences`."""
    plan = deque(faults)
    real = store._connection.kv.Txn

    async def send(request: TxnRequest) -> TxnResponse:
        return await real(request, timeout=5)

    async def meet(request: TxnRequest, **_: object) -> TxnResponse:
        if on_fences and request.success[0].request_put.value.startswith(b'{"fence"'):
            return await on_fences(request, send)
        return await (plan.popleft() if plan else delivered)(request, send)

    store._connection.kv.Txn = meet


async def together(store: EtcdStore, batches: Iterable[Batch]) -> list[Applied | BaseException]:
    return await asyncio.gather(*(store.apply(batch) for batch in batches), return_exceptions=True)


async def mixed_group(store: EtcdStore) -> tuple[list[Batch], list[type]]:
    """Applies of every kind that may travel together, and what must become of each."""
    await store.apply(store.batch().put("/old/1", b"1").put("/old/2", b"2").put("/gone/1", b"").put("/gone/2", b""))
    await store.apply(store.batch().put("/set/1", b""))
    old = await store.get("/old/1")
    assert old is not None
    return [
        store.batch().create("/new/1", b""),
        store.batch().create("/old/2", b"lost"),
        store.batch().replace(old, b"3"),
        store.batch().check(AtVersion("/none", old.version)).put("/new/2", b""),
        store.batch().delete("/gone/1"),
        store.batch().delete_range("/gone/2", "/gone/3"),
        store.batch().check(FirstVersion("/set/1"), EmptyRange("/empty/", "/empty0")),
        store.batch().check(Absent("/new/3"), EmptyRange("/set/", "/set0")).put("/new/4", b""),
        store.batch().put("/new/5", b""),
    ], [Applied, CheckFailed, Applied, CheckFailed, Applied, Applied, Applied, CheckFailed, Applied]


of_every_loss = pytest.mark.parametrize(
    ("faults", "requests"),
    [
        ([reply_lost], 1),
        ([delivered_twice], 1),
        ([reply_lost, request_lost], 1),
        ([reply_lost, reply_lost, reply_lost], 1),
        ([request_lost], 2),
        ([request_lost, request_lost], 2),
        ([request_lost, reply_lost], 2),
        ([request_lost, reply_lost, reply_lost], 2),
        ([request_lost, delivered, reply_lost], 2),
    ],
    ids=lambda value: "+".join(fault.__name__ for fault in value) if isinstance(value, list) else "",
)


@of_every_loss
async def test_every_member_gets_its_true_answer(
    etcd_server: EtcdServer, open_store: OpenStore, sizes: list[int], faults: list[Fault], requests: int
) -> None:
    store = await open_store(etcd_server, on_group=sizes.append)
    batches, expected = await mixed_group(store)
    sizes.clear()
    inject(store, *faults)
    answers = await together(store, batches)
    assert [type(answer) for answer in answers] == expected
    assert sizes == [len(batches)] * requests
    found = {record.key: record for record in (await store.scan("/")).records}
    assert sorted(found) == ["/new/1", "/new/5", "/old/1", "/old/2", "/set/1"]
    assert found["/new/1"].first and found["/old/1"].value == b"3"
    assert isinstance(answers[0], Applied) and answers[0].revision == found["/new/1"].version
    assert isinstance(answers[1], CheckFailed) and answers[1].current == found["/old/2"]
    assert isinstance(answers[7], CheckFailed) and answers[7].check == EmptyRange("/set/", "/set0")


@of_every_loss
async def test_a_flat_group_is_applied_once_and_whole(
    etcd_server: EtcdServer, open_store: OpenStore, sizes: list[int], faults: list[Fault], requests: int
) -> None:
    store = await open_store(etcd_server, on_group=sizes.append)
    inject(store, *faults)
    answers = await together(store, (store.batch().create(f"/k/{n:02d}", b"") for n in range(FLAT_FROM)))
    assert sizes == [FLAT_FROM] * requests
    found = (await store.scan("/k/")).records
    assert [type(answer) for answer in answers] == [Applied] * FLAT_FROM
    assert [answer.revision for answer in answers if isinstance(answer, Applied)] == [one.version for one in found]
    assert all(record.first for record in found)


@pytest.mark.parametrize("faults", [[], [delivered, request_lost], [request_lost], [reply_lost], [reply_lost] * 3])
async def test_a_refused_flat_group_is_told_member_by_member(
    etcd_server: EtcdServer, open_store: OpenStore, sizes: list[int], faults: list[Fault]
) -> None:
    """The flat request does nothing, whether or not its refusal arrives; then each member stands for itself."""
    store = await open_store(etcd_server, on_group=sizes.append)
    await store.apply(store.batch().create("/k/05", b"before"))
    sizes.clear()
    inject(store, *faults)
    answers = await together(store, (store.batch().create(f"/k/{n:02d}", b"") for n in range(FLAT_FROM)))
    assert [n for n, answer in enumerate(answers) if not isinstance(answer, Applied)] == [5]
    refused_one = answers[5]
    assert isinstance(refused_one, CheckFailed) and refused_one.current == await store.get("/k/05")
    assert len((await store.scan("/k/")).records) == FLAT_FROM


async def test_a_request_that_lost_against_the_fence_never_lands(
    etcd_server: EtcdServer, open_store: OpenStore
) -> None:
    store = await open_store(etcd_server)
    late = Late()
    inject(store, late)
    applied = await store.apply(store.batch().put("/a", b"once"))
    assert not (await late.deliver()).succeeded
    record = await store.get("/a")
    assert record is not None and record.first and record.version == applied.revision


async def test_a_request_that_lost_against_the_fence_never_lands_after_its_store_was_closed(
    etcd_server: EtcdServer, open_store: OpenStore
) -> None:
    """It compares the version of a marker that was never put; so the marker stays, though its store removes others."""
    store, observer = await open_store(etcd_server, "/closed"), await open_store(etcd_server, "/closed")
    late = Late()
    inject(store, late)
    applied = await store.apply(store.batch().put("/a", b"once"))
    await store.close()
    assert not (await observer._connection.kv.Txn(late.request, timeout=5)).succeeded
    record = await observer.get("/a")
    assert record is not None and record.first and record.version == applied.revision


async def test_a_late_request_settles_its_own_fence(etcd_server: EtcdServer, open_store: OpenStore) -> None:
    """The request sits in the server while the fence is on its way, and takes effect first."""
    store = await open_store(etcd_server)
    late = Late()

    async def overtaken(request: TxnRequest, send: Send) -> TxnResponse:
        await late.deliver()
        return await send(request)

    inject(store, late, overtaken)
    applied = await store.apply(store.batch().create("/a", b"once"))
    record = await store.get("/a")
    assert record is not None and record.first and record.version == applied.revision


async def test_what_touches_a_request_in_doubt_waits_for_it(etcd_server: EtcdServer, open_store: OpenStore) -> None:
    replies_lost, settle = asyncio.Event(), asyncio.Event()
    store = await open_store(etcd_server, on_lost=replies_lost.set)

    async def held(request: TxnRequest, send: Send) -> TxnResponse:
        await settle.wait()
        return await send(request)

    inject(store, reply_lost, on_fences=held)
    first = asyncio.create_task(store.apply(store.batch().create("/a", b"1")))
    await replies_lost.wait()
    second = asyncio.create_task(store.apply(store.batch().create("/a", b"2")))
    other = await store.apply(store.batch().create("/b", b""))
    assert not first.done() and not second.done()
    settle.set()
    assert (await first).revision < other.revision
    with pytest.raises(CheckFailed):
        await second


async def test_a_compacted_past_leaves_only_what_needs_it_unknown(
    own_server: EtcdServer, open_store: OpenStore
) -> None:
    store = await open_store(own_server)

    async def compacted(request: TxnRequest, send: Send) -> TxnResponse:
        await asyncio.to_thread(own_server.compact)
        return await send(request)

    inject(store, reply_lost, compacted)
    answers = await together(store, [store.batch().create("/a", b""), store.batch().put("/b", b"")])
    assert [type(answer) for answer in answers] == [OutcomeUnknown, Applied]
    inject(store, reply_lost, compacted)
    flat = await together(store, (store.batch().create(f"/k/{n}", b"") for n in range(FLAT_FROM)))
    assert [type(answer) for answer in flat] == [Applied] * FLAT_FROM, "applied at all means that every check held"


async def test_the_order_survives_a_refusal_and_a_loss(etcd_server: EtcdServer, open_store: OpenStore) -> None:
    """The group is refused, its first half is lost on the second try: the second half must not overtake it."""
    store = await open_store(etcd_server)
    inject(store, refused, request_lost)
    answers = await together(store, [store.batch().create("/a", b""), store.batch().delete("/x").put("/b", b"")])
    assert [type(answer) for answer in answers] == [Applied, Applied]
    inject(store, refused, request_lost)
    checks_then_puts = [store.batch().check(Absent("/h")).put("/c", b""), store.batch().put("/h", b"")]
    answers = await together(store, checks_then_puts)
    assert [type(answer) for answer in answers] == [Applied, Applied], "the first call checks what the second puts"


async def test_what_is_sent_again_goes_before_what_waits(etcd_server: EtcdServer, open_store: OpenStore) -> None:
    """The second put waits for the first, which is lost and has to be sent again."""
    store = await open_store(etcd_server)
    under_way, lose = asyncio.Event(), asyncio.Event()

    async def lost_later(request: TxnRequest, send: Send) -> TxnResponse:
        under_way.set()
        await lose.wait()
        raise lost()

    inject(store, lost_later)
    first = asyncio.create_task(store.apply(store.batch().put("/a", b"first")))
    await under_way.wait()
    second = asyncio.create_task(store.apply(store.batch().put("/a", b"second")))
    await asyncio.sleep(0)
    lose.set()
    assert (await first).revision < (await second).revision
    record = await store.get("/a")
    assert record is not None and record.value == b"second"


@pytest.mark.parametrize("waiting", [False, True])
async def test_an_answer_that_cannot_be_read_leaves_nobody_waiting(
    etcd_server: EtcdServer, open_store: OpenStore, waiting: bool
) -> None:
    """It has taken effect; those whose part was read hear so, and for the others it is unknown. The error is heard."""
    store = await open_store(etcd_server)
    heard: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    under_way, deliver = asyncio.Event(), asyncio.Event()

    async def mangled(request: TxnRequest, send: Send) -> TxnResponse:
        answer = await send(request)
        answer.responses[2].response_txn.succeeded = False  # with nothing that could have made it fail
        under_way.set()
        await deliver.wait()
        return answer

    inject(store, mangled)
    calls = asyncio.gather(
        *(store.apply(store.batch().create(f"/{name}", b"")) for name in "abc"), return_exceptions=True
    )
    await under_way.wait()
    behind = asyncio.create_task(store.apply(store.batch().put("/a", b"behind"))) if waiting else None
    await asyncio.sleep(0)
    deliver.set()
    answers = await calls
    assert [type(answer) for answer in answers] == [Applied, OutcomeUnknown, OutcomeUnknown]
    if behind:
        await behind
    await store.close()
    assert [type(context.get("exception")) for context in heard] == [AssertionError]


async def test_no_space_is_believed_only_after_a_look_at_the_marker(
    etcd_server: EtcdServer, open_store: OpenStore
) -> None:
    store = await open_store(etcd_server)
    inject(store, applied_without_space)
    applied = await store.apply(store.batch().create("/a", b""))
    inject(store, no_space)
    with pytest.raises(StoreFull):
        await store.apply(store.batch().create("/b", b""))
    assert [record.version for record in (await store.scan("/")).records] == [applied.revision]


async def test_a_read_that_the_server_refuses_says_why(etcd_server: EtcdServer, open_store: OpenStore) -> None:
    store = await open_store(etcd_server)
    inject(store, refused)
    with pytest.raises(StoreUnavailable, match="refuses the read: INVALID_ARGUMENT: etcdserver: refused by the test"):
        await store.get("/a")
    assert await store.get("/a") is None


async def test_a_marker_that_somebody_removed_is_taken_up_again(etcd_server: EtcdServer) -> None:
    store = await EtcdStore.open([etcd_server.endpoint], "/removed")
    await store.apply(store.batch().create("/a", b""))
    await asyncio.to_thread(etcd_server.etcdctl, "del", "--prefix", "/removed/batch/")
    await store.apply(store.batch().create("/b", b""))
    await store.close()


async def test_nothing_is_sent_while_the_server_is_away(own_server: EtcdServer, open_store: OpenStore) -> None:
    store = await open_store(own_server, deadline_ms=1_500)
    await store.apply(store.batch().put("/before", b""))
    channel = store._connection.members.in_use.requests
    own_server.kill()
    while channel.get_state() is grpc.ChannelConnectivity.READY:
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
    with pytest.raises(StoreUnavailable):
        await store.apply(store.batch().put("/away", b""))
    with pytest.raises(StoreUnavailable):
        await store.get("/away")
    await asyncio.to_thread(own_server.start)
    later = await open_store(own_server, store._wire._root)
    assert [record.key for record in (await later.scan("/")).records] == ["/before"]


async def test_an_answer_that_never_comes_is_unknown_and_settled_later(
    own_server: EtcdServer, open_store: OpenStore
) -> None:
    store = await open_store(own_server, deadline_ms=1_500)
    own_server.freeze()
    try:
        with pytest.raises(OutcomeUnknown):
            await store.apply(store.batch().put("/a", b"1"))
        with pytest.raises(StoreUnavailable):
            await store.apply(store.batch().put("/a", b"2"))  # behind the one in doubt
    finally:
        own_server.thaw()
    while True:
        try:
            await store.apply(store.batch().put("/a", b"3"))
            break
        except StoreUnavailable:
            continue
    record = await store.get("/a")
    assert record is not None and record.value == b"3"
