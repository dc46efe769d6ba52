"""What layout tests share: sending and browsing by key, a store that dies after some writes, what a store must hold."""

from __future__ import annotations

import asyncio
from typing import Any

from metastore.check import StoreCheck
from metastore.errors import StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metastore.types import Batch
from metatxn.wire.broker import hash_of_key
from metatxn.wire.ids import TxnId
from tests.participants.broker.process import BrokerProcess
from tests.participants.pages import assert_read_alike
from tests.participants.segment.faulty_store import Fault
from tests.participants.segment.world import World

TOPIC = "public/default/t"
LOW, HIGH = "d", "a"
"""Keys in the lower and in the upper half of the hash range."""
assert hash_of_key(LOW) < 0x8000 <= hash_of_key(HIGH)


class Death:
    """After `survives` more writes the store takes none of this process; `reached` tells when it refused one."""

    def __init__(self, world: World, survives: int) -> None:
        self.reached = asyncio.Event()
        self.writes = 0
        self._survives = survives
        self._world = world
        world.store.fault(Fault(self._kills, before=StoreUnavailable("gone"), times=10**9))

    def _kills(self, _: Batch) -> bool:
        self.writes += 1
        if self.writes > self._survives:
            self.reached.set()
        return self.writes > self._survives

    async def next_life(self, process: BrokerProcess) -> BrokerProcess:
        """The process dies as it is; the next one finds its directory, and a store that answers."""
        left = await process.die()
        self._world.store._faults.clear()
        after = await BrokerProcess(self._world, left).start()
        await after.serving()
        return after


async def either(task: asyncio.Task[Any], death: Death) -> None:
    """Until the work has ended, or cannot go on."""
    reached = asyncio.create_task(death.reached.wait())
    await asyncio.wait([task, reached], return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()


async def send(
    process: BrokerProcess,
    key: str,
    value: Any,
    txn: TxnId | None = None,
    sequence: int | None = None,
    topic: str = "t",
) -> str:
    """One message; answers its id."""
    body: dict[str, Any] = {"messages": [{"key": key, "value": value}]}
    if sequence is not None:
        body |= {"producer": "p", "sequence": sequence}
    query = {"txn_id": str(txn)} if txn is not None else {}
    answer = await process.http.post(f"/v1/topics/{topic}/messages", json=body, params=query)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["message_ids"][0]
    return found


async def browse(process: BrokerProcess, topic: str = "t", **query: Any) -> list[Any]:
    """Every value that is readable now, in the order in which a reader gets them."""
    found: list[dict[str, Any]] = []
    after: dict[str, Any] = {}
    while True:
        answer = await process.http.get(f"/v1/topics/{topic}/messages", params=query | after)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        if not page["messages"]:
            await assert_read_alike(process.http, topic, found, query)
            return [message["value"] for message in found]
        found += page["messages"]
        after = {"after": page["next"]}


async def post(process: BrokerProcess, segment: str, verb: str, **body: Any) -> list[str]:
    """Split, merge or seal; answers the children. What is being opened, or changed by somebody else, is asked again."""
    while True:
        answer = await process.http.post(f"/v1/segments/{quoted(segment)}/{verb}", json=body)
        if answer.status_code != 503:
            break
        await asyncio.sleep(0.001)
    assert answer.status_code == 200, answer.text
    children: list[str] = answer.json()["children"]
    return children


def quoted(segment: str) -> str:
    return segment.replace("/", "%2F").replace(":", "%3A")


async def record_of(world: World, segment: str) -> SegmentRecord:
    stored = await world.store.inner.get(paths.segment(segment))
    assert stored is not None
    return SegmentRecord.decode(stored.value)


async def assert_lawful(world: World) -> None:
    """Nothing in the store contradicts the layout. The world's coordinator leases no ids; that aside."""
    findings = [found async for found in StoreCheck(world.store.inner).findings() if "leased" not in found.problem]
    assert not findings


async def keys_of(world: World, part: str) -> list[str]:
    """Every key in the store that has `part` in it."""
    return [record.key for record in (await world.store.inner.scan("/")).records if part in record.key]
