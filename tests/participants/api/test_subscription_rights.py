"""Goal: consuming needs the right to consume, dropping the one to administer, dead letters the one to produce there,
and an acknowledgement inside a transaction is its owner's.

Method: both services on sockets, with a token file. Scenarios 13-16.
"""

from __future__ import annotations

from pathlib import Path

from tests.service.secured import Caller, secured
from tests.service.security import TokenFile

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
        dead = f"{SUBSCRIPTION}2", DEFINITION | {"dead_letter_topic": "dead"}
        assert await status(consumer, "PUT", *dead) == 403, "it may not produce there"
        assert await status(boss, "PUT", *dead) == 200

        begun = await consumer.coordinator.post("/v1/txns", json={})
        inside = acks | {"txn_id": begun.json()["txn_id"]}
        assert await status(other, "POST", f"{SUBSCRIPTION}/acks", inside) == 403
        assert await status(consumer, "POST", f"{SUBSCRIPTION}/acks", inside) == 200
        assert await status(other, "POST", f"{SUBSCRIPTION}/share/acks", inside) == 403
        assert await status(consumer, "DELETE", SUBSCRIPTION) == 403
        assert await status(consumer, "DELETE", f"{SUBSCRIPTION}/share") == 403
        assert await status(boss, "DELETE", SUBSCRIPTION) == 204
