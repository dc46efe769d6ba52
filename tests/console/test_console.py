"""Goal: what the console serves is what it says: its own files, as they were published, and no way to elsewhere.

Method: requests without a browser, to a coordinator that listens nowhere.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from coordinator.service import CoordinatorService
from metastore.backends.memory import MemoryStore
from metastore.txn.store import INDEXES
from metatxn.console.app import create_console
from metatxn.console.sessions import local_url
from tests.console.browser import VENDOR

STATIC = Path(__file__).parents[2] / "metatxn" / "console"


@pytest.fixture
async def service() -> AsyncIterator[CoordinatorService]:
    store = MemoryStore(INDEXES)
    service = CoordinatorService(store, port=0, console=lambda url, record: create_console(url, record=record))
    await service.start()
    yield service
    await service.stop()
    await store.close()


@pytest.fixture
async def http(service: CoordinatorService) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=service.url) as http:
        yield http


def records() -> list[tuple[Path, dict[str, Any]]]:
    found = [(STATIC / "static" / "vendor", each) for each in json.loads((STATIC / "vendored.json").read_text())]
    return found + [(VENDOR, each) for each in json.loads((VENDOR / "vendored.json").read_text())]


@pytest.mark.parametrize(("directory", "record"), [pytest.param(*each, id=each[1]["file"]) for each in records()])
def test_what_others_have_written_is_what_they_published(directory: Path, record: dict[str, Any]) -> None:
    digest = hashlib.sha384((directory / record["file"]).read_bytes()).digest()
    assert record["integrity"] == f"sha384-{base64.b64encode(digest).decode()}"
    assert record["package_integrity"].startswith("sha512-")
    assert (directory / record["license_file"]).read_text().strip()


def test_every_file_of_others_has_a_record() -> None:
    recorded = {directory / each[name] for directory, each in records() for name in ("file", "license_file")}
    there = {path for directory in (STATIC / "static" / "vendor", VENDOR) for path in directory.iterdir()}
    assert there - recorded == {VENDOR / "vendored.json"} and recorded <= there


async def test_every_answer_forbids_what_a_page_does_not_need(http: httpx.AsyncClient) -> None:
    for path in ("/console/", "/console/sign-in", "/console/no/such/page", "/console/static/console.css"):
        answer = await http.get(path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "no-store" in answer.headers["cache-control"] or path.startswith("/console/static/")


async def test_files_are_served_by_their_names_alone(http: httpx.AsyncClient) -> None:
    assert (await http.get("/console/static/htmx.min.js")).headers["content-type"].startswith("text/javascript")
    for name in ("..%2Fapp.py", "%2e%2e/app.py", "vendored.json", "htmx.LICENSE", "base.html", ""):
        assert (await http.get(f"/console/static/{name}")).status_code == 404, name


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/",
        "//evil.example/console/",
        "/\\evil.example/console/",
        "/console\\..//evil.example",
        "javascript:alert(1)",
        "/v1/txns",
        "/consoles",
        "",
    ],
)
def test_nobody_is_sent_elsewhere(url: str) -> None:
    assert local_url(url) == "/console/"


def test_everybody_is_sent_where_they_wanted_to_go() -> None:
    for url in ("/console", "/console/", "/console/topics/a%2Fb?x=%2F%2Fy"):
        assert local_url(url) == url


async def test_a_coordinator_stops_although_somebody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream ends, and the connection is not cut off."""
    monkeypatch.setattr("coordinator.service.STOP_GRACE_S", 1_000)
    store = MemoryStore(INDEXES)
    service = CoordinatorService(store, port=0, console=lambda url, record: create_console(url, record=record))
    await service.start()
    events = {"accept": "text/event-stream"}
    async with (
        httpx.AsyncClient(base_url=service.url) as http,
        http.stream("GET", "/console/", headers=events) as watched,
    ):
        said = watched.aiter_text()
        assert (await anext(said)).startswith("data: ")
        async with asyncio.timeout(100):
            await service.stop()
        assert "".join([text async for text in said]) == ""
    await store.close()


async def test_all_pages_are_one_route_in_the_metrics(http: httpx.AsyncClient) -> None:
    await http.get("/console/a")
    await http.get("/console/b")
    lines = (await http.get("/metrics")).text.splitlines()
    assert 'metatxn_requests_total{method="GET",route="/console",status="404"} 2.0' in lines


async def test_without_a_console_there_are_no_pages() -> None:
    service = CoordinatorService(MemoryStore(INDEXES))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(service.app), base_url="http://service") as http:
        assert (await http.get("/console/")).status_code == 404
    assert service.console_url is None
