"""Goal: brokers that share an object store spread the segments, hand them over, take them from the dead; whatever
a deposed owner still believes, it acknowledges nothing, and shows nothing that is not so.

Method: several brokers in-process over one store and one object store. A frozen one keeps running without its
announcement and without events, which is more than a stopped process could do. DESIGN §5.2, 5.9; scenario 79.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from metastore.errors import StoreFull, StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.segments import OwnerRecord, SegmentRecord
from metastore.types import Batch
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from metatxn.wire.names import MessageId
from metatxn.wire.position import Position
from participants.broker.placement import Placement, wanted
from participants.segment.reading import STALE_READ_S
from participants.segment.segment import Segment
from tests.participants.broker.shared import SharedBroker, Start, owner_of, shared_brokers
from tests.participants.devices import only
from tests.participants.ledger.faulty_bucket import PutFault
from tests.participants.segment.faulty_store import INTENT, Fault, puts
from tests.participants.segment.world import World, committed, publish, snapshot, until

device = only("objects", "Local files are those of one broker; here several have the same ledgers.")


@pytest.fixture
async def start(world: World) -> AsyncIterator[Start]:
    async with shared_brokers(world) as start:
        yield start


async def create(broker: SharedBroker, segments: int = 1) -> list[str]:
    answer = await broker.http.post("/v1/topics", json={"name": "t", "segments": segments})
    assert answer.status_code == 201, answer.text
    return [segment["segment"] for segment in answer.json()["segments"]]


async def spread(brokers: list[SharedBroker], names: list[str]) -> dict[str, SharedBroker]:
    """Who serves what, once everybody serves what it should and nothing else."""
    ids = {broker.broker.id: broker for broker in brokers}
    goal = {name: ids[wanted(name, ids) or ""] for name in names}
    while any(set(each.broker.served) != {n for n, owner in goal.items() if owner is each} for each in brokers):
        await asyncio.sleep(0.001)
    return goal


async def taken_over(name: str, brokers: list[SharedBroker], former: SharedBroker) -> Segment:
    """The segment, once another broker serves it."""
    while True:
        for broker in brokers:
            if broker is not former and name in broker.broker.served:
                return broker.broker.served[name]
        await asyncio.sleep(0.001)


async def given_up(process: SharedBroker, name: str) -> None:
    while name in process.broker._keepers:
        await asyncio.sleep(0.001)


async def refused(segment_publish: Awaitable[object]) -> ErrorCode | None:
    with pytest.raises(errors.MetatxnError) as error:
        await segment_publish
    return error.value.code


def test_a_broker_that_comes_or_goes_moves_only_its_own_share() -> None:
    names = [f"segment-{number}" for number in range(1000)]
    three = {name: wanted(name, ["a", "b", "c"]) for name in names}
    four = {name: wanted(name, ["a", "b", "c", "d"]) for name in names}
    assert all(four[name] in (three[name], "d") for name in names)
    for broker in "abcd":
        assert 180 < sum(owner == broker for owner in four.values()) < 320
    assert wanted("x", []) is None


async def test_segments_are_spread_and_move_without_loss(start: Start, world: World) -> None:
    """One broker, then three, then two, while somebody keeps writing to every segment."""
    first = await start()
    names = await create(first, 30)
    await spread([first], names)
    brokers = [first]
    acknowledged: dict[str, list[str]] = {name: [] for name in names}
    stopped = False

    async def write(name: str) -> None:
        number = 0
        while not stopped:
            for each in list(brokers):
                if name in each.broker.served:
                    try:
                        await publish(each.broker.served[name], f"{number}", producer="p", sequence=number)
                    except errors.MetatxnError:
                        continue
                    acknowledged[name].append(f"{number}")
                    number += 1
            await asyncio.sleep(0.001)

    writing = [asyncio.create_task(write(name)) for name in names]
    brokers += [await start(), await start()]
    goal = await spread(brokers, names)
    assert set(goal.values()) == set(brokers)
    brokers.remove(first)
    await first.stop()
    goal = await spread(brokers, names)
    stopped = True
    await asyncio.gather(*writing)
    for name in names:
        seen = await committed(goal[name].broker.served[name])
        # One may be there that nobody was told of: its publish was cut short, and the writer stopped then.
        assert seen in (acknowledged[name], [*acknowledged[name], f"{len(acknowledged[name])}"])
        assert len(acknowledged[name]) > 3


async def test_79_a_transaction_goes_on_at_the_new_owner(start: Start, world: World) -> None:
    brokers = [await start(), await start()]
    names = await create(brokers[0], 6)
    goal = await spread(brokers, names)
    dead, alive = brokers if brokers[0] in goal.values() else brokers[::-1]
    name = next(name for name, owner in goal.items() if owner is dead)
    txn, aborted = await world.begin(), await world.begin()
    await publish(dead.broker.served[name], "before", txn)
    await publish(dead.broker.served[name], "hidden", aborted)
    await dead.freeze()
    segment = await alive.serving(name)
    await publish(segment, "after", txn)
    assert await committed(segment) == []
    await world.abort(aborted)
    revision = await world.commit(txn)
    await until(segment, lambda: len(segment.buffer.undecided()) == 0)
    assert await committed(segment) == ["before", "after"]
    assert await snapshot(segment, revision) == ["before", "after"]


async def test_a_frozen_owner_that_goes_on_acknowledges_nothing_and_shows_nothing_wrong(
    start: Start, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = [await start(), await start()]
    names = await create(brokers[0], 6)
    goal = await spread(brokers, names)
    frozen, alive = brokers if brokers[0] in goal.values() else brokers[::-1]
    several = [name for name, owner in goal.items() if owner is frozen]
    name = several[0]
    old = frozen.broker.served[name]
    open_txn, aborted = await world.begin(), await world.begin()
    await publish(old, "plain")
    await publish(old, "open", open_txn)
    await publish(old, "aborted", aborted)
    await frozen.freeze()
    new = await alive.serving(name)
    await world.abort(aborted)
    await publish(new, "new")
    assert await committed(old) == ["plain"]  # no older than the bound, and nothing of it is wrong
    assert await refused(snapshot(old)) is ErrorCode.STORE_UNAVAILABLE  # "new" would be missing in the cut
    assert old.lost
    with pytest.raises(errors.MetatxnError):
        await publish(old, "zombie")
    await world.commit(open_txn)
    await until(new, lambda: len(new.buffer.undecided()) == 0)
    assert await committed(new) == ["plain", "open", "new"]


@pytest.mark.parametrize("kind", ["plain", "transactional", "in-flight", "stale read"])
async def test_each_way_in_which_a_frozen_owner_finds_out(
    start: Start, world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = await start()
    (name,) = await create(frozen)
    await spread([frozen], [name])
    old = frozen.broker.served[name]
    await publish(old, "acknowledged")
    txn = await world.begin()
    await frozen.freeze()
    new = await (await start()).serving(name)
    if kind == "plain":
        assert await refused(publish(old, "zombie")) is ErrorCode.STORE_UNAVAILABLE
    elif kind == "transactional":
        assert await refused(publish(old, "zombie", txn)) is ErrorCode.STORE_UNAVAILABLE
        assert await world.operations(txn) == []
    elif kind == "in-flight":
        begun = [asyncio.create_task(publish(old, f"zombie {number}")) for number in range(3)]
        assert {await refused(task) for task in begun} == {ErrorCode.STORE_UNAVAILABLE}
    else:
        assert await committed(old) == ["acknowledged"]
        monkeypatch.setattr("participants.segment.reading.STALE_READ_S", -STALE_READ_S)
        assert await refused(committed(old)) is ErrorCode.STORE_UNAVAILABLE
    assert old.lost
    await given_up(frozen, name)
    assert not frozen.storage._open, "what was sealed by another owner is kept by nobody"
    await world.commit(txn)
    await publish(new, "last")
    assert await committed(new) == ["acknowledged", "last"]


@pytest.mark.parametrize("kind", ["read", "trim", "ack", "cumulative ack", "ack up to", "seek", "seek from elsewhere"])
async def test_a_frozen_owner_refuses_no_position_that_its_successor_may_have(start: Start, kind: str) -> None:
    """Nobody may be told for certain that something is not there by a broker that does not know it. Found by the
    simulation. The real owner refuses what really is not there."""
    brokers = [await start(), await start(), await start()]
    names = await create(brokers[0], 40)
    goal = await spread(brokers, names)
    home = goal[names[0]]
    asks_itself = kind != "seek from elsewhere"

    def is_fit(each: str) -> bool:
        """Who is asked has it, or neither has it nor takes it over."""
        after = wanted(each, [broker.broker.id for broker in brokers if broker is not goal[each]])
        return goal[each] is home if asks_itself else home.broker.id not in (goal[each].broker.id, after)

    name = next(filter(is_fit, names[1:]))
    frozen, asked = goal[name], home
    await publish(frozen.broker.served[name], "before")
    of_subscription = "/v1/topics/t/subscriptions/s"
    answer = await home.http.put(of_subscription, json={"initial": "earliest", "type": "failover"})
    assert answer.status_code in (200, 201), answer.text
    asked.store.events_flow.clear()
    await frozen.freeze()
    position = await publish(await taken_over(name, brokers, frozen), "after")

    async def ask(broker: SharedBroker, at: Position) -> httpx.Response:
        path = f"/v1/segments/{quote(name, safe='')}"
        places = dict.fromkeys(names, "0:0") | {name: str(at)}
        match kind:
            case "read":
                return await broker.http.get(f"{path}/entries", params={"after": str(at)})
            case "trim":
                return await broker.http.post(f"{path}/trim", json={"before": str(at)})
            case "ack" | "cumulative ack":
                which = "individual" if kind == "ack" else "cumulative"
                acks: dict[str, Any] = {"kind": which, "message_ids": [str(MessageId(name, at, 0))]}
                return await broker.http.post(f"{of_subscription}/acks", json=acks)
            case "ack up to":
                acks = {"kind": "cumulative", "positions": {name: str(at)}}
                return await broker.http.post(f"{of_subscription}/acks", json=acks)
            case _:
                return await broker.http.post(f"{of_subscription}/seek", json={"positions": places})

    refusal = await ask(asked, position)
    if not asks_itself:
        asked.thaw()
    goal = await spread([broker for broker in brokers if broker is not frozen], names)
    assert refusal.status_code == 503, refusal.text
    owner = goal[names[0] if kind.startswith("seek") else name]
    assert (await ask(owner, position)).status_code == 200
    refusal = await ask(owner, Position(position.ledger, position.entry + 2))
    assert (refusal.status_code, refusal.json()["code"]) == (422, "INVALID_ARGUMENT"), refusal.text


async def test_a_segment_that_is_dropped_while_it_closes_keeps_no_ledger_open(start: Start) -> None:
    """Found by the simulation: another broker had deleted the rest of the topic by then."""
    process = await start()
    (name,) = await create(process)
    await spread([process], [name])
    segment = process.broker.served[name]
    held = process.bucket.fault(PutFault(hold=True))
    begun = asyncio.create_task(publish(segment, "held"))
    await held.reached.wait()
    segment.lose("its topic was deleted")
    assert segment.ledgers.open is not None
    while segment.ledgers.open.stopped is None:
        await asyncio.sleep(0.001)
    dropping = asyncio.create_task(process.broker.drop(name))
    await given_up(process, name)
    held.go.set()
    await dropping
    assert await refused(begun) is ErrorCode.OUTCOME_UNKNOWN
    assert not process.storage._open


async def test_a_watch_event_is_enough_and_the_way_leads_to_the_new_owner(start: Start, world: World) -> None:
    frozen = await start()
    (name,) = await create(frozen)
    await spread([frozen], [name])
    old = frozen.broker.served[name]
    await frozen.freeze()
    alive = await start()
    await alive.serving(name)
    frozen.thaw()
    await until(old, lambda: old.lost)
    await given_up(frozen, name)
    answer = await frozen.http.get(f"/v1/segments/{name.replace('/', '%2F')}")
    assert (answer.status_code, answer.json()["code"]) == (307, "NOT_OWNER")
    assert answer.headers["Location"].startswith(alive.url)
    assert "announcement" in frozen.broker.not_ready
    await frozen.announce()
    while frozen.broker.not_ready:
        await asyncio.sleep(0.001)


async def test_a_broker_that_stops_lets_go_at_once(start: Start, world: World) -> None:
    first = await start()
    (name,) = await create(first)
    await publish(await first.serving(name), "x")
    await first.stop()
    owner = await owner_of(world, name)
    assert owner is not None and owner.broker == ""
    assert await committed(await (await start()).serving(name)) == ["x"]


@pytest.mark.parametrize("transactional", [False, True])
async def test_what_was_begun_before_a_segment_moves_is_acknowledged_and_goes_with_it(
    start: Start, world: World, transactional: bool
) -> None:
    """The old owner drains: an append on its way, or a transaction's intent, is waited for; what comes later is told to
    ask the next owner."""
    first = await start()
    names = await create(first, 24)
    await spread([first], names)
    txn = await world.begin() if transactional else None
    old = dict(first.broker.served)
    holding: dict[str, asyncio.Event] = {}
    sent: dict[str, asyncio.Task[object]] = {}
    for name in names:
        if transactional:
            intent = first.store.fault(Fault(INTENT, hold_after=True))
            sent[name] = asyncio.create_task(publish(old[name], "begun", txn))
            await intent.reached.wait()
            holding[name] = intent.go
        else:
            put = first.bucket.fault(PutFault(hold=True))
            sent[name] = asyncio.create_task(publish(old[name], "begun"))
            await put.reached.wait()
            holding[name] = put.go
    second = await start()
    ids = {each.broker.id: each for each in (first, second)}
    moving = [name for name in names if ids[wanted(name, ids) or ""] is second]
    assert moving
    while not (leaving := [old[name] for name in moving if not old[name].admits]):
        await asyncio.sleep(0.001)
    late = asyncio.create_task(refused(publish(leaving[0], "late")))
    await asyncio.sleep(0)
    for go in holding.values():
        go.set()
    await asyncio.gather(*sent.values())
    assert await late is ErrorCode.STORE_UNAVAILABLE
    goal = await spread([first, second], names)
    if txn is not None:
        await world.commit(txn)
    for name in names:
        segment = goal[name].broker.served[name]
        await until(segment, lambda segment=segment: not segment.buffer.undecided())
        assert await committed(segment) == ["begun"]


async def test_a_record_that_cannot_be_given_up_now_is_given_up_later(start: Start, world: World) -> None:
    first = await start()
    names = await create(first, 24)
    await spread([first], names)
    for _ in range(3):
        first.store.fault(Fault(puts("/segment-owner/"), before=StoreUnavailable("gone")))
    second = await start()
    goal = await spread([first, second], names)
    assert second in goal.values()


async def test_what_another_broker_has_taken_is_not_given_up(start: Start, world: World) -> None:
    """By an owner that stood still for so long that it was taken for dead, and then gives up what it had."""
    frozen = await start()
    (name,) = await create(frozen)
    old = await frozen.serving(name)
    await frozen.freeze()
    new = await (await start()).serving(name)
    taken = await owner_of(world, name)
    await frozen.broker._release(old)
    assert await owner_of(world, name) == taken
    assert await publish(new, "goes on")


async def test_a_claim_that_lands_after_its_broker_has_turned_away_is_given_back(start: Start, world: World) -> None:
    """Found by `make simulate SEED=263`: the record named a broker that lives, does not have the segment and is not
    wanted, so it was nobody's to take, forever."""
    brokers = [await start(), await start()]
    names = await create(brokers[0])
    goal = await spread(brokers, names)
    (name,) = names
    (other,) = (each for each in brokers if each is not goal[name])
    generation = goal[name].broker.served[name].ownership.generation
    late = OwnerRecord(broker=other.broker.id, url=other.url, generation=generation + 1)
    await world.store.apply(world.store.batch().put(paths.segment_owner(name), late.encode()))
    segment = await goal[name].serving(name)
    while segment.ownership.generation <= late.generation:
        await asyncio.sleep(0.001)
        segment = await goal[name].serving(name)
    assert await publish(segment, "goes on")


async def test_a_claim_is_given_back_though_the_store_is_full_at_first(start: Start, world: World) -> None:
    """Found by the simulation: the attempt died of it, unheard but for the log."""
    brokers = [await start(), await start()]
    names = await create(brokers[0])
    goal = await spread(brokers, names)
    (name,) = names
    (other,) = (each for each in brokers if each is not goal[name])
    generation = goal[name].broker.served[name].ownership.generation
    late = OwnerRecord(broker=other.broker.id, url=other.url, generation=generation + 1).encode()

    def gives_back(batch: Batch) -> bool:
        owner = batch.puts.get(paths.segment_owner(name))
        return owner is not None and not OwnerRecord.decode(owner).broker

    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    full = other.store.fault(Fault(gives_back, hold_before=True, before=StoreFull("no space is left")))
    await world.store.apply(world.store.batch().put(paths.segment_owner(name), late))
    await full.reached.wait()
    full.go.set()
    segment = await goal[name].serving(name)
    while segment.ownership.generation <= generation + 1:
        await asyncio.sleep(0.001)
        segment = await goal[name].serving(name)
    assert not heard


async def test_nobody_moves_a_segment_while_announcements_come_and_go(start: Start, world: World) -> None:
    """Hysteresis: an owner whose announcement is back before things have settled keeps what it has."""
    first = await start()
    names = await create(first, 8)
    await spread([first], names)
    generations = {name: segment.ownership.generation for name, segment in first.broker.served.items()}
    first.broker._placement._settle_s = 10**6  # type: ignore[union-attr]
    second = await start()
    second.broker._placement._settle_s = 10**6  # type: ignore[union-attr]
    for _ in range(3):
        await first.announcement.close()
        await first.announce()
    while second.broker.not_ready:
        await asyncio.sleep(0.001)
    assert {name: segment.ownership.generation for name, segment in first.broker.served.items()} == generations
    assert not second.broker.served


def claimed(ownership: Placement, segment: str) -> bool:
    """The watch has shown this broker the claim of a merge."""
    return SegmentRecord.decode(ownership._segments.records[paths.segment(segment)].value).merge is not None


async def test_a_merge_does_not_wait_until_the_other_owner_looks_around(start: Start, world: World) -> None:
    """He sees the claim, and begins to seal in that moment; these brokers never reconcile by themselves."""
    brokers = [await start(), await start()]
    names = await create(brokers[0], 24)
    goal = await spread(brokers, names)
    low, high = next((low, high) for low, high in pairwise(names) if goal[low] is not goal[high])
    for name in (low, high):
        await publish(goal[name].broker.served[name], name)
    path = f"/v1/segments/{quote(low, safe='')}/merge"
    asked = asyncio.create_task(goal[low].http.post(path, json={"with": high}))
    other = goal[high]
    assert other.broker._placement is not None
    while not asked.done() and not claimed(other.broker._placement, high):
        await asyncio.sleep(0)
    assert asked.done() or other.layout.tasks, "he waits until he looks around"
    answer = await asked
    assert answer.status_code == 200, answer.text
    (child,) = answer.json()["children"]
    goal = await spread(brokers, [*names, child])
    await publish(goal[child].broker.served[child], "child")
    for name in (low, high):
        assert await committed(goal[name].broker.served[name]) == [name]
        assert await refused(publish(goal[name].broker.served[name], "x")) is ErrorCode.SEGMENT_SEALED


async def test_a_split_is_done_although_the_store_fails_while_the_children_are_looked_for(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record says that the segment is sealed, so this broker says so, too, whatever it can see of the children."""
    broker = await start()
    (parent,) = await create(broker)
    placement = broker.broker._placement
    assert placement is not None
    take, found = placement._take, list[str]()
    monkeypatch.setattr(placement, "_take", found.append)
    monkeypatch.setattr(placement, "sees", lambda _: False)
    own = paths.segment(parent)
    children = broker.store.hold_read(lambda keys: own not in keys and keys[0].startswith(paths.SEGMENTS))
    children.error = StoreUnavailable("the connection broke")
    asked = asyncio.create_task(broker.http.post(f"/v1/segments/{quote(parent, safe='')}/split", json={}))
    await children.reached.wait()
    children.go.set()
    monkeypatch.setattr(placement, "_take", take)
    while len(found) < 2 and not asked.done():
        await asyncio.sleep(0)
    for child in found:
        take(child)
    answer = await asked
    assert answer.status_code == 200, answer.text
    assert broker.broker.served[parent].record.children == tuple(answer.json()["children"])


async def test_a_segment_is_sealed_whatever_becomes_of_its_children(
    start: Start, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start()
    (parent,) = await create(broker)
    path = f"/v1/segments/{quote(parent, safe='')}/split"

    async def fail(_: SegmentRecord) -> None:
        raise StoreUnavailable("the connection broke")

    monkeypatch.setattr(broker.layout, "_install", fail)
    assert (await broker.http.post(path, json={})).status_code in (503, 504)
    assert broker.broker.served[parent].record.state == "sealed"
    assert (await broker.http.post(path, json={})).status_code == 200


@pytest.mark.parametrize("fails", range(24))
async def test_a_split_is_done_whichever_call_of_the_store_fails(
    start: Start, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """Once the store says that the segment is sealed, so does its broker, and who asks again is answered."""
    broker = await start()
    (parent,) = await create(broker)
    monkeypatch.setattr(broker.broker._placement, "sees", lambda _: False)
    calls = itertools.count()

    def fail_once() -> None:
        if next(calls) == fails:
            raise StoreUnavailable("the connection broke")

    monkeypatch.setattr(broker.store, "_assert_near", fail_once)
    path = f"/v1/segments/{quote(parent, safe='')}/split"
    statuses = [(await broker.http.post(path, json={})).status_code]
    stored = await broker.store.inner.get(paths.segment(parent))
    assert stored is not None
    if SegmentRecord.decode(stored.value).state == "sealed":
        assert broker.broker.served[parent].record.state == "sealed"
    while statuses[-1] != 200 and len(statuses) < 9:
        statuses.append((await broker.http.post(path, json={})).status_code)
    assert statuses[-1] == 200, statuses
