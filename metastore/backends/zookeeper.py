"""The store on ZooKeeper, 3.6 or later (measured with 3.8.0 and 3.9.5).

    zookeeper.py                this store: opens it, reads, and who does the rest
    zookeeper_group_commit.py   writes: many applies per multi, lost replies resolved by a fence
    zookeeper_plan.py           how an apply becomes operations that prove its checks
    zookeeper_reads.py          reads of one revision
    zookeeper_listings.py       what directories hold, large ones remembered
    zookeeper_log.py            the recent changes, kept in the store
    zookeeper_history.py        removes them when they are old
    zookeeper_watches.py        following the log
    zookeeper_ephemerals.py     ephemeral records
    zookeeper_janitor.py        removes empty directories
    zookeeper_paths.py          keys as znodes
    zookeeper_wire.py           requests as bytes
    zookeeper_connection.py     kazoo's client, called from an event loop
    zookeeper_commands.py       what a server tells anyone, such as how much it stores

**Revisions and versions are zxids**, the 64-bit numbers of ZooKeeper's own transactions. An apply takes effect in one
multi, that is one zxid. Every multi sets the znode `tip`, so the tip's mzxid is the zxid of the last apply: the
revision of the store. A record's mzxid is the zxid of the multi that wrote it last: its version. The czxid of a log
entry is the zxid of the changes it tells. All are given by the server, from one sequence that never repeats and only
grows; neighbours in one group share one. (The data version of a znode would not do: it has 32 bits, counts per znode
and starts again when the znode does.)
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Sequence

from kazoo.hosts import collect_hosts

from metastore.api import Ephemeral, StoredIndexes
from metastore.backends.credentials import Login, Tls
from metastore.backends.joining import RequestLimits
from metastore.backends.options import ZooKeeperOptions
from metastore.backends.zookeeper_commands import stored_bytes
from metastore.backends.zookeeper_connection import ZooKeeperConnection
from metastore.backends.zookeeper_ephemerals import Ephemerals
from metastore.backends.zookeeper_group_commit import ZooKeeperGroupCommit
from metastore.backends.zookeeper_history import History
from metastore.backends.zookeeper_janitor import Janitor
from metastore.backends.zookeeper_paths import Paths
from metastore.backends.zookeeper_plan import GUARDS, Beliefs, Planner
from metastore.backends.zookeeper_reads import Snapshots, record_of
from metastore.backends.zookeeper_watches import Feed
from metastore.backends.zookeeper_wire import (
    CREATOR_ACL,
    NO_AUTH,
    NODE_EXISTS,
    OPEN_ACL,
    Culprit,
    Multi,
    MultiRead,
    create_op,
    get_data,
)
from metastore.errors import InvalidBatch, StoreClosed, StoreMissing, StoreUnavailable
from metastore.types import (
    Applied,
    Batch,
    IndexDefinition,
    RangeResult,
    Revision,
    Snapshot,
    Watch,
)

MAX_BATCH_BYTES = 400_000
KEYS_PER_READ = 400
# Up to this many keys are read with their guards, so that a checked write can follow without another read.
_GUARDED_KEYS = 16


class ZooKeeperStore(StoredIndexes):
    """The store on ZooKeeper; see `open`. A batch must be smaller here than elsewhere, because its values are sent
    twice in a request of at most 1 MB."""

    kind = "zk"

    max_batch_bytes = MAX_BATCH_BYTES

    def __init__(
        self,
        connection: ZooKeeperConnection,
        paths: Paths,
        indexes: Iterable[IndexDefinition],
        options: ZooKeeperOptions,
    ) -> None:
        super().__init__(indexes)
        if options.on_group:
            self.group_listeners.append(options.on_group)
        self._deadline_s = deadline_s = options.deadline_s
        self._connection = connection
        self._paths = paths
        self._read_only = options.read_only
        self._loop = asyncio.get_running_loop()
        self._beliefs = Beliefs(paths)
        self._janitor = Janitor(connection, paths, self._beliefs, deadline_s)
        self._snapshots = Snapshots(connection, paths, self._found_empty)
        self._history = History(connection, paths, self._snapshots, deadline_s)
        self._commit = ZooKeeperGroupCommit(
            connection,
            paths,
            self._snapshots,
            self._beliefs,
            Planner(paths, self._beliefs, self.indexes),
            limits=RequestLimits(options.max_request_bytes, options.max_request_bytes),
            deadline_s=deadline_s,
            on_emptied=self._janitor.note,
            on_went_back=self._went_back,
            on_group=self.group_sent,
            on_lost=options.on_lost,
        )
        connection.on_behind = self._went_back
        self._feeds: list[Feed] = []
        self._ephemerals: Ephemerals | None = None
        self._closed = False

    @property
    def connection(self) -> ZooKeeperConnection:
        return self._connection

    def command_for(self, key: str) -> str:
        return f"zkCli.sh get {shlex.quote(self._paths.record(key))}"

    @classmethod
    async def open(
        cls,
        hosts: Sequence[str],
        root: str = "",
        indexes: Iterable[IndexDefinition] = (),
        options: ZooKeeperOptions = ZooKeeperOptions(),
        *,
        tls: Tls | None = None,
        login: Login | None = None,
    ) -> ZooKeeperStore:
        """Connect to the ensemble at `hosts` (`host:port`), and make the store below `root` if it is not there. With
        `tls` the hosts are asked to speak TLS; with a `login`, znodes are made for this user alone (scheme `digest`).

        Raises `StoreUnavailable` if no host answers within the deadline, `StoreMissing` if there is no store to read,
        `InvalidCredentials` (a `ValueError`) if a file of `tls` is missing or wrong.
        """
        paths = Paths(root.rstrip("/"), CREATOR_ACL if login else OPEN_ACL)
        connection = await ZooKeeperConnection.open(
            hosts,
            tls=tls,
            login=login,
            session_timeout_s=options.session_timeout_ms / 1000,
            tip=paths.tip,
            deadline_s=options.deadline_s,
        )
        store = cls(connection, paths, indexes, options)
        try:
            if options.read_only:
                await store._require_root()
            else:
                await store._make_root()
                await store._history.remove_idle_logs()
                store._ephemerals = Ephemerals(
                    connection, paths, store._commit.apply, store._snapshots, deadline_s=options.deadline_s
                )
        except BaseException:
            await connection.close()
            raise
        return store

    # -- writing ------------------------------------------------------------------------------------------------

    async def apply(self, batch: Batch) -> Applied:
        self._assert_writable()
        self.refuse_unfit(batch)
        if batch.empty:
            return Applied(await self.current_revision())
        return await self._commit.apply(batch)

    # -- reading ------------------------------------------------------------------------------------------------

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        self._assert_open()
        if len(wanted) > KEYS_PER_READ:
            return await self._snapshots.records(wanted, self._deadline())
        paths = [self._paths.record(key) for key in wanted]
        if len(wanted) <= _GUARDED_KEYS:
            paths += [self._beliefs.guard_path(self._beliefs.guard_of(key)) for key in wanted]
        nodes, tip = await self._snapshots.nodes(paths, self._deadline())
        for key, node, guard in zip(wanted, nodes, nodes[len(wanted) :], strict=False):
            self._beliefs.learn(key, node, guard)
        records = {key: record_of(key, node) if node else None for key, node in zip(wanted, nodes, strict=False)}
        return Snapshot(records, tip.stat.mzxid)

    async def range(
        self, start: str, end: str, *, limit: int = 0, reverse: bool = False, keys_only: bool = False
    ) -> RangeResult:
        self._assert_open()
        listing = await self._snapshots.range(
            start, end, self._deadline(), limit=limit, reverse=reverse, keys_only=keys_only
        )
        return listing.result

    # -- hints --------------------------------------------------------------------------------------------------

    def watch(self, prefix: str, from_revision: Revision) -> Watch:
        """See `MetadataStore.watch`. One feed serves all watches; one that begins before it has a feed of its own."""
        self._assert_open()
        start = max(from_revision, 1)
        for feed in self._feeds:
            if feed.reaches(start):
                return feed.watch(prefix, start)
        feed = Feed(self._connection, self._paths, start, self._deadline_s, self._retire)
        self._feeds.append(feed)
        return feed.watch(prefix, start)

    def _retire(self, feed: Feed) -> None:
        """The last local watch is closed, and this feed will not be read again."""
        if feed in self._feeds:
            self._feeds.remove(feed)
            feed.stop()

    async def ephemeral(self, key: str, value: bytes, ttl_ms: int) -> Ephemeral:
        """See `MetadataStore.ephemeral`. The record lives as long as the session, see `open`."""
        self._assert_writable()
        self.refuse_unfit(self.batch().put(key, value))
        assert self._ephemerals is not None
        return await self._ephemerals.hold(key, value)

    # -- life ---------------------------------------------------------------------------------------------------

    async def compact(self) -> None:
        """Forget all history up to now, so that watches from before it start with a `Resync`."""
        await self._history.compact()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for feed in list(self._feeds):
            await feed.close()
        if self._ephemerals:
            if self._connection.ready:
                await self._ephemerals.let_go_all()
            await self._ephemerals.close()
        await self._commit.close()
        await self._janitor.close()
        await self._connection.close()

    def _assert_open(self) -> None:
        super()._assert_open()
        if self._closed:
            raise StoreClosed("this store is closed")

    def _assert_writable(self) -> None:
        self._assert_open()
        if self._read_only:
            raise InvalidBatch("the store was opened read-only")

    async def size_bytes(self) -> int | None:
        """The size of the snapshots and logs of a server that allows the command `conf`."""
        hosts, _ = collect_hosts(self._connection.hosts)
        return max(await stored_bytes(hosts, self._connection.tls), default=None)

    def _went_back(self, how: str) -> None:
        self.lost_writes = self.lost_writes or how

    def _found_empty(self, directory: str) -> None:
        if not self._read_only:
            self._janitor.note(directory)

    def _deadline(self) -> float:
        return self._loop.time() + self._deadline_s

    async def _require_root(self) -> None:
        (found,) = await self._connection.ask(MultiRead([get_data(self._paths.tip)]), self._deadline())
        if found is None:
            raise StoreMissing(f"ZooKeeper at {self._connection.hosts} has no store below {self._paths.root or '/'}")

    async def _make_root(self) -> None:
        """Create the znodes that every store has, unless they exist."""
        paths, deadline = self._paths, self._deadline()
        parts = paths.root.split("/")[1:]
        for depth in range(1, len(parts)):
            await self._create([create_op("/" + "/".join(parts[:depth]))], deadline)  # others may have stores there too
        if paths.root:
            await self._create([paths.create(paths.root)], deadline)
        guards = [paths.create(self._beliefs.guard_path(guard)) for guard in range(GUARDS)]
        homes = [paths.create(path) for path in (paths.log, paths.alive, paths.held, paths.guards, paths.records)]
        await self._create([paths.create(paths.tip), *homes, *guards], deadline)
        # The first apply proves its beliefs about guards without a read of its own.
        nodes, _ = await self._snapshots.nodes([self._beliefs.guard_path(guard) for guard in range(GUARDS)], deadline)
        self._beliefs.guards = {guard: node.stat.version for guard, node in enumerate(nodes) if node}

    async def _create(self, operations: Sequence[bytes], deadline: float) -> None:
        (outcome,) = await self._connection.ask(Multi(operations), deadline)
        if isinstance(outcome, Culprit) and outcome.code == NO_AUTH:
            raise self._connection.denied()
        if isinstance(outcome, Culprit) and (outcome.code != NODE_EXISTS or outcome.index):
            raise StoreUnavailable(f"ZooKeeper at {self._connection.hosts} refuses the root: error {outcome.code}")
