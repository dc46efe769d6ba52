"""A record under a lease: it goes away some time after its process stopped refreshing the lease."""

from __future__ import annotations

import asyncio
from math import ceil

import grpc.aio

from metastore.api import Ephemeral
from metastore.backends.etcd_connection import Connection, describe
from metastore.backends.etcd_stubs import (
    Compare,
    LeaseGrantRequest,
    LeaseKeepAliveRequest,
    LeaseKeepAliveResponse,
    LeaseRevokeRequest,
    PutRequest,
    RequestOp,
    TxnRequest,
)
from metastore.background import Backoff, in_background
from metastore.errors import MetastoreError, OutcomeUnknown, StoreUnavailable

MIN_TTL_S = 2  # etcd grants no shorter ones with its default election timeout


class LeasedRecord(Ephemeral):
    """Refreshes its lease every third of its life. If it was lost nevertheless (the process was frozen, the server
    away), a new one is granted and the record is put again, unless somebody else has put one."""

    def __init__(self, connection: Connection, key: bytes, value: bytes, ttl_ms: int, deadline_s: float) -> None:
        self._connection = connection
        self._key = key
        self._value = value
        self._ttl_s = max(MIN_TTL_S, ceil(ttl_ms / 1000))
        self._deadline_s = deadline_s
        self._lease = 0
        self._keeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Put the record, whatever was there. Raises `StoreUnavailable`, `OutcomeUnknown`."""
        await self._grant()
        put = PutRequest(key=self._key, value=self._value, lease=self._lease)
        try:
            await self._connection.ask(self._connection.kv.Put, put, self._deadline_s)
        except (StoreUnavailable, grpc.aio.AioRpcError) as error:
            raise OutcomeUnknown(f"the ephemeral record may exist until its lease ends: {error}") from None
        self._keeper = in_background(self._keep(), "etcd lease")

    async def close(self) -> None:
        """Revoke the lease: that deletes the record, unless somebody else's put has taken it off the lease."""
        if self._keeper is None:
            return
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        self._keeper = None
        try:
            request = LeaseRevokeRequest(ID=self._lease)
            await self._connection.ask(self._connection.leases.LeaseRevoke, request, self._deadline_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:  # ended by itself
                raise StoreUnavailable(f"the lease was not revoked and will run out: {describe(error)}") from None

    async def _keep(self) -> None:
        backoff = Backoff()
        await asyncio.sleep(self._ttl_s / 3)
        while True:
            try:
                with self._connection.cut_off():
                    alive = await self._refresh()
                if not alive:
                    await self._grant()
                    await self._put_if_absent()
            except (grpc.aio.AioRpcError, MetastoreError):
                await backoff.pause()
            else:
                backoff.reset()
                await asyncio.sleep(self._ttl_s / 3)

    async def _grant(self) -> None:
        request = LeaseGrantRequest(TTL=self._ttl_s)
        try:
            answer = await self._connection.ask(self._connection.leases.LeaseGrant, request, self._deadline_s)
        except grpc.aio.AioRpcError as error:
            raise StoreUnavailable(f"etcd grants no lease: {describe(error)}") from None
        self._lease = answer.ID

    async def _refresh(self) -> bool:
        """Whether the lease is still there. A lost one is no error to etcd: its time to live is 0."""
        stream = self._connection.leases.LeaseKeepAlive(
            timeout=self._ttl_s / 3, metadata=self._connection.metadata or None
        )
        try:
            await stream.write(LeaseKeepAliveRequest(ID=self._lease))
            answer = await stream.read()
            return isinstance(answer, LeaseKeepAliveResponse) and answer.TTL > 0
        finally:
            stream.cancel()

    async def _put_if_absent(self) -> None:
        put = PutRequest(key=self._key, value=self._value, lease=self._lease)
        absent = Compare(target=Compare.CREATE, key=self._key, create_revision=0)
        request = TxnRequest(compare=[absent], success=[RequestOp(request_put=put)])
        await self._connection.ask(self._connection.kv.Txn, request, self._deadline_s)
