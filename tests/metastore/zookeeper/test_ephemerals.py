"""Goal: an ephemeral record is there as long as its process, whatever becomes of sessions and replies, and no longer.

Method: real sessions are ended, and behind each end one step of holding the record again fails, in every way in which
it can; the next session ends without any fault. What is there is judged when everything has come to rest. Then the
same at random, of several processes, some of which die.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from metastore.api import Ephemeral
from metastore.backends.zookeeper import ZooKeeperStore
from metastore.backends.zookeeper_connection import LostError
from metastore.backends.zookeeper_wire import Multi
from metastore.errors import MetastoreError, OutcomeUnknown, StoreUnavailable
from metastore.types import Applied, Record
from tests.metastore.zookeeper.conftest import OpenStore, children
from tests.metastore.zookeeper.faults import (
    Fault,
    Send,
    delivered,
    delivered_twice,
    end_session,
    haunt,
    is_fence,
    reply_lost,
    request_lost,
)
from tests.servers import ZooKeeperServer

DEADLINE_MS = 1_000
"""Of the stores that must wait for it until they know that they do not know."""


class Nemesis:
    """Sees every multi of a store, and lets number `at` of them meet a fault. With `held` no fence is sent behind it
    until somebody has been told that an outcome is unknown."""

    def __init__(self, store: ZooKeeperStore) -> None:
        self._send_really = store._connection.send
        self._at: int | None = None
        self._seen = 0
        self._fault: Fault = delivered
        self._told = asyncio.Event()
        store._connection.send = self._send  # type: ignore[method-assign]
        assert store._ephemerals is not None
        self._apply = store._ephemerals._apply
        store._ephemerals._apply = self._listen

    def strike(self, at: int, fault: Fault, *, held: bool) -> None:
        self._at, self._seen, self._fault = at, 0, fault
        self._told = asyncio.Event()
        if not held:
            self._told.set()

    def rest(self) -> bool:
        """No more faults. Whether there has been one."""
        met = self._at is not None and self._seen > self._at
        self._at = None
        self._told.set()
        return met

    def when_told(self, act: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Do something as soon as somebody has been told, at the latest when this comes to rest."""
        told = self._told

        async def wait() -> None:
            await told.wait()
            await act()

        return asyncio.create_task(wait())

    async def _listen(self, *arguments: Any) -> Applied:
        try:
            return await self._apply(*arguments)
        except OutcomeUnknown:
            self._told.set()
            raise

    def _send(self, request: Any) -> asyncio.Future[Any]:
        if self._at is None or not isinstance(request, Multi):
            return self._send_really(request)
        number, self._seen = self._seen, self._seen + 1
        if number == self._at:
            return asyncio.ensure_future(self._fault(request, self._send_really))
        if number > self._at and is_fence(request):
            return asyncio.ensure_future(self._send_fence(request))
        return self._send_really(request)

    async def _send_fence(self, request: Any) -> Any:
        await self._told.wait()
        return await self._send_really(request)


async def at_rest(store: ZooKeeperStore, *others: ZooKeeperStore) -> None:
    """Until the stores have done all that they will do by themselves: who is dead holds nothing, and nobody is busy."""
    while True:
        await store._connection.wait_connected()
        session = store._connection.session
        alive = await children(store, store._paths.alive)
        owners = await children(store, store._paths.held)
        keepers = [one._ephemerals._keeper for one in (store, *others) if one._ephemerals and one._ephemerals._keeper]
        if keepers:
            await asyncio.wait(keepers, timeout=1)
        elif set(owners) <= set(alive) and session is not None and session == store._connection.session:
            return


async def seen(store: ZooKeeperStore, key: str) -> Record:
    record = await store.get(key)
    assert record is not None, "it was lost while its process lives"
    return record


async def ends_too(store: ZooKeeperStore, request: Any, send: Send, *, lands: bool) -> Any:
    """The session is over before the answer comes."""
    if lands:
        await send(request)
    await end_session(store)
    raise LostError("by the test")


FAULTS: dict[str, Callable[[ZooKeeperStore], Fault]] = {
    "request lost": lambda store: request_lost,
    "reply lost": lambda store: reply_lost,
    "delivered twice": lambda store: delivered_twice,
    "never settled": lambda store: request_lost,
    "settled late": lambda store: reply_lost,
    "session ends before": lambda store: partial(ends_too, store, lands=False),
    "session ends behind": lambda store: partial(ends_too, store, lands=True),
}
UNSETTLED = ("never settled", "settled late")


async def observed(server: ZooKeeperServer, open_store: OpenStore) -> tuple[ZooKeeperStore, ZooKeeperStore]:
    """A store that only looks, and cleans up behind the dead; and one that holds records."""
    observer = await open_store(server)
    return observer, await open_store(server, observer._paths.root, deadline_ms=DEADLINE_MS)


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_loss_behind_a_new_session_costs_the_record(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, fault: str
) -> None:
    observer, store = await observed(zookeeper_server, open_store)
    held = await store.ephemeral("/live/1", b"here", 1_000)
    nemesis = Nemesis(store)
    async with asyncio.timeout(40):
        for step in itertools.count():
            nemesis.strike(step, FAULTS[fault](store), held=fault in UNSETTLED)
            await end_session(store)
            await at_rest(observer, store)
            met = nemesis.rest()
            assert (await seen(observer, "/live/1")).value == b"here"
            await end_session(store)
            await at_rest(observer, store)
            assert (await seen(observer, "/live/1")).value == b"here"
            if not met:
                break
        assert step >= 2
        await held.close()
    assert await observer.get("/live/1") is None


@pytest.mark.parametrize("fault", UNSETTLED)
async def test_a_record_that_nobody_has_cleaned_up_is_known_as_ours(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, fault: str
) -> None:
    """Otherwise it depends on who is quicker: the holder that tries again, or the process that cleans up behind its
    session."""
    observer, store = await observed(zookeeper_server, open_store)
    ephemerals = store._ephemerals
    assert ephemerals is not None and observer._ephemerals is not None
    cleaning = asyncio.Event()
    for each in (ephemerals, observer._ephemerals):
        each.reap = partial(after, cleaning, each.reap)  # type: ignore[method-assign]
    await store.ephemeral("/live/1", b"here", 1_000)
    nemesis = Nemesis(store)
    async with asyncio.timeout(40):
        for step in itertools.count():
            cleaning.clear()
            nemesis.strike(step, FAULTS[fault](store), held=True)
            await end_session(store)
            await store._connection.wait_connected()
            while (keeper := ephemerals._keeper) is not None:
                await asyncio.wait([keeper])
            met = nemesis.rest()
            cleaning.set()
            await at_rest(observer, store)
            assert (await seen(observer, "/live/1")).value == b"here"
            if not met:
                break


async def after(event: asyncio.Event, act: Callable[[], Awaitable[None]]) -> None:
    await event.wait()
    await act()


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_loss_while_it_is_put_first_costs_the_record(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, fault: str
) -> None:
    observer, store = await observed(zookeeper_server, open_store)
    nemesis = Nemesis(store)
    async with asyncio.timeout(40):
        for step in itertools.count():
            await end_session(store)  # so that it has no owner yet
            key = f"/live/{step}"
            nemesis.strike(step, FAULTS[fault](store), held=fault in UNSETTLED)
            (held,) = await asyncio.gather(store.ephemeral(key, b"here", 1_000), return_exceptions=True)
            await at_rest(observer, store)
            met = nemesis.rest()
            if not isinstance(held, Ephemeral):
                assert isinstance(held, MetastoreError)
                assert not held.definite or await observer.get(key) is None
                continue
            assert (await seen(observer, key)).value == b"here"
            await held.close()
            assert await observer.get(key) is None
            if not met:
                break
        assert step >= 2


@pytest.mark.parametrize("fault", ["never settled", "settled late"])
async def test_one_that_is_closed_while_nobody_knows_whether_it_is_there_goes_for_good(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore, fault: str
) -> None:
    observer, store = await observed(zookeeper_server, open_store)
    nemesis = Nemesis(store)
    async with asyncio.timeout(40):
        for step in itertools.count():
            held = await store.ephemeral("/live/1", b"here", 1_000)
            nemesis.strike(step, FAULTS[fault](store), held=True)
            closing = nemesis.when_told(held.close)
            await end_session(store)
            await at_rest(observer, store)
            met = nemesis.rest()
            await closing
            await at_rest(observer, store)
            assert await observer.get("/live/1") is None
            await end_session(store)
            await at_rest(observer, store)
            assert await observer.get("/live/1") is None, "it was put again behind its end"
            if not met:
                break
        assert step >= 2


async def test_somebody_elses_record_is_left_alone(zookeeper_server: ZooKeeperServer, open_store: OpenStore) -> None:
    observer, store = await observed(zookeeper_server, open_store)
    held = await store.ephemeral("/live/1", b"here", 1_000)
    await observer.apply(observer.batch().put("/live/1", b"mine now"))
    await end_session(store)
    await at_rest(observer, store)
    assert (await seen(observer, "/live/1")).value == b"mine now"
    await held.close()
    assert (await seen(observer, "/live/1")).value == b"mine now"


async def test_the_dead_are_buried_by_whoever_failed_at_first(
    zookeeper_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    """Nothing else happens that would make it look again."""
    observer, store = await observed(zookeeper_server, open_store)
    await store.ephemeral("/live/1", b"here", 1_000)
    await store.ephemeral("/live/2", b"here", 1_000)
    ephemerals, failures = observer._ephemerals, 2
    assert ephemerals is not None
    apply = ephemerals._apply

    async def unavailable(*arguments: Any) -> Applied:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreUnavailable("by the test")
        return await apply(*arguments)

    ephemerals._apply = unavailable
    await store._connection.close()
    async with asyncio.timeout(60):
        await at_rest(observer)
    assert (await observer.scan("/live/")).records == [] and not failures


@pytest.mark.parametrize("seed", range(2))
async def test_at_random(zookeeper_server: ZooKeeperServer, open_store: OpenStore, seed: int) -> None:
    """Processes put and close records, lose replies and sessions, and die. In the end there is what lives, for good."""
    dice = random.Random(seed)
    observer = await open_store(zookeeper_server)
    living: dict[ZooKeeperStore, dict[str, Ephemeral]] = {}
    names = itertools.count()

    async def begin() -> None:
        store = await open_store(zookeeper_server, observer._paths.root)
        haunt(store, random.Random(dice.random()))
        living[store] = {}

    async def put(store: ZooKeeperStore) -> None:
        key = f"/live/{next(names)}"
        with suppress(MetastoreError):  # the caller knows that it does not know
            living[store][key] = await store.ephemeral(key, key.encode(), 1_000)

    async def close(store: ZooKeeperStore) -> None:
        if living[store]:
            await living[store].pop(dice.choice(list(living[store]))).close()

    async def die(store: ZooKeeperStore) -> None:
        del living[store]
        await store._connection.close()
        await begin()

    for _ in range(3):
        await begin()
    async with asyncio.timeout(40):
        for _ in range(40):
            store = dice.choice(list(living))
            (deed,) = dice.choices([put, close, end_session, die], [5, 2, 5, 1])
            await deed(store)
        for _ in range(2):
            for store in living:
                await at_rest(observer, *living)
                await end_session(store)
            await at_rest(observer, *living)
            there = {record.key: record.value for record in (await observer.scan("/live/")).records}
            assert there == {key: key.encode() for of_store in living.values() for key in of_store}
