"""A record under a lease: it goes away some time after its process stopped refreshing the lease."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import ceil

import grpc.aio

from metastore.api import Ephemeral
from metastore.backends.etcd_connection import EtcdConnection, error_text
from metastore.backends.etcd_stubs import (
    Compare,
    KeyValue,
    LeaseGrantRequest,
    LeaseKeepAliveRequest,
    LeaseKeepAliveResponse,
    LeaseRevokeRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
)
from metastore.background import Backoff, in_background
from metastore.errors import MetastoreError, OutcomeUnknown, StoreUnavailable

MIN_TTL_S = 2  # etcd grants no shorter leases with its default election timeout
PUTS = 10
"""How many times to try to put a record while another client keeps writing under its key."""


class LeasedRecord(Ephemeral):
    """A record under a lease. At intervals of a third of its time to live, the lease is refreshed, or a new one
    granted, and the record is looked up: if there is none, it is put again. Earlier failures are not remembered, so it
    does not matter which step failed and whether only its reply was lost: the first round that succeeds leaves the
    record under a valid lease.

    A record that another client has put is left alone for as long as it exists.
    """

    def __init__(self, connection: EtcdConnection, key: bytes, value: bytes, ttl_ms: int, deadline_s: float) -> None:
        self._connection = connection
        self._key = key
        self._value = value
        self._ttl_s = max(MIN_TTL_S, ceil(ttl_ms / 1000))
        self._deadline_s = deadline_s
        self._lease = 0
        self._keeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Put the record, whatever was there before. Raises `StoreUnavailable`, `OutcomeUnknown`."""
        await self._grant()
        try:
            await self._place(over_others=True)
        except (StoreUnavailable, grpc.aio.AioRpcError) as error:
            raise OutcomeUnknown(f"the ephemeral record may exist until its lease ends: {error}") from None
        self._keeper = in_background(self._keep(), "etcd lease")

    async def close(self) -> None:
        """Revoke the lease, which deletes the record unless another client's put has detached it from the lease."""
        if self._keeper is None:
            return
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        self._keeper = None
        try:
            request = LeaseRevokeRequest(ID=self._lease)
            await self._connection.ask(self._connection.leases.LeaseRevoke, request, self._deadline_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:  # the lease ended by itself
                raise StoreUnavailable(f"the lease was not revoked and will expire: {error_text(error)}") from None

    async def _keep(self) -> None:
        backoff = Backoff()
        await asyncio.sleep(self._ttl_s / 3)
        while True:
            try:
                await self.renew()
            except (grpc.aio.AioRpcError, MetastoreError):
                await backoff.pause()
            else:
                backoff.reset()
                await asyncio.sleep(self._ttl_s / 3)

    async def renew(self) -> None:
        """Run one round. Raises `MetastoreError` or `grpc.aio.AioRpcError`; the next round does what is missing."""
        if not await self._refresh():
            await self._grant()
        await self._place()

    async def _grant(self) -> None:
        request = LeaseGrantRequest(TTL=self._ttl_s)
        try:
            answer = await self._connection.ask(self._connection.leases.LeaseGrant, request, self._deadline_s)
        except grpc.aio.AioRpcError as error:
            raise StoreUnavailable(f"etcd grants no lease: {error_text(error)}") from None
        self._lease = answer.ID

    async def _refresh(self) -> bool:
        """Whether the lease still exists. A lost lease is not an error to etcd: its time to live is 0."""
        request = LeaseKeepAliveRequest(ID=self._lease)
        within_s = min(self._deadline_s, self._ttl_s / 3)
        return (await self._connection.ask(self._keep_alive, request, within_s)).TTL > 0

    async def _keep_alive(
        self,
        request: LeaseKeepAliveRequest,
        *,
        timeout: float | None = None,
        metadata: Sequence[tuple[str, str]] | None = None,
        wait_for_ready: bool | None = None,
    ) -> LeaseKeepAliveResponse:
        """The first exchange of a stream, in the form of a call with one answer."""
        stream = self._connection.leases.LeaseKeepAlive(
            timeout=timeout, metadata=metadata, wait_for_ready=wait_for_ready
        )
        try:
            await stream.write(request)
            answer = await stream.read()
        finally:
            stream.cancel()
        if isinstance(answer, LeaseKeepAliveResponse):
            return answer
        raise StoreUnavailable("etcd has ended the stream without an answer")

    async def _place(self, *, over_others: bool = False) -> None:
        """Put the record unless one exists; with `over_others`, put it in any case."""
        for _ in range(PUTS):
            found = await self._find()
            if found and not over_others:
                return
            if await self._put_over(found):
                return
        raise StoreUnavailable(f"another client keeps writing {self._key.decode()}")

    async def _find(self) -> KeyValue | None:
        read = RangeRequest(key=self._key)
        answer = await self._connection.ask(self._connection.kv.Range, read, self._deadline_s)
        return answer.kvs[0] if answer.kvs else None

    async def _put_over(self, found: KeyValue | None) -> bool:
        """Put the record if nothing was written since `found`: a copy of the request that arrives late does nothing.
        Whether it was put."""
        unchanged = Compare(target=Compare.MOD, key=self._key, mod_revision=found.mod_revision if found else 0)
        put = PutRequest(key=self._key, value=self._value, lease=self._lease)
        request = TxnRequest(compare=[unchanged], success=[RequestOp(request_put=put)])
        return (await self._connection.ask(self._connection.kv.Txn, request, self._deadline_s)).succeeded
