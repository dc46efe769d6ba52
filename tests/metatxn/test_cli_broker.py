"""Goal: `metatxn broker` lists brokers, drains one, says how far it is, and ends a drain; a stop drains first.

Method: the real command against a development server, whose broker has local files; what needs several brokers, with
ones that are made up.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, cast

import pytest

import metatxn
from metatxn.cli import broker, services
from metatxn.cli.options import CliError, Interrupted
from metatxn.wire.models import BrokerInfo, BrokerProcess, Cluster, ServiceStatus
from tests.metatxn.command_line import Done, error_line, run_here
from tests.metatxn.dev_server import DevServer

BROKERS = [
    BrokerProcess(id=name, url=f"http://{name}", storage="s", draining=draining)
    for name, draining in (("4f1c", False), ("4f2d", True), ("77aa", True), ("gone", False), ("slow", False))
]


def test_a_broker_with_local_files(dev: DevServer) -> None:
    def cli(*arguments: str) -> Done:
        return run_here("broker", *arguments, METATXN_URL=dev.coordinator_url)

    (listed,) = json.loads(cli("list", "-o", "json").stdout)
    assert (listed["url"], listed["state"], listed["draining"]) == (dev.broker_url, "serving", False)
    would = cli("drain", dev.broker_url, "--dry-run").stdout
    assert would.startswith("would prevent new topics, because there is no other broker") and listed["id"] in would
    assert json.loads(cli("list", "-o", "json").stdout)[0]["state"] == "serving"
    assert cli("undrain", listed["id"]).stdout == f"broker {listed['id']} was not being drained\n"
    try:
        assert "no other broker takes new topics" in error_line(cli("drain", listed["id"][:5]))
        lines = cli("list").stdout.splitlines()
        assert lines[0].split() == list(broker.COLUMNS)
        assert lines[1].split()[:2] == [listed["id"], dev.broker_url] and lines[1].split()[2] in ("draining", "drained")
        assert "every broker is being drained" in run_here("status", METATXN_URL=dev.coordinator_url).stdout
    finally:
        assert cli("undrain", listed["id"]).stdout == f"broker {listed['id']} serves again\n"
    lines = cli("segments", listed["id"]).stdout.splitlines()
    assert lines[0].split() == " ".join(broker.SEGMENT_COLUMNS).split()
    shown = json.loads(cli("segments", listed["id"], "-o", "json").stdout)
    assert len(shown) == len(lines) - 1 and all(each["segment"].startswith("segment://") for each in shown)
    assert "no broker matches 'nowhere'" in error_line(cli("drain", "nowhere"))
    assert "no broker matches ''" in error_line(cli("undrain", ""))
    assert "--timeout" in error_line(cli("drain", listed["id"], "--timeout", "soon"))


class Brokers:
    """What the commands ask a client for. `left` are the segments that the drained one has at each look."""

    def __init__(self, *left: int, waiting_for: str | None = None) -> None:
        self.left = list(left)
        self.waiting_for = waiting_for

    def cluster(self) -> Cluster:
        return Cluster(coordinators=[], brokers=BROKERS, revision=7)

    def service_status(self, url: str) -> ServiceStatus:
        if url == "http://gone":
            raise metatxn.ServiceUnreachable("nobody listens there")
        segments, ready = 0 if url == "http://77aa" else 3, url != "http://slow"
        return ServiceStatus(service="broker", version="1", now_ms=1, up_ms=8_000, ready=ready, segments=segments)

    def broker(self, broker_id: str) -> BrokerInfo:
        left = self.left.pop(0)
        state: Any = "draining" if left else "drained"
        about = {"waiting_for": self.waiting_for, "segments": left, "state": state}
        return BrokerInfo(id=broker_id, url="http://b", storage="s", shared=True, **about)


def test_what_each_broker_is_doing() -> None:
    states = [broker._seen(cast(metatxn.Client, Brokers()), each)["state"] for each in BROKERS]
    assert states == ["serving", "draining", "drained", "no answer", "not ready"]


def test_a_broker_is_named_by_its_id_the_beginning_of_it_or_its_url() -> None:
    client = cast(metatxn.Client, Brokers())
    assert [broker._id_of(client, named) for named in ("4f1c", "4f1", "7", "http://4f2d/")] == [
        *("4f1c", "4f1c", "77aa", "4f2d")
    ]
    with pytest.raises(CliError, match="2 brokers match '4f'"):
        broker._id_of(client, "4f")


def told(*left: int, shared: bool = True) -> BrokerInfo:
    about = {"segments": left[0], "state": "draining", "waiting_for": None}
    return BrokerInfo(id="4f1c", url="http://b", storage="s", shared=shared, **about)


def test_a_trial_says_if_nobody_could_take_anything() -> None:
    """Of `BROKERS`, two are being drained."""
    client = cast(metatxn.Client, Brokers())
    assert not broker._is_alone(client, told(1)) and not broker._is_alone(client, told(1, shared=False))
    elsewhere = told(1).model_copy(update={"storage": "another"})
    assert broker._is_alone(client, elsewhere)
    assert not broker._is_alone(client, elsewhere.model_copy(update={"shared": False}))
    assert broker._plan(told(1), alone=False) == "hand 1 segment of broker 4f1c over to others of storage s"
    assert broker._plan(told(2), alone=True).endswith("so none would move")
    assert broker._plan(told(2, shared=False), alone=False).startswith("send new topics to other brokers; 2 segments")


def until_drained(brokers: Brokers, within_s: float = 60.0) -> BrokerInfo:
    seconds = count()
    client = cast(metatxn.Client, brokers)
    return broker._until_drained(client, brokers.broker("b"), within_s, lambda: next(seconds))


def test_it_is_waited_until_all_segments_have_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "POLL_S", 0)
    assert until_drained(Brokers(3, 2, 1, 0)).state == "drained"
    with pytest.raises(CliError, match="2 segments left at the end of --timeout, and the drain goes on"):
        until_drained(Brokers(*[2] * 9), within_s=3)
    with pytest.raises(CliError, match="the drain has begun, but no other broker is there"):
        until_drained(Brokers(2, waiting_for="no other broker is there"))


class CutShort(Brokers):
    """After the first look somebody presses Ctrl-C, or the broker has stopped."""

    def __init__(self, by: BaseException) -> None:
        super().__init__(3)
        self._by = by

    def broker(self, broker_id: str) -> BrokerInfo:
        if not self.left:
            raise self._by
        return super().broker(broker_id)


def test_who_stops_waiting_is_told_that_the_drain_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "POLL_S", 0)
    with pytest.raises(Interrupted, match=r"the drain goes on: 3 segments left.* metatxn broker undrain b\."):
        until_drained(CutShort(KeyboardInterrupt()))


def test_a_broker_that_stops_meanwhile_is_said_to_have_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "POLL_S", 0)
    with pytest.raises(CliError, match="broker b stopped before 3 segments had moved"):
        until_drained(CutShort(metatxn.NotFound("no broker with the id 'b' is running")))
    with pytest.raises(CliError, match=r"with 3 segments left: nothing answers.* the others take over what was left"):
        until_drained(CutShort(metatxn.ServiceUnreachable("nothing answers")))


async def stopped(before_stop: services.BeforeStop | None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The order of events when a process that is asked to stop does this before."""
    monkeypatch.setattr(services, "tune_interpreter", lambda: None)
    events: list[str] = []

    async def run(stack: AsyncExitStack) -> services.BeforeStop | None:
        stack.callback(events.append, "stopped")
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        return before_stop

    await services.until_stopped(run)
    return events


async def test_a_second_signal_ends_what_is_done_before_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    async def drains() -> None:
        done.append("begun")
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            done.append("ended")

    assert await stopped(drains, monkeypatch) == ["stopped"]
    assert done == ["begun", "ended"]


async def test_without_a_second_signal_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    async def drains() -> None:
        await asyncio.sleep(0)
        done.append("drained")

    assert await stopped(drains, monkeypatch) == ["stopped"]
    assert done == ["drained"]
    assert await stopped(None, monkeypatch) == ["stopped"]
