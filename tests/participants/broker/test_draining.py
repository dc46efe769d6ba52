"""Goal: a broker that drains hands its segments over one after another, while everything is served and nothing is
lost; with local files it only sends new topics elsewhere. DESIGN §6.

Method: as in `test_placement`, several brokers in-process over one store and one object store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord
from metastore.txn.records.segments import OwnerRecord
from metastore.versions import FIRST, SPEAKS
from metatxn.wire import errors
from participants.broker import placement
from participants.broker.broker import Broker
from participants.broker.placement import wanted
from participants.service import BrokerService
from tests.participants.broker.shared import SharedBroker, Start, owner_of, shared_brokers
from tests.participants.devices import only
from tests.participants.segment.faulty_store import Fault, puts
from tests.participants.segment.world import World, committed, publish

device = only("objects", "Local files are those of one broker; here several have the same ledgers.")


@pytest.fixture
async def start(world: World) -> AsyncIterator[Start]:
    async with shared_brokers(world) as start:
        yield start


async def create(broker: SharedBroker, segments: int) -> list[str]:
    answer = await broker.http.post("/v1/topics", json={"name": "t", "segments": segments})
    assert answer.status_code == 201, answer.text
    return [segment["segment"] for segment in answer.json()["segments"]]


async def serves(process: SharedBroker, names: list[str]) -> None:
    while set(process.broker.served) != set(names):
        await asyncio.sleep(0.001)


async def told(process: SharedBroker, verb: str = "") -> dict[str, Any]:
    """What it says of itself, or to one of the verbs."""
    path = f"/v1/brokers/{process.broker.id}"
    answer = await (process.http.post(f"{path}/{verb}") if verb else process.http.get(path))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def has_seen(process: SharedBroker, other: SharedBroker, *, draining: bool) -> None:
    own = process.broker._placement
    assert own is not None
    while True:
        record = own._announced.records.get(paths.broker_process(other.broker.id))
        if record is not None and bool(BrokerRecord.decode(record.value).draining) == draining:
            return
        await asyncio.sleep(0)


async def without_owner(world: World, names: list[str]) -> int:
    owners = [await owner_of(world, name) for name in names]
    return sum(owner is not None and not owner.broker for owner in owners)


async def test_segments_leave_a_few_at_a_time_while_all_are_written_to(
    start: Start, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And come back when the drain ends."""
    monkeypatch.setattr(placement, "_MOVES_OF_A_DRAIN", 3)
    first = await start()
    names = await create(first, 20)
    await serves(first, names)
    second = await start()
    acknowledged: dict[str, list[str]] = {name: [] for name in names}
    away: list[int] = []
    stopped = False

    async def write(name: str) -> None:
        number = 0
        while not stopped:
            for each in (first, second):
                if (segment := each.broker.served.get(name)) is not None:
                    with suppress(errors.MetatxnError):
                        await publish(segment, f"{number}", producer="p", sequence=number)
                        acknowledged[name].append(f"{number}")
                        number += 1
            away.append(await without_owner(world, names))
            await asyncio.sleep(0)

    writing = [asyncio.create_task(write(name)) for name in names]
    assert (await told(first, "drain"))["state"] == "draining"
    await serves(second, names)
    assert await told(first) | {"storage": "s"} == {
        "id": first.broker.id,
        "url": first.url,
        "storage": "s",
        "shared": True,
        "state": "drained",
        "segments": 0,
        "waiting_for": None,
    }
    assert 0 < max(away) <= 3
    assert (await told(first, "undrain"))["state"] == "serving"
    ids = {first.broker.id: first, second.broker.id: second}
    goal = {name: ids[wanted(name, ids) or ""] for name in names}
    for process in (first, second):
        await serves(process, [name for name, owner in goal.items() if owner is process])
    stopped = True
    await asyncio.gather(*writing)
    for name in names:
        seen = await committed(goal[name].broker.served[name])
        # One may be there that nobody was told of: its publish was cut short, and the writer stopped then.
        assert seen in (acknowledged[name], [*acknowledged[name], f"{len(acknowledged[name])}"])


async def test_a_segment_follows_only_when_the_one_before_was_taken(
    start: Start, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all of them would wait in line to be opened."""
    monkeypatch.setattr(placement, "_MOVES_OF_A_DRAIN", 2)
    first = await start()
    names = await create(first, 6)
    await serves(first, names)
    second = await start()
    await has_seen(first, second, draining=False)
    slow = second.store.fault(Fault(puts(paths.SEGMENT_OWNERS), hold_before=True, times=2))
    await told(first, "drain")
    await slow.reached.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert (await without_owner(world, names), len(first.broker.served)) == (2, 4)
    slow.go.set()
    await serves(second, names)


async def test_what_nobody_takes_holds_back_only_a_few_and_comes_back_when_its_taker_is_gone(
    start: Start, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only other broker is dead, and still announced."""
    monkeypatch.setattr(placement, "_MOVES_OF_A_DRAIN", 2)
    first = await start()
    names = await create(first, 6)
    await serves(first, names)
    dead = await start()
    await has_seen(first, dead, draining=False)
    assert dead.broker._placement is not None
    dead.broker._placement._take = lambda _: None
    await told(first, "drain")
    while await without_owner(world, names) < 2:
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(first.broker.served) == 4
    await dead.announcement.close()
    await serves(first, names)
    assert (await told(first))["waiting_for"].startswith("no other broker that is not draining")


async def test_where_every_broker_drains_what_is_owned_stays_and_what_is_free_is_taken(
    start: Start, world: World
) -> None:
    brokers = [await start(), await start()]
    names = await create(brokers[0], 8)
    while sum(len(each.broker.served) for each in brokers) < 8:
        await asyncio.sleep(0.001)
    await told(brokers[0], "drain")
    await serves(brokers[1], names)
    generations = {name: segment.ownership.generation for name, segment in brokers[1].broker.served.items()}
    await told(brokers[1], "drain")
    await has_seen(brokers[0], brokers[1], draining=True)
    answer = await brokers[0].http.post("/v1/topics", json={"name": "later", "segments": 4})
    assert answer.status_code == 201, answer.text
    assert all(segment["owner"] for segment in answer.json()["segments"])
    found = {name: segment.ownership.generation for name, segment in brokers[1].broker.served.items() if name in names}
    assert found == generations
    await brokers[1].broker.hand_over()  # ends, because nobody could take anything


async def test_a_broker_that_stops_hands_over_while_it_serves(start: Start, world: World) -> None:
    first = await start()
    names = await create(first, 12)
    await serves(first, names)
    for name in names:
        await publish(first.broker.served[name], name)
    second = await start()
    await has_seen(first, second, draining=False)
    await first.broker.hand_over()
    owners = [await owner_of(world, name) for name in names]
    assert {owner.broker for owner in owners if owner is not None} == {second.broker.id}
    answer = await first.http.get("/v1/topics/t")
    assert answer.status_code == 200, "it still answers"
    await serves(second, names)
    for name in names:
        assert await committed(second.broker.served[name]) == [name]


async def test_an_announcement_whose_answer_was_lost_is_made_again(start: Start, world: World) -> None:
    """The next request makes it, also if it says the same as the one before the lost one."""
    first = await start()
    names = await create(first, 2)
    await serves(first, names)
    second = await start()
    await has_seen(first, second, draining=False)
    path = f"/v1/brokers/{first.broker.id}"
    inner = first.store.ephemeral

    async def lost(key: str, value: bytes, ttl_ms: int) -> Any:
        await inner(key, value, ttl_ms)
        raise OutcomeUnknown("lost")

    first.store.ephemeral = lost  # type: ignore[method-assign]
    answer = await first.http.post(f"{path}/drain")
    assert (answer.status_code, answer.json()["code"]) == (504, "OUTCOME_UNKNOWN")
    await serves(second, names)
    first.store.ephemeral = inner  # type: ignore[method-assign]
    assert (await told(first, "undrain"))["state"] == "serving"
    await has_seen(second, first, draining=False)


async def test_who_is_asked_in_vain_names_the_one_to_ask(start: Start, world: World) -> None:
    first, second = await start(), await start()
    answer = await first.http.post(f"/v1/brokers/{second.broker.id}/drain")
    assert (answer.status_code, answer.json()["code"]) == (307, "NOT_OWNER")
    assert answer.headers["Location"].startswith(second.url)
    assert (await told(second))["state"] == "serving"
    answer = await first.http.post("/v1/brokers/nobody/drain")
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
    assert "metatxn broker list" in answer.json()["action"]


async def test_segments_are_listed_page_by_page_also_those_that_do_not_serve(start: Start, world: World) -> None:
    first = await start()
    names = sorted(await create(first, 5))
    await serves(first, names)
    await publish(first.broker.served[names[0]], "x")
    first.broker.served[names[1]].lose("the store is not in its state")
    path, token = f"/v1/brokers/{first.broker.id}/segments", None
    found: list[dict[str, Any]] = []
    while token is not None or not found:
        params = {"limit": "2"} | ({"page_token": token} if token else {})
        page = (await first.http.get(path, params=params)).json()
        assert 0 < len(page["items"]) <= 2
        found, token = found + page["items"], page["next_page_token"]
    assert [each["segment"] for each in found] == names
    assert (found[0]["state"], found[0]["entries"], found[0]["topic"]) == ("active", 1, "public/default/t")
    assert (found[1].get("state"), found[1]["waiting_for"]) == (None, "it is being opened")
    second = await start()
    answer = await second.http.get(path)
    assert (answer.status_code, answer.json()["code"]) == (307, "NOT_OWNER")


async def test_with_local_files_new_topics_go_elsewhere_also_after_a_restart(world: World, tmp_path: Path) -> None:
    async def begin(name: str) -> BrokerService:
        service = BrokerService(world.store, data_dir=tmp_path / name, port=0)
        await service.start()
        return service

    def of(service: BrokerService) -> Broker:
        assert service.broker is not None
        return service.broker

    first = await begin("a")
    async with httpx.AsyncClient(timeout=60) as http:
        (await http.post(f"{first.url}/v1/topics", json={"name": "before"})).raise_for_status()
        drained = (await http.post(f"{first.url}/v1/brokers/{of(first).id}/drain")).json()
        assert (drained["state"], drained["segments"], drained["shared"]) == ("draining", 1, False)
        assert "local files" in drained["waiting_for"]
        alone = await http.post(f"{first.url}/v1/topics", json={"name": "later"})
        assert (alone.status_code, alone.json()["code"]) == (503, "STORE_UNAVAILABLE")
        assert f"metatxn broker undrain {of(first).id}" in alone.json()["action"]
        await of(first).hand_over()
        await first.stop()
        first, second = await begin("a"), await begin("b")
        sent = await http.post(f"{first.url}/v1/topics", json={"name": "later"})
        assert (sent.status_code, sent.headers["Location"]) == (307, f"{second.url}/v1/topics")
        (await http.post(sent.headers["Location"], json={"name": "later"})).raise_for_status()
        assert (await http.get(f"{second.url}/v1/topics/later")).json()["segments"][0]["owner"] == second.url
        cluster = (await http.get(f"{second.url}/v1/cluster")).json()
        assert {each["url"]: each["draining"] for each in cluster["brokers"]} == {first.url: True, second.url: False}
        (await http.post(f"{first.url}/v1/brokers/{of(first).id}/undrain")).raise_for_status()
        assert (await http.post(f"{first.url}/v1/topics", json={"name": "here"})).status_code == 201
        assert await world.store.get(paths.drain_of_storage(of(first).storage.storage_id)) is None
    await first.stop()
    await second.stop()


async def test_a_drain_that_the_store_does_not_take_changes_nothing(start: Start, world: World) -> None:
    process = await start()

    async def refused(key: str, value: bytes, ttl_ms: int) -> Any:
        raise StoreUnavailable("gone")

    process.store.ephemeral = refused  # type: ignore[method-assign]
    answer = await process.http.post(f"/v1/brokers/{process.broker.id}/drain")
    assert (answer.status_code, answer.json()["code"]) == (503, "STORE_UNAVAILABLE")
    assert (await told(process))["state"] == "serving"


async def test_a_stop_drains_in_time(world: World, tmp_path: Path) -> None:
    """What nobody takes in time is released together, as at any stop."""
    first = BrokerService(world.store, storage=f"file://{tmp_path}/objects", port=0, drain_timeout_ms=1)
    await first.start()
    assert first.broker is not None
    async with httpx.AsyncClient(timeout=60) as http:
        (await http.post(f"{first.url}/v1/topics", json={"name": "t"})).raise_for_status()
    (name,) = first.broker.served
    first.broker.version.current = FIRST
    await first.before_stop()
    assert not first.broker.announcement.draining, "brokers of release 0.2.0 would not take what it gives up"
    first.broker.version.learn(SPEAKS)
    record = BrokerRecord(url="http://dead", storage=first.broker.storage.storage_id)
    await world.store.ephemeral(paths.broker_process("dead"), record.encode(), 10_000)
    await first.before_stop()
    assert first.broker.announcement.draining
    await first.stop()
    assert await owner_of(world, name) == OwnerRecord(broker="", url="", generation=1)
