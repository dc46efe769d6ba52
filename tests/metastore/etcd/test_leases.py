"""Goal: an ephemeral record is there as long as its process and the server are, whichever step of renewing it failed.

Method: the lease of a record is revoked, and rounds of renewal are made by hand (its own are 20 s away). Calls of a
round are lost by plan, or only their replies: every call of every round, and every pair of them. One round without a
fault must then bring the record back, under a lease that lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, product
from typing import Any

import pytest

from metastore.backends.etcd import EtcdStore
from metastore.backends.etcd_leases import LeasedRecord
from metastore.backends.etcd_stubs import LeaseRevokeRequest, RangeRequest, TxnRequest, TxnResponse
from metastore.errors import MetastoreError, OutcomeUnknown, StoreUnavailable
from metastore.types import Absent
from tests.metastore.etcd.conftest import OpenStore
from tests.servers import EtcdServer

TTL_MS = 60_000
KEY = "/live"
STEPS = 4
"""Of a round that has lost its lease: refresh, grant, look, put."""
LOSSES = ("request", "reply")


async def announce(store: EtcdStore) -> LeasedRecord:
    record = await store.ephemeral(KEY, b"here", TTL_MS)
    assert isinstance(record, LeasedRecord)
    return record


async def revoke(store: EtcdStore, record: LeasedRecord) -> None:
    await store._connection.leases.LeaseRevoke(LeaseRevokeRequest(ID=record._lease), timeout=5)


async def found_lease(store: EtcdStore) -> int | None:
    """Of the record that is there."""
    answer = await store._connection.kv.Range(RangeRequest(key=store._wire.key(KEY)), timeout=5)
    return answer.kvs[0].lease if answer.kvs else None


class Losing:
    """Loses one call that `store` makes: its request, or only its reply."""

    def __init__(self, store: EtcdStore) -> None:
        self._real = store._connection.ask
        self._left: Iterator[int] = count()
        self._step = -1
        self._what = ""
        store._connection.ask = self  # type: ignore[method-assign, assignment]

    def lose(self, step: int, what: str) -> None:
        """The next calls have the numbers 0, 1, …; number `step` is lost."""
        self._left, self._step, self._what = count(), step, what

    async def __call__(self, *arguments: Any) -> Any:
        if next(self._left) != self._step:
            return await self._real(*arguments)
        if self._what == "reply":
            await self._real(*arguments)
        raise StoreUnavailable("lost by the test")


@pytest.mark.parametrize("first", LOSSES)
@pytest.mark.parametrize("second", LOSSES)
async def test_whatever_step_fails_the_next_whole_round_brings_it_back(
    etcd_server: EtcdServer, open_store: OpenStore, first: str, second: str
) -> None:
    store = await open_store(etcd_server)
    losing = Losing(store)
    record = await announce(store)
    for one, other, revoked_again in product(range(STEPS), range(STEPS), (False, True)):
        case = f"step {one}, then step {other}, lost again between them: {revoked_again}"
        await revoke(store, record)
        losing.lose(one, first)
        with pytest.raises(MetastoreError):
            await record.renew()
        if revoked_again and (lease := await found_lease(store)) is not None:
            assert lease == record._lease, case
            await revoke(store, record)
        losing.lose(other, second)
        with suppress(StoreUnavailable):
            await record.renew()
        losing.lose(-1, "")
        await record.renew()
        assert await found_lease(store) == record._lease, case
        assert await record._refresh(), case


async def test_what_somebody_else_has_put_is_left_alone_while_it_is_there(
    etcd_server: EtcdServer, open_store: OpenStore
) -> None:
    store = await open_store(etcd_server)
    record = await announce(store)
    theirs = await store.apply(store.batch().put(KEY, b"theirs"))
    await record.renew()
    await revoke(store, record)
    await record.renew()
    found = await store.get(KEY)
    assert found is not None and (found.value, found.version) == (b"theirs", theirs.revision)
    await store.apply(store.batch().delete(KEY))
    await record.renew()
    found = await store.get(KEY)
    assert found is not None and found.value == b"here"
    await record.close()
    assert await store.get(KEY) is None


async def test_a_put_that_arrives_late_takes_nothing_from_somebody_else(
    etcd_server: EtcdServer, open_store: OpenStore
) -> None:
    """Its reply was lost, so it was sent again; the first copy arrives when another process has the key."""
    store = await open_store(etcd_server)
    real = store._connection.kv.Txn
    sent: list[TxnRequest] = []

    async def remember(request: TxnRequest, **options: Any) -> TxnResponse:
        sent.append(request)
        return await real(request, **options)

    store._connection.kv.Txn = remember
    record = await announce(store)
    (put,) = sent
    await store.apply(store.batch().put(KEY, b"theirs"))
    assert not (await real(put, timeout=5)).succeeded
    found = await store.get(KEY)
    assert found is not None and found.value == b"theirs"
    await record.close()


async def test_a_key_that_somebody_keeps_writing_is_given_up(etcd_server: EtcdServer, open_store: OpenStore) -> None:
    """Rather than trying forever: nothing promises that the other one ever stops."""
    store = await open_store(etcd_server)
    real = store._connection.kv.Txn

    async def too_late(request: TxnRequest, **options: Any) -> TxnResponse:
        if request.success[0].request_put.key == store._wire.key(KEY):
            await store.apply(store.batch().put(KEY, b"theirs"))
        return await real(request, **options)

    store._connection.kv.Txn = too_late
    async with asyncio.timeout(60):
        with pytest.raises(OutcomeUnknown, match="another client keeps writing"):
            await announce(store)
    store._connection.kv.Txn = real
    await store.apply(store.batch().check(Absent("/other")))
