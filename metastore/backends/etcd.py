"""The store on etcd, 3.4 or later.

    etcd.py                this store: reads, and who does the rest
    etcd_group_commit.py   writes: many applies per request, lost replies resolved by a fence
    joining.py             which applies may travel together (ZooKeeper's group commit follows it too)
    pending.py             applies without an answer, and their deadlines (the same)
    etcd_group_reads.py    reads: many per request
    etcd_watches.py        one server watch per prefix
    etcd_leases.py         ephemeral records
    etcd_wire.py           batches and records as messages
    etcd_connection.py     calls: deadlines, credentials, what may be repeated
    etcd_members.py        the members of the cluster, and the one in use
    etcd_stubs.py          the messages themselves

A version is the record's modification revision. Members of one request share it, so it is unique per key and not per
apply. The revision of the store moves with every request that takes effect, even if its applies changed nothing,
because its marker `/batch/<process>/<slot>` was written. Markers are below the root, but ranges and watches leave them
out.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import grpc.aio

from metastore.api import Ephemeral, StoredIndexes
from metastore.backends import etcd_encoding as encoding
from metastore.backends.credentials import Login, Tls
from metastore.backends.etcd_connection import EtcdConnection, error_text, is_compacted, is_denied
from metastore.backends.etcd_group_commit import EtcdGroupCommit
from metastore.backends.etcd_group_reads import GroupReads
from metastore.backends.etcd_leases import LeasedRecord
from metastore.backends.etcd_stubs import (
    RangeRequest,
    RangeResponse,
    RequestOp,
    StatusRequest,
    StatusResponse,
    TxnRequest,
)
from metastore.backends.etcd_watches import PrefixFeed
from metastore.backends.etcd_wire import Wire
from metastore.backends.joining import Footprint, RequestLimits
from metastore.backends.options import EtcdOptions
from metastore.errors import StoreClosed, StoreUnavailable
from metastore.types import (
    Applied,
    Batch,
    IndexDefinition,
    RangeResult,
    Record,
    Revision,
    Snapshot,
    Watch,
)

if TYPE_CHECKING:
    from etcd3.etcdrpc.rpc_pb2_grpc import Unary

RECORDS_PER_PAGE = 1_000
# What a server accepts by default (--max-txn-ops), and the larger values that are tried first. Even larger groups
# gain little, and whatever arrives meanwhile waits for them.
DEFAULT_MAX_TXN_OPS = 128
# Reads that are refused are not split, so they never ask for more.
READS_PER_REQUEST = DEFAULT_MAX_TXN_OPS
LARGER_MAX_TXN_OPS = (512, 256)
# The first page of a range shares its request with other reads, so it is short: most ranges end in it.
RECORDS_OF_FIRST_PAGE = 50
_ALARM = re.compile(r"alarm:(\w+)")

Request = TypeVar("Request")
Response = TypeVar("Response")


class _CompactedError(Exception):
    """Something was requested at a revision that has been compacted away since the first part was read."""


class EtcdStore(StoredIndexes):
    """The store on etcd; see `open`."""

    kind = "etcd"

    def __init__(
        self,
        connection: EtcdConnection,
        root: str,
        indexes: Iterable[IndexDefinition],
        options: EtcdOptions,
    ) -> None:
        super().__init__(indexes)
        if options.on_group:
            self.group_listeners.append(options.on_group)
        limits = RequestLimits(options.max_txn_ops or DEFAULT_MAX_TXN_OPS, options.max_request_bytes)
        self._connection = connection
        self._wire = Wire(root)
        self._deadline_s = options.deadline_s
        # A name that no other process, and no earlier life of this one, ever has.
        process = secrets.token_hex(6)
        self._commit = EtcdGroupCommit(
            connection,
            self._wire,
            process,
            pipeline=options.pipeline,
            limits=limits,
            deadline_s=options.deadline_s,
            on_group=self.group_sent,
            on_lost=options.on_lost,
        )
        self._max_cost = limits.max_cost
        self._reads_per_request = min(READS_PER_REQUEST, limits.max_txn_ops)
        self._reads = GroupReads(self._read, self._reads_per_request)
        # Apart, because one whose revision has been compacted away fails all that travel with it.
        self._reads_of_the_past = GroupReads(self._read, self._reads_per_request)
        self._feeds: list[PrefixFeed] = []
        self._ephemerals: list[LeasedRecord] = []
        self._closed = False

    def command_for(self, key: str) -> str:
        return f"etcdctl get {shlex.quote(self._wire.key(key).decode())}"

    @classmethod
    async def open(
        cls,
        endpoints: Sequence[str],
        root: str = "",
        indexes: Iterable[IndexDefinition] = (),
        options: EtcdOptions = EtcdOptions(),
        *,
        tls: Tls | None = None,
        login: Login | None = None,
    ) -> EtcdStore:
        """Connect to the cluster at `endpoints` (`host:port`, or with `http://` or `https://`) and check that it
        answers. Every key gets the prefix `root` on the server.

        Raises `StoreUnavailable` if no endpoint answers within the deadline or the user is refused, and
        `InvalidCredentials` (a `ValueError`) if a file of `tls` is missing or wrong.
        """
        connection = await EtcdConnection.open(endpoints, root, tls=tls, login=login)
        store = cls(connection, root, indexes, options)
        try:
            await store.current_revision()
            if options.max_txn_ops is None:
                store._obey(RequestLimits(await store._find_max_txn_ops(), options.max_request_bytes))
        except BaseException:
            await connection.close()
            raise
        connection.follow_members()
        return store

    @property
    def connection(self) -> EtcdConnection:
        """The connection, with which to examine the cluster."""
        return self._connection

    async def _find_max_txn_ops(self) -> int:
        """etcd does not report its --max-txn-ops, so requests with as many empty reads are tried until one is accepted.

        A member that is later started with a smaller value refuses groups; they are then split.
        """
        for count in LARGER_MAX_TXN_OPS:
            if await self.takes_operations(count):
                return count
        return DEFAULT_MAX_TXN_OPS

    async def takes_operations(self, count: int) -> bool:
        """Whether the server takes a request with this many operations. False, too, if it refuses for another reason,
        which every later request will report."""
        nothing = RequestOp(request_range=RangeRequest(key=self._wire.key("/"), count_only=True))
        try:
            await self._connection.ask(self._connection.kv.Txn, TxnRequest(success=[nothing] * count), self._deadline_s)
        except grpc.aio.AioRpcError:
            return False
        return True

    def _obey(self, limits: RequestLimits) -> None:
        self._max_cost = limits.max_cost
        self._commit.limits = limits

    async def size_bytes(self) -> int | None:
        """The size of the file of the member in use, which its quota limits."""
        told = await self._status()
        return None if told is None else told.dbSize

    async def why_full(self) -> str | None:
        """Why the store is full. The alarm lasts until it is disarmed, even if there is room again."""
        return str(self._connection.full()) if "NOSPACE" in await self.alarms() else None

    async def alarms(self) -> list[str]:
        """The alarms of the cluster that are raised, such as `NOSPACE`. Every member reports them, without asking the
        others."""
        told = await self._status()
        return sorted({name for error in told.errors for name in _ALARM.findall(error)}) if told is not None else []

    async def _status(self) -> StatusResponse | None:
        """The status of the member in use. Not every user may see it."""
        try:
            return await self._connection.ask(self._connection.maintenance.Status, StatusRequest(), self._deadline_s)
        except grpc.aio.AioRpcError:
            return None

    # -- writing ------------------------------------------------------------------------------------------------

    async def apply(self, batch: Batch) -> Applied:
        self._assert_open()
        if batch.empty:
            return Applied(await self.current_revision())
        try:
            encoded = self._wire.encode(batch, self._max_cost)
        except UnicodeEncodeError:
            encoded = None
        if encoded is None or encoded.size_bytes > self.max_batch_bytes or "" in batch.puts:
            self.refuse_unfit(batch)  # says which key it is, and counts exactly; here each check stands twice
        assert encoded is not None, "a key that cannot be encoded is refused"
        return await self._commit.submit(encoded, Footprint.of(batch))

    # -- reading ------------------------------------------------------------------------------------------------

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        self._assert_open()
        most = self._reads_per_request
        now, later = wanted[:most], wanted[most:]
        while True:
            found, revision = await self._reads.read([encoding.then_read(self._wire.key(key)) for key in now or ["/"]])
            try:
                found += await self._find_at(revision, later) if later else ()
            except _CompactedError:
                continue  # from the first key on, at a newer revision
            records: dict[str, Record | None] = {}
            for key, answer in zip(wanted, found, strict=False):
                kvs = answer.kvs
                records[key] = self._wire.record(kvs[0]) if kvs else None
            return Snapshot(records, revision)

    async def _find_at(self, revision: Revision, wanted: Sequence[str]) -> list[RangeResponse]:
        """Keys as they were at a revision of the past. Raises `_CompactedError`."""
        most = self._reads_per_request
        requests = (RangeRequest(key=self._wire.key(key), revision=revision) for key in wanted)
        reads = [encoding.then_range(request.SerializeToString()) for request in requests]
        parts = (reads[first : first + most] for first in range(0, len(reads), most))
        answers = await asyncio.gather(*map(self._reads_of_the_past.read, parts))
        return [found for part, _ in answers for found in part]

    async def _read(self, reads: Sequence[bytes]) -> tuple[list[RangeResponse], Revision]:
        answer = await self._ask(self._connection.kv.Txn, TxnRequest.FromString(b"".join(reads)))
        return [found.response_range for found in answer.responses], answer.header.revision

    async def range(
        self, start: str, end: str, *, limit: int = 0, reverse: bool = False, keys_only: bool = False
    ) -> RangeResult:
        self._assert_open()
        bounds = self._wire.bounds(start, end)
        if bounds is None:
            return RangeResult([], await self.current_revision())
        # etcd sorts the whole range for every reverse read, so a complete one is read forward.
        backward = reverse and limit > 0
        while True:
            try:
                result = await self._pages(bounds, limit, backward, keys_only)
            except _CompactedError:
                continue  # from the first page on, at a newer revision
            if reverse and not backward:
                result.records.reverse()
            return result

    async def _pages(self, bounds: tuple[bytes, bytes], limit: int, backward: bool, keys_only: bool) -> RangeResult:
        """Read page by page, all at the revision of the first page."""
        key, end = bounds
        records: list[Record] = []
        revision = 0
        while True:
            shared = not revision and not backward
            most = RECORDS_OF_FIRST_PAGE if shared else RECORDS_PER_PAGE
            request = RangeRequest(
                key=key,
                range_end=end,
                limit=min(most, limit - len(records) + 1) if limit else most,
                revision=revision,
                sort_order=RangeRequest.DESCEND if backward else 0,
                sort_target=RangeRequest.KEY,
                keys_only=keys_only,
            )
            if shared:
                (page,), revision = await self._reads.read([encoding.then_range(request.SerializeToString())])
            else:
                page = await self._ask(self._connection.kv.Range, request)
                revision = revision or page.header.revision
            records += (self._wire.record(found) for found in page.kvs if not self._wire.is_marker(found))
            if limit and len(records) > limit:
                return RangeResult(records[:limit], revision, more=True)
            if not page.more:
                return RangeResult(records, revision)
            if backward:
                end = page.kvs[-1].key
            else:
                key = page.kvs[-1].key + b"\0"

    async def _ask(self, method: Unary[Request, Response], request: Request) -> Response:
        try:
            return await self._connection.ask(method, request, self._deadline_s)
        except grpc.aio.AioRpcError as error:
            if is_compacted(error):
                raise _CompactedError from None
            if is_denied(error):
                raise self._connection.denied(error) from None
            raise StoreUnavailable(
                f"etcd at {self._connection.endpoints} refuses the read: {error_text(error)}"
            ) from None

    # -- hints --------------------------------------------------------------------------------------------------

    def watch(self, prefix: str, from_revision: Revision) -> Watch:
        """See `MetadataStore.watch`. A watch that begins before those of the same prefix has a stream of its own."""
        self._assert_open()
        start = max(from_revision, 1)
        for feed in self._feeds:
            if feed.prefix == prefix and feed.reaches(start):
                return feed.watch(start)
        feed = PrefixFeed(self._connection, self._wire, prefix, start, self.current_revision, self._retire)
        self._feeds.append(feed)
        return feed.watch(start)

    def _retire(self, feed: PrefixFeed) -> None:
        """The last local watch is closed, and this feed will not be read again."""
        if feed in self._feeds:
            self._feeds.remove(feed)
            feed.stop()

    async def ephemeral(self, key: str, value: bytes, ttl_ms: int) -> Ephemeral:
        self._assert_open()
        self.refuse_unfit(self.batch().put(key, value))
        record = LeasedRecord(self._connection, self._wire.key(key), value, ttl_ms, self._deadline_s)
        await record.open()
        self._ephemerals.append(record)
        return record

    # -- life ---------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for feed in list(self._feeds):
            await feed.close()
        await self._reads.close()
        await self._reads_of_the_past.close()
        await self._commit.close()
        for record in self._ephemerals:
            with suppress(StoreUnavailable):  # then its lease runs out
                await record.close()
        await self._connection.close()

    def _assert_open(self) -> None:
        super()._assert_open()
        if self._closed:
            raise StoreClosed("this store is closed")
