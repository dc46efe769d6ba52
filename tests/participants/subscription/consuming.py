"""A broker, one topic, and its subscriptions, used over REST as anybody would. Decisions are waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx

from metastore.check import StoreCheck
from metastore.txn import paths
from metatxn.wire.ids import TxnId
from participants.segment.segment import Segment
from tests.participants.broker.process import BrokerProcess
from tests.participants.segment.world import World

TOPIC = "public/default/t"


class Consuming:
    def __init__(self, world: World, process: BrokerProcess) -> None:
        self.world = world
        self.process = process
        self.segments: list[str] = []

    @classmethod
    async def start(cls, world: World, segments: int = 1) -> Consuming:
        found = cls(world, await BrokerProcess(world, world.new_device("data")).start())
        found.segments = await found.process.create("t", segments)
        await world.store.lease_ids(paths.id_sequence(1), 1000)  # so that the check finds the ids leased
        return found

    async def crash(self) -> None:
        """The broker dies, and another one opens what lies on the disk."""
        self.process = await self.process.crash()

    # -- requests ----------------------------------------------------------------------------------------------

    async def ask(self, method: str, path: str, body: object = None) -> httpx.Response:
        return await self.process.http.request(method, f"/v1/topics/t{path}", json=body)

    async def asked(self, method: str, path: str, body: object = None) -> Any:
        answer = await self.ask(method, path, body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    async def subscribe(self, name: str = "s", kind: str = "shared", initial: str = "earliest", **more: Any) -> Any:
        return await self.asked("PUT", f"/subscriptions/{name}", {"type": kind, "initial": initial, **more})

    async def publish(self, *values: Any, txn_id: TxnId | None = None) -> list[str]:
        """One entry."""
        inside = f"?txn_id={txn_id}" if txn_id else ""
        answer = await self.asked("POST", f"/messages{inside}", {"messages": [{"value": value} for value in values]})
        return list(answer["message_ids"])

    async def publish_each(self, *values: Any, txn_id: TxnId | None = None) -> list[str]:
        """An entry for each."""
        return [(await self.publish(value, txn_id=txn_id))[0] for value in values]

    async def receive(self, name: str = "s", consumer: str = "c", limit: int = 1000, wait_ms: int = 0) -> list[Any]:
        body = {"consumer": consumer, "max": limit, "wait_ms": wait_ms}
        return list((await self.asked("POST", f"/subscriptions/{name}/receive", body))["messages"])

    async def values(self, name: str = "s", consumer: str = "c", **options: Any) -> list[Any]:
        return [message["value"] for message in await self.receive(name, consumer, **options)]

    async def ack(
        self,
        ids: Sequence[str],
        txn_id: TxnId | None = None,
        *,
        name: str = "s",
        kind: str = "individual",
        writer: str | None = None,
        for_all: bool = True,
    ) -> httpx.Response:
        """The one who was given the messages, if anybody was."""
        body: dict[str, Any] = {"kind": kind, "message_ids": list(ids), "for_all": for_all}
        if txn_id is not None:
            body["txn_id"] = str(txn_id)
        if writer is not None:
            body["writer"] = writer
        return await self.ask("POST", f"/subscriptions/{name}/acks", body)

    async def acked(self, ids: Sequence[str], txn_id: TxnId | None = None, **options: Any) -> None:
        answer = await self.ack(ids, txn_id, **options)
        assert answer.status_code == 200, answer.text

    async def conflicts(self, ids: Sequence[str], txn_id: TxnId | None = None, **options: Any) -> bool:
        answer = await self.ack(ids, txn_id, **options)
        return answer.status_code == 409 and answer.json()["code"] == "TXN_CONFLICT"

    async def redeliver(self, ids: Sequence[str] | None = None, name: str = "s") -> int:
        body = {} if ids is None else {"message_ids": list(ids)}
        return int((await self.asked("POST", f"/subscriptions/{name}/redeliver", body))["redelivered"])

    async def shown(self, name: str = "s") -> Any:
        """Of the first segment."""
        return (await self.asked("GET", f"/subscriptions/{name}"))["segments"][0]

    # -- decisions ---------------------------------------------------------------------------------------------

    async def commit(self, txn_id: TxnId, writers: Sequence[str] | None = None) -> None:
        await self.carried_out(await self.world.commit(txn_id, writers))

    async def abort(self, txn_id: TxnId) -> None:
        await self.carried_out(await self.world.abort(txn_id))

    async def carried_out(self, revision: int) -> None:
        while self.process.broker._mirror.revision < revision:
            await asyncio.sleep(0)
        await self.idle()

    async def idle(self) -> None:
        """Until nothing is left to do in the background."""
        for name in self.segments:
            segment = await self.segment(name)
            while segment._tasks:
                await asyncio.wait(segment._tasks)

    async def segment(self, name: str | None = None) -> Segment:
        return await self.process.broker.segment(name or self.segments[0])

    # -- the store ---------------------------------------------------------------------------------------------

    async def keys(self, prefix: str) -> list[str]:
        return [record.key for record in (await self.world.store.inner.scan(prefix)).records]

    async def findings(self) -> list[str]:
        """What `metatxn store check` would say."""
        return [f"{each.key}: {each.problem}" async for each in StoreCheck(self.world.store.inner).findings()]


class SetClock:
    """Stands still until it is set."""

    def __init__(self, consuming: Consuming) -> None:
        self.ms = 1_000_000
        consuming.world._time_ms = self  # type: ignore[assignment]

    def __next__(self) -> int:
        return self.ms
