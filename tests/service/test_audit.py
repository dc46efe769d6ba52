"""Goal: the audit log tells who has changed what, or tried to, and what became of it, and nothing that is secret.

Method: a coordinator and a broker with tokens in this process, whose log is a file. Each line is checked against the
schema that operators get.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import jsonschema_rs
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from coordinator.service import CoordinatorService
from metastore.backends.memory import MemoryStore
from metastore.txn.store import INDEXES
from metatxn.cli.logs import append_audit_log
from metatxn.cli.options import CliError
from metatxn.console import pages as pages_of_console
from metatxn.service import audit
from metatxn.service.audited import audited, mark_of
from metatxn.service.http import create_app
from metatxn.service.security.watched_file import LOOK_EVERY_S, WatchedFile
from participants.service import BrokerService
from tests.service.secured import Caller, secured
from tests.service.security import TokenFile

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "ops" / "audit-log.schema.json").read_text())
PAGE = (ROOT / "docs" / "operations.md").read_text()
Lines = Callable[[], list[dict[str, Any]]]
NOT_AUDITED = {
    "begin": "many; the header names the owner",
    "commit": "many; the header names the owner",
    "batch": "has a line for each abort by force",
    "add_writers": "changes an own transaction",
    "keep_alive": "changes an own transaction",
    "prepare": "changes an own transaction",
    "append_entry": "messages",
    "append_entries": "messages",
    "announce_writes": "messages",
    "publish_messages": "messages",
    "receive": "messages",
    "leave": "messages",
    "acknowledge": "messages",
    "redeliver": "messages",
    "preview_seek": "changes nothing",
    "look_at_horizons": "only reads",
    "check_schema": "only reads",
    "keep_topic": "changes an own hold",
    "keep_read_hold": "changes an own hold",
    "learn_producer": "only reads",
}
"""The endpoints that change something without a line, and why. Those of shares follow."""


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Lines]:
    logger, path = logging.getLogger("metatxn.audit"), tmp_path / "audit.log"
    level, propagates = logger.level, logger.propagate
    append_audit_log(path)

    def written() -> list[dict[str, Any]]:
        found = [json.loads(line) for line in path.read_text().splitlines()]
        for line in found:
            jsonschema_rs.validate(SCHEMA, line)
        return found

    yield written
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(level)
    logger.propagate = propagates


class Cast:
    """An administrator, and somebody who may only read one topic."""

    def __init__(self, ada: Caller, bob: Caller, tokens: tuple[str, str]) -> None:
        self.ada, self.bob, self.tokens = ada, bob, tokens


@pytest.fixture
async def cast(tmp_path: Path) -> AsyncIterator[Cast]:
    tokens = TokenFile(tmp_path)
    ada, bob = tokens.add("ada", admin=True), tokens.add("bob", topics={"public/default/t": "consume"})
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(secured(tmp_path / "data", token_file=tokens.path))
        one, other = [await stack.enter_async_context(services.caller(token)) for token in (ada, bob)]
        yield Cast(one, other, (ada, bob))


def told(lines: Lines) -> list[tuple[Any, ...]]:
    return [(each["principal"], each["verb"], each["object"], each["outcome"]) for each in lines()]


async def test_changes_of_topics_and_subscriptions(cast: Cast, lines: Lines) -> None:
    broker = cast.ada.broker
    await broker.post("/v1/topics", json={"name": "t", "segments": 2})
    low, high = [each["segment"] for each in (await broker.get("/v1/topics/t")).json()["segments"]]
    await broker.put("/v1/topics/t/subscriptions/s", json={"type": "shared", "initial": "earliest"})
    await broker.post("/v1/topics/t/messages", json={"messages": [{"value": "a payload"}]})
    await broker.post("/v1/topics/t/subscriptions/s/seek", json={"to": "earliest"})
    await broker.patch("/v1/topics/t", json={"retention_ms": 60_000})
    await broker.put("/v1/topics/t/schema", json={"schema": {"fields": [{"name": "id", "type": "int64"}]}})
    await broker.post(f"/v1/segments/{quote(low, safe='')}/trim", json={"before": "no position"})
    await broker.post(f"/v1/segments/{quote(low, safe='')}/merge", json={"with": high})
    await cast.bob.broker.delete("/v1/topics/t")
    await cast.bob.coordinator.patch("/v1/quotas/principals/bob", json={"requests_per_second": 9})
    await cast.ada.coordinator.patch("/v1/quotas/default", json={"requests_per_second": -1})
    await broker.delete("/v1/topics/t/subscriptions/s")
    await broker.delete("/v1/topics/t")
    await broker.delete("/v1/topics/never")
    topic = {"topic": "public/default/t"}
    subscription = {**topic, "subscription": "s"}
    assert told(lines) == [
        ("ada", "topic.create", topic, "allowed"),
        ("ada", "subscription.create", subscription, "allowed"),
        ("ada", "subscription.seek", subscription, "allowed"),
        ("ada", "policy.change", topic, "allowed"),
        ("ada", "schema.change", topic, "allowed"),
        ("ada", "segment.trim", {"segment": low}, "failed"),
        ("ada", "segment.merge", {"segment": low}, "allowed"),
        ("bob", "topic.delete", topic, "refused"),
        ("bob", "quota.change", {"principal": "bob"}, "refused"),
        ("ada", "quota.change", {}, "allowed"),
        ("ada", "subscription.drop", subscription, "allowed"),
        ("ada", "topic.delete", topic, "allowed"),
        ("ada", "topic.delete", {"topic": "public/default/never"}, "failed"),
    ]
    arguments = [each.get("arguments") for each in lines()]
    assert arguments[0] == {"segments": 2} and arguments[2:4] == [
        {"to": "earliest"},
        {"retention_ms": 60_000},
    ]
    assert {each["address"] for each in lines()} == {"127.0.0.1"}
    everything = json.dumps(lines())
    assert not any(secret in everything for secret in ("a payload", *cast.tokens))


async def test_administrators_read_it_at_each_service(cast: Cast, lines: Lines) -> None:
    for name in ("t", "u"):
        await cast.ada.broker.delete(f"/v1/topics/{name}")
    for http in (cast.ada.coordinator, cast.ada.broker):
        first = (await http.get("/admin/v2/audit-log", params={"limit": 1})).json()
        rest = (await http.get("/admin/v2/audit-log", params={"page_token": first["next_page_token"]})).json()
        assert rest["next_page_token"] is None
        shown = [*first["items"], *rest["items"]]
        assert shown == [{k: v for k, v in each.items() if k not in ("event", "level")} for each in lines()[::-1]]
        asked = {"principal": "ada", "verb": "topic", "text": "DEFAULT/U", "outcome": "failed"}
        found = (await http.get("/admin/v2/audit-log", params=asked)).json()["items"]
        assert [(each["verb"], each["object"]) for each in found] == [("topic.delete", {"topic": "public/default/u"})]
        for name in asked:
            others = await http.get("/admin/v2/audit-log", params=asked | {name: "unknown"})
            assert others.json()["items"] == []
        wrong = await http.get("/admin/v2/audit-log", params={"outcome": "denied"})
        assert wrong.status_code == 422 and wrong.json()["field"] == "outcome"
    for http in (cast.bob.coordinator, cast.bob.broker):
        assert (await http.get("/admin/v2/audit-log")).status_code == 403
    for handler in logging.getLogger("metatxn.audit").handlers[:]:
        logging.getLogger("metatxn.audit").removeHandler(handler)
        handler.close()
    refused = await cast.ada.coordinator.get("/admin/v2/audit-log")
    assert refused.status_code == 404 and "--audit-log" in refused.json()["action"]


async def test_keys_and_what_the_gate_refuses(cast: Cast, lines: Lines) -> None:
    key = "/admin/v2/transactions/transaction-keys/k"
    await cast.bob.coordinator.post("/v1/transaction-keys/k/connect", json={"epoch": -1})
    await cast.ada.coordinator.post(f"{key}/fence", params={"owner": "bob"}, json={"epoch": 0})
    await cast.bob.coordinator.delete(key, params={"owner": "bob", "token": "secret"})
    await cast.ada.coordinator.delete(key, params={"owner": "bob"})
    mine = {"key": "k", "owner": "bob"}
    assert told(lines) == [
        ("bob", "transaction_key.connect", {"key": "k"}, "allowed"),
        ("ada", "transaction_key.fence", mine, "allowed"),
        ("bob", "transaction_key.delete", mine, "refused"),
        ("ada", "transaction_key.delete", mine, "allowed"),
    ]


async def test_ends_by_force_however_they_are_asked_for(cast: Cast, lines: Lines) -> None:
    """An abort without force is one of thousands. A body counts as the endpoint reads it."""
    coordinator = cast.ada.coordinator
    one, two, three, four = [(await coordinator.post("/v1/txns")).json()["txn_id"] for _ in range(4)]
    await coordinator.post(f"/v1/txns/{one}/abort", json={"force": False})
    await cast.bob.coordinator.post(f"/v1/txns/{two}/abort", json={"force": True})
    assert (await coordinator.post(f"/v1/txns/{two}/abort", json={"force": True})).status_code == 200
    utf_16 = json.dumps({"force": True}).encode("utf-16")
    assert (await coordinator.post(f"/v1/txns/{three}/abort", content=utf_16)).status_code == 200
    items = [{"op": "abort", "txn_id": one}, {"op": "abort", "txn_id": four, "force": True}]
    await coordinator.post("/v1/txns/batch", json={"items": items})
    await cast.bob.coordinator.post("/v1/txns/batch", json={"items": items})
    verb = "transaction.abort_by_force"
    assert told(lines) == [
        ("bob", verb, {"txn_id": two}, "refused"),
        ("ada", verb, {"txn_id": two}, "allowed"),
        ("ada", verb, {"txn_id": three}, "allowed"),
        ("ada", verb, {"txn_id": four}, "allowed"),
        ("bob", verb, {"txn_id": four}, "refused"),
    ]


async def test_names_are_on_one_line_and_have_an_end(cast: Cast, lines: Lines, tmp_path: Path) -> None:
    await cast.ada.broker.delete("/v1/topics/" + quote('x\n{"event": "forged"}\x1b]0;forged\x07\u2028\x9b'))
    await cast.ada.broker.delete("/v1/topics/" + "y" * 5_000)
    odd, long = lines()
    assert odd["object"]["topic"].startswith("x\n{") and odd["outcome"] == "failed"
    assert len(long["object"]["topic"]) == audit.MAX_TEXT + 1
    assert (tmp_path / "audit.log").read_text().replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(204, "allowed"), (403, "refused"), (409, "failed"), (503, "failed"), (499, "unknown"), (500, "unknown")],
)
def test_outcomes(status: int, outcome: str) -> None:
    assert audit.outcome_of(status) == outcome
    assert audit.outcome_of(504) == "unknown"


def broken_service() -> FastAPI:
    app = create_app("a service", "under test", "0", CollectorRegistry())

    @app.delete("/v1/topics/{topic}")
    @audited("topic.delete")
    async def delete_topic(topic: str) -> None:
        raise RuntimeError("a bug")

    return app


async def test_a_bug_leaves_the_outcome_unknown(lines: Lines) -> None:
    transport = httpx.ASGITransport(broken_service(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        await http.delete("/v1/topics/t")
    assert [(each["outcome"], each["status"]) for each in lines()] == [("unknown", 500)]


def test_a_change_of_the_tokens(tmp_path: Path, lines: Lines) -> None:
    path, now = tmp_path / "tokens", [0.0]
    path.write_text("1")
    watched = WatchedFile(path, int, lambda: now[0])
    for content in ("22", "no number"):
        path.write_text(content)
        now[0] += LOOK_EVERY_S
        assert watched.current() == 22
    assert told(lines) == [
        (None, "rights.change", {"file": str(path)}, "allowed"),
        (None, "rights.change", {"file": str(path)}, "failed"),
    ]


def test_the_page_names_every_verb() -> None:
    """In its table `.drop` behind `subscription.create` is `subscription.drop`."""
    (table,) = re.findall(r"\| verb \| object \|.*\n\|.*\n((?:\|.*\n)+)", PAGE)
    verbs: list[str] = []
    for row in table.splitlines():
        for name in re.findall(r"`([\w.]+)`", row.split("|")[1]):
            verbs.append(verbs[-1].rpartition(".")[0] + name if name.startswith(".") else name)
    assert sorted(verbs) == sorted(SCHEMA["properties"]["verb"]["enum"])


async def test_every_endpoint_that_changes_something_is_audited_or_has_a_reason(tmp_path: Path) -> None:
    store = MemoryStore(INDEXES)
    broker = BrokerService(store, data_dir=tmp_path, port=0)
    await broker.start()
    routes = [*CoordinatorService(store, port=0).app.routes, *broker.app.routes]
    await broker.stop()
    await store.close()
    changing = [each for each in routes if {*(getattr(each, "methods", None) or ())} - {"GET", "HEAD"}]
    quiet = {each.name for each in changing if mark_of(each) is None and "/share" not in each.path}  # type: ignore[attr-defined]
    assert quiet == NOT_AUDITED.keys()
    verbs = {mark.verb for each in changing if (mark := mark_of(each))}
    pages = "".join(path.read_text() for path in Path(pages_of_console.__path__[0]).glob("*.py"))
    named = re.findall(r'recording\(\s*"([\w.]+)"', pages)
    of_console = {f"console.{verb}" for verb in (*named, "segment.merge", "segment.seal", "segment.split")}
    elsewhere = {"rights.change", "group.delete", "topic.add_partitions"}
    assert verbs | of_console | elsewhere == {*SCHEMA["properties"]["verb"]["enum"]}


def test_a_file_that_is_moved_away_is_begun_again(tmp_path: Path, lines: Lines) -> None:
    audit.record("topic.delete", {"topic": "a"}, 204)
    (tmp_path / "audit.log").rename(tmp_path / "audit.log.1")
    audit.record("topic.delete", {"topic": "b"}, 204)
    assert [each["object"] for each in lines()] == [{"topic": "public/default/b"}]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"--audit-log: .*Give a writable file"):
        append_audit_log(tmp_path / "nowhere" / "audit.log")
