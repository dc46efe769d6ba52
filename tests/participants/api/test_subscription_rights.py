"""Goal: consuming needs the right to consume, dropping the one to administer, dead letters the one to produce there,
and an acknowledgement inside a transaction is its owner's.

Method: both services on sockets, or two brokers, with a token file. Scenarios 13-16.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import httpx

from metastore.backends.memory import MemoryStore
from metastore.txn import paths
from metastore.txn.records.transactions import Header
from metastore.txn.store import INDEXES
from metatxn.service.exposure import open_exposure
from participants.service import BrokerService
from tests.service.secured import Caller, secured
from tests.service.security import TokenFile, bearer

SUBSCRIPTION = "/v1/topics/t/subscriptions/s"
DEFINITION = {"type": "shared", "initial": "earliest"}


async def status(caller: Caller, method: str, path: str, body: object = None) -> int:
    return (await caller.broker.request(method, path, json=body)).status_code


async def test_each_verb_asks_for_its_right(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path)
    names = {
        "boss": tokens.add("boss", admin=True),
        "consumer": tokens.add("consumer", topics={"public/default/t": "consume"}),
        "other": tokens.add("other", topics={"public/default/t": "consume"}),
        "producer": tokens.add("producer", topics={"public/default/t": "produce", "public/default/dead": "produce"}),
    }
    async with (
        secured(tmp_path / "data", token_file=tokens.path) as services,
        services.caller(names["boss"]) as boss,
        services.caller(names["consumer"]) as consumer,
        services.caller(names["other"]) as other,
        services.caller(names["producer"]) as producer,
    ):
        assert await status(boss, "POST", "/v1/topics", {"name": "t"}) == 201
        answer = await producer.broker.post("/v1/topics/t/messages", json={"messages": [{"value": 1}]})
        ids = answer.json()["message_ids"]
        acks = {"kind": "individual", "message_ids": ids}
        verbs: tuple[tuple[str, str, object], ...] = (
            ("PUT", "", DEFINITION),
            ("GET", "", None),
            ("POST", "/receive", {"consumer": "c"}),
            ("POST", "/redeliver", {}),
            ("DELETE", "/consumers/c", None),
            ("GET", "/share", None),
            ("POST", "/share/redeliver", {}),
            ("POST", "/seek/preview", {"to": "earliest"}),
            ("POST", "/share/preview", {"incarnation": 1}),
            ("POST", "/seek", {"to": "earliest"}),
        )
        taking = {"incarnation": 1, "segments": ["x"], "home": 1, "session": 1, "sessions": [1], "newest": 1}
        others: tuple[tuple[str, str, object], ...] = (
            ("POST", "/acks", acks),
            ("POST", "/share/acks", acks),
            ("POST", "/share/take", taking | {"max": 1, "max_bytes": 1}),
            ("POST", "/share/wait", {"incarnation": 1, "segments": ["x"], "wait_ms": 0}),
        )
        for method, path, body in (*verbs, *others):
            assert await status(producer, method, SUBSCRIPTION + path, body) == 403, path
        for method, path, body in verbs:
            assert await status(consumer, method, SUBSCRIPTION + path, body) in (200, 204), path
        forced = {"to": "earliest", "force": True}
        assert await status(consumer, "POST", f"{SUBSCRIPTION}/seek", forced) == 403, "it would end what others began"
        assert await status(boss, "POST", f"{SUBSCRIPTION}/seek", forced) == 200
        dead = f"{SUBSCRIPTION}2", DEFINITION | {"dead_letter_topic": "dead"}
        assert await status(consumer, "PUT", *dead) == 403, "it may not produce there"
        assert await status(boss, "PUT", *dead) == 200
        assert await status(boss, "POST", "/v1/topics", {"name": "u"}) == 201
        assert await status(boss, "PUT", "/v1/topics/u/subscriptions/s", DEFINITION) == 200
        for caller, number in ((producer, 0), (consumer, 2), (boss, 3)):
            listed = (await caller.broker.get("/v1/subscriptions")).json()["items"]
            assert len(listed) == number and (caller is boss or all(each["topic"].endswith("/t") for each in listed))

        begun = await consumer.coordinator.post("/v1/txns", json={})
        inside = acks | {"txn_id": begun.json()["txn_id"], "for_all": True}
        assert await status(other, "POST", f"{SUBSCRIPTION}/acks", inside) == 403
        assert await status(consumer, "POST", f"{SUBSCRIPTION}/acks", inside) == 200
        assert await status(other, "POST", f"{SUBSCRIPTION}/share/acks", inside) == 403
        assert await status(consumer, "DELETE", SUBSCRIPTION) == 403
        assert await status(consumer, "DELETE", f"{SUBSCRIPTION}/share") == 403
        assert await status(boss, "DELETE", SUBSCRIPTION) == 204


async def test_a_dead_letter_goes_to_another_broker_in_the_name_of_the_broker_that_sends_it(tmp_path: Path) -> None:
    """Its caller has no right there, and is gone; what is told, and nothing else, is the broker's own token."""
    tokens = TokenFile(tmp_path)
    boss = tokens.add("boss", admin=True)
    consumer = tokens.add("consumer", topics={"public/default/t": "consume"})
    peer = tokens.add("brokers", topics={"public/default/dead": "produce"})
    exposure = open_exposure(token_file=tokens.path)
    async with AsyncExitStack() as stack:
        store = MemoryStore(INDEXES)
        stack.push_async_callback(store.close)

        async def broker(name: str, peer_token: str | None = None) -> httpx.AsyncClient:
            data_dir = tmp_path / name
            service = BrokerService(store, data_dir=data_dir, port=0, exposure=exposure, peer_token=peer_token)
            stack.push_async_callback(service.stop)
            await service.start()
            return await stack.enter_async_context(
                httpx.AsyncClient(base_url=service.url, headers=bearer(boss), timeout=60)
            )

        here, elsewhere = await broker("here", peer_token=peer), await broker("elsewhere")
        assert (await elsewhere.post("/v1/topics", json={"name": "dead"})).status_code == 201
        assert (await here.post("/v1/topics", json={"name": "t"})).status_code == 201
        limits = {"dead_letter_topic": "dead", "max_redeliveries": 0}
        assert (await here.put(SUBSCRIPTION, json=DEFINITION | limits)).status_code == 200
        await here.post("/v1/topics/t/messages", json={"messages": [{"value": "poison"}]})
        here.headers.update(bearer(consumer))
        given = await here.post(f"{SUBSCRIPTION}/receive", json={"consumer": "c"})
        assert [message["value"] for message in given.json()["messages"]] == ["poison"]
        assert (await here.post(f"{SUBSCRIPTION}/redeliver", json={})).json() == {"redelivered": 1, "withdrawn": []}
        letters: list[str] = []
        while not letters:
            page = await elsewhere.get("/v1/topics/dead/messages", params={"wait_ms": 20_000})
            letters = [message["value"] for message in page.json()["messages"]]
        assert letters == ["poison"]
        headers = [Header.decode(record.value) for record in (await store.scan(paths.HEADERS)).records]
        assert {header.owner for header in headers} == {"brokers"}, "nobody else may end what a broker has begun"
        while (await here.get(SUBSCRIPTION)).json()["segments"][0]["backlog"]:
            await asyncio.sleep(0.01)
