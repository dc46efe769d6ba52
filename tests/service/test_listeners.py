"""Goal: a client gets the addresses at which it can reach the services: those of the listener that it uses.

Method: a coordinator and brokers in this process with addresses for outside, which are asked through a transport that
leads every address to its service and says under which name it was called.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from coordinator.service import CoordinatorService
from metastore.backends.memory import MemoryStore
from metastore.txn.store import INDEXES
from metatxn.wire.listeners import Listeners, address_for
from participants.service import BrokerService

OUTSIDE = {"external": "http://outside:8471", "vpn": "https://vpn.example"}


@pytest.mark.parametrize(
    ("given", "url", "named"),
    [
        ([], None, {}),
        (["http://b:8471"], "http://b:8471", {}),
        (["http://b:8471/", "external=https://o"], "http://b:8471", {"external": "https://o"}),
        (["external=http://o/x=y"], None, {"external": "http://o/x=y"}),
        (["http://b/?a=b"], "http://b/?a=b", {}),
    ],
)
def test_addresses_as_options_give_them(given: list[str], url: str | None, named: dict[str, str]) -> None:
    assert Listeners.parse(given) == Listeners(url, named)


@pytest.mark.parametrize(
    "given",
    [
        *(["b:8471"], ["http://"], ["ftp://b"], ["external=b"], ["Ex=http://b"], ["=http://b"], ["http://u:p@b"]),
        *(["http://b:99999"], ["http://b", "http://c"], ["x=http://b", "x=http://c"], ["http://[b"]),
    ],
)
def test_what_is_no_address_is_refused(given: list[str]) -> None:
    with pytest.raises(ValueError, match="address of"):
        Listeners.parse(given)


@pytest.mark.parametrize(
    ("host", "named", "used"),
    [
        ("outside:8471", None, "external"),
        ("OUTSIDE:8471", None, "external"),
        ("outside:8472", None, None),
        ("outside", None, None),
        ("vpn.example", None, "vpn"),
        ("vpn.example:443", None, "vpn"),
        ("b:8471", None, None),
        ("", None, None),
        ("[", None, None),
        ("b:8471", "external", "external"),
        ("outside:8471", "nowhere", "nowhere"),
    ],
)
def test_the_listener_of_a_request(host: str, named: str | None, used: str | None) -> None:
    assert Listeners("http://b:8471", OUTSIDE).used_by(named, host) == used


def test_who_has_no_address_of_that_name_is_shown_with_its_own() -> None:
    assert address_for("external", "http://b", OUTSIDE) == OUTSIDE["external"]
    assert [address_for(name, "http://b", named) for name, named in ((None, OUTSIDE), ("x", OUTSIDE), ("x", None))] == [
        "http://b"
    ] * 3


class Outside:
    """A coordinator and two brokers with disks of their own."""

    def __init__(self, tmp_path: Path) -> None:
        self.store = MemoryStore(INDEXES)
        self.coordinator = CoordinatorService(
            self.store, port=0, advertise_url="http://c", listeners={"external": "http://outside-c"}
        )
        self.brokers = [
            BrokerService(
                self.store,
                port=0,
                data_dir=tmp_path / name,
                advertise_url=f"http://{name}",
                listeners={"external": f"http://outside-{name}"},
            )
            for name in "ab"
        ]

    async def ask(self, service: Any, method: str, path: str, **request: Any) -> httpx.Response:
        """As somebody outside does, unless `url` says otherwise."""
        url = request.pop("url", None) or next(iter(service.app.state.listeners.named.values()))
        transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=url, follow_redirects=False) as http:
            return await http.request(method, path, **request)


@pytest.fixture
async def outside(tmp_path: Path) -> AsyncIterator[Outside]:
    found = Outside(tmp_path)
    services: list[Any] = [found.coordinator, *found.brokers]
    await asyncio.gather(*(service.start() for service in services))
    yield found
    await asyncio.gather(*(service.stop() for service in services))


async def test_every_answer_that_names_a_service_names_the_one_outside(outside: Outside) -> None:
    owner, other = outside.brokers
    for service, path in ((outside.coordinator, "coordinators"), (other, "brokers")):
        listed = (await outside.ask(service, "GET", "/v1/cluster")).json()
        assert all(each["url"].startswith("http://outside-") for each in listed[path])
        assert all(each["listeners"]["external"] == each["url"] for each in listed[path])
    created = await outside.ask(owner, "POST", "/v1/topics", json={"name": "t"})
    assert created.json()["segments"][0]["owner"] == "http://outside-a", created.text
    assert (await outside.ask(other, "GET", "/v1/topics/t")).json()["segments"][0]["owner"] == "http://outside-a"
    assert (await outside.ask(other, "GET", "/v1/topics")).json()["items"][0]["segments"][0]["owner"].endswith("-a")
    segment = created.json()["segments"][0]["segment"]
    path = f"/v1/segments/{quote(segment, safe='')}"
    assert (await outside.ask(owner, "GET", path)).json()["owner"] == "http://outside-a"
    redirected = await outside.ask(other, "GET", f"{path}/entries?max_bytes=5")
    assert redirected.headers["Location"] == f"http://outside-a{path}/entries?max_bytes=5"
    assert redirected.json()["owner_url"] == "http://outside-a" and "listeners" not in redirected.json()
    subscription = {"type": "shared", "initial": "earliest"}
    home = await outside.ask(other, "PUT", "/v1/topics/t/subscriptions/s", json=subscription)
    assert home.headers["Location"].startswith("http://outside-a/")
    horizons = await outside.ask(other, "POST", "/v1/horizons", json={"segments": {segment: {}}})
    assert horizons.json()["elsewhere"] == {segment: "http://outside-a"}
    (drained,) = {each.broker.id for each in outside.brokers if each is owner and each.broker}
    moved = await outside.ask(other, "POST", f"/v1/brokers/{drained}/drain")
    assert moved.headers["Location"] == f"http://outside-a/v1/brokers/{drained}/drain"
    assert (await outside.ask(owner, "POST", f"/v1/brokers/{drained}/drain")).json()["url"] == "http://outside-a"
    elsewhere = await outside.ask(owner, "POST", "/v1/topics", json={"name": "u"})
    assert elsewhere.headers["Location"] == "http://outside-b/v1/topics"


async def test_from_inside_the_addresses_are_those_of_inside(outside: Outside) -> None:
    for headers, url in (({}, "http://b"), ({}, "http://127.0.0.1:1"), ({"Metatxn-Listener": "x"}, "http://outside-b")):
        listed = (await outside.ask(outside.brokers[1], "GET", "/v1/cluster", url=url, headers=headers)).json()
        assert {each["url"] for each in listed["brokers"]} == {"http://a", "http://b"}
        assert listed["coordinators"][0]["url"] == "http://c"
    named = {"Metatxn-Listener": "external"}
    listed = (await outside.ask(outside.brokers[1], "GET", "/v1/cluster", url="http://b", headers=named)).json()
    assert {each["url"] for each in listed["brokers"]} == {"http://outside-a", "http://outside-b"}
