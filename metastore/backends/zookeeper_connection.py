"""The connection to a ZooKeeper ensemble: kazoo's client, called from an event loop.

kazoo runs one thread that sends and receives, in the order of the calls. A request goes to it with a small object in
place of kazoo's own future, which takes the answer to the event loop: one wake-up per request, and a request is a whole
group of writes or a whole batch of reads.

kazoo connects, moves on to the next host and keeps the session. It fails everything that is sent or waits when it loses
a connection, and *never* sends again by itself. Whether that may be done is decided here for reads, and in
`zookeeper_group_commit` for writes. Its pauses between rounds through the hosts grow and are jittered.

**Reads are linearizable** by a `sync` in front of them, in the same session, on the same connection: ZooKeeper answers
a session in the order of its requests, and the server has caught up with its leader when `sync` is answered. Reads that
are asked for in one round of the event loop share a `sync` and a multi-read, which is framed by two reads of the tip
(see `zookeeper_reads`).

**A new connection is compared before it is used.** A server refuses a client that has seen a later transaction than
itself. That is not enough after a restore from a backup: an ensemble that elects a leader begins a new epoch, whose
zxids are above those of all earlier ones, and a server that stands alone catches up, because each session that begins
or ends counts. So the tip is read first. Its data version counts the applies: if that or the zxid is below one that was
seen before, the store went back in time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.states import KazooState, KeeperState

from metastore.api import behind, is_telling
from metastore.backends.credentials import InvalidCredentials, Login, Tls
from metastore.backends.zookeeper_wire import NO_AUTH, Culprit, MultiRead, Node, Stat, Sync, get_children, get_data
from metastore.background import Backoff, in_background
from metastore.errors import StoreUnavailable

OPERATIONS_PER_READ = 500

Found = Node | list[str] | None


class LostError(Exception):
    """The connection was lost or did not exist: the request may have been carried out, may be carried out later, or
    never."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The results of reads between two looks at the tip."""

    before: Node
    found: list[Found]
    after: Node


class _Log(logging.LoggerAdapter[logging.Logger]):
    """The last reason in kazoo's log, which is the only place where it says why there is no connection."""

    said = ""

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        if level == logging.WARNING:
            self.said = str(msg) % args
        super().log(level, msg, *args, **options)


class _Handler(SequentialThreadingHandler):
    """Opens the connections of kazoo, on its threads. kazoo's own way to TLS trusts the authorities of the system
    besides the one it is given, and each host may take the whole session timeout to answer."""

    def __init__(self, tls: Tls | None, hosts: int) -> None:
        super().__init__()
        self._context = tls.context() if tls else None
        self._hosts = hosts

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float = 1.0, **_: object
    ) -> socket.socket:
        connection = socket.create_connection(address, timeout / self._hosts)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                return self._context.wrap_socket(connection, server_hostname=hostname)
        except BaseException:
            connection.close()
            raise
        return connection

    def select(self, readable: Sequence[Any], *others: Any) -> Any:
        """Select, which must look at TLS itself: data that is already decrypted is no longer seen by the operating
        system."""
        decrypted = [one for one in readable if isinstance(one, ssl.SSLSocket) and one.pending()]
        return (decrypted, [], []) if decrypted else super().select(readable, *others)


class _Exchange(ConnectionHandler):
    """The loop in which kazoo sends and receives, with two corrections.

    **Requests are numbered on** from one connection to the next, where kazoo begins at 1 again. A server finds the
    request of an answer by its session and number. When a session moves to another server while a write is on its way
    through the ensemble, the answer to that write comes to the new server, too, and it must not find a later request
    with the same number there: the caller would be told of a write that was not made.

    **What kazoo does not expect costs the connection**, for example an answer to another request than the oldest. In
    kazoo it ends the thread, so that the client would never connect again.
    """

    _last_number = 0

    @property
    def _xid(self) -> int:
        return self._last_number

    @_xid.setter
    def _xid(self, number: int | None) -> None:
        if number:
            self._last_number = number

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: Any) -> Any:
        try:
            return super()._connect_attempt(host, hostip, port, retry)
        except Exception:  # noqa: BLE001  kazoo has logged it
            self.client._session_callback(KeeperState.CONNECTING)
            return None


class _Secret(str):
    """Hides a secret, because kazoo writes the requests that it sends to its log."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"

    __str__ = __repr__


class _Answer:
    """Passes an answer from kazoo's thread to a future of the event loop."""

    __slots__ = ("_denied", "_future", "_loop")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], denied: Callable[[], StoreUnavailable]
    ) -> None:
        self._loop = loop
        self._future = future
        self._denied = denied

    def set(self, value: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: no caller waits any more
            self._loop.call_soon_threadsafe(self._succeed, value)

    def set_exception(self, error: Exception) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._fail, error)

    def _succeed(self, value: Any) -> None:
        if not self._future.done():
            self._future.set_result(value)

    def _fail(self, error: Exception) -> None:
        if not self._future.done():
            lost = LostError(f"{type(error).__name__} {error}".strip())
            self._future.set_exception(self._denied() if isinstance(error, NoAuthError) else lost)
            self._future.exception()  # the waiting caller may have gone


@dataclass(slots=True, eq=False)
class _Waiting:
    operations: Sequence[bytes]
    answer: asyncio.Future[Reading]


class ZooKeeperConnection:
    """One session at a time with the ensemble at `hosts`. `tip` is the znode that frames every read.

    `on_state` is called in the event loop with True when a connection is there and with False when it is lost, and
    `on_behind` once, if the store went back in time. From then on there is a connection for `telling_others` only.
    """

    def __init__(
        self, hosts: Sequence[str], session_timeout_s: float, tip: str, tls: Tls | None, login: Login | None
    ) -> None:
        self.hosts = ",".join(hosts)
        self.tls = tls
        self._user = login.user if login else None
        self._tip = tip
        self._tip_read = get_data(tip)
        self._loop = asyncio.get_running_loop()
        self._log = _Log(logging.getLogger("kazoo.client"))
        self._client = KazooClient(
            hosts=self.hosts,
            timeout=session_timeout_s,
            handler=_Handler(tls, len(hosts)),
            logger=self._log,
            use_ssl=tls is not None,
            auth_data=[("digest", _Secret(f"{login.user}:{login.password}"))] if login else None,
            connection_retry={"max_tries": -1, "delay": 0.02, "backoff": 2, "max_jitter": 0.4, "max_delay": 1.0},
        )
        self._client._connection = _Exchange(self._client, self._client._conn_retry.copy(), logger=self._log)
        self._client.add_listener(self._on_change)
        self._connected = asyncio.Event()
        self._waiting: list[_Waiting] = []
        self.on_state: list[Callable[[bool], None]] = []
        self.on_behind: Callable[[str], None] = lambda how: None
        self._newest: Stat | None = None
        self._behind: str | None = None
        self._changes = 0
        self._comparing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        hosts: Sequence[str],
        *,
        session_timeout_s: float,
        tip: str,
        deadline_s: float,
        tls: Tls | None = None,
        login: Login | None = None,
    ) -> Self:
        """Connect. Raises `StoreUnavailable` if no host takes a session within the deadline, and
        `InvalidCredentials`."""
        if login and ":" in login.user:
            raise InvalidCredentials(f"the name of a ZooKeeper user must not contain a colon: {login.user!r}")
        connection = cls(hosts, session_timeout_s, tip, tls, login)
        await asyncio.to_thread(connection._client.start_async)
        try:
            await connection.wait_connected(connection._loop.time() + deadline_s)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def close(self) -> None:
        """End the session; ephemeral znodes go with it. Takes no longer than one attempt to connect."""
        if self._comparing is not None:
            self._comparing.cancel()
            await asyncio.gather(self._comparing, return_exceptions=True)
        await asyncio.to_thread(self._client.stop)
        await asyncio.to_thread(self._client.close)

    def _on_change(self, state: str) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._changed, state == KazooState.CONNECTED)

    def _changed(self, connected: bool) -> None:
        self._changes += 1
        if connected and self._newest is not None and self._behind is None:
            self._comparing = in_background(self._compare(self._changes), "comparison of a ZooKeeper store")
        else:
            self._announce(connected)

    async def _compare(self, change: int) -> None:
        """Announce the connection when the tip was read on it, unless it is gone by then."""
        backoff = Backoff()
        tip: Found = None
        while change == self._changes:
            synced, answer = self.send(Sync(self._tip)), self.send(MultiRead([self._tip_read]))
            try:
                await synced
                answered = await answer
            except (LostError, StoreUnavailable):
                await backoff.pause()
                continue
            if isinstance(answered, Culprit):  # every read will say so
                self._announce(True)
                return
            (tip,) = answered
            break
        if change != self._changes:
            return
        assert self._newest is not None
        how = _went_back(self._newest, tip.stat if isinstance(tip, Node) else None)
        if how is not None:
            self._behind = how
            self.on_behind(how)
        self._announce(True)

    def _announce(self, connected: bool) -> None:
        if connected:
            self._log.said = ""
            self._connected.set()
        else:
            self._connected.clear()
        for listener in self.on_state:
            listener(connected)

    @property
    def ready(self) -> bool:
        return self._connected.is_set()

    @property
    def session(self) -> int | None:
        """The id of the session, or None without a connection."""
        identity = self._client.client_id
        return identity[0] if identity else None

    def unavailable(self, what: str) -> StoreUnavailable:
        reason = f" ({self._log.said})" if self._log.said else ""
        return StoreUnavailable(f"{what}: ZooKeeper at {self.hosts} does not answer{reason}")

    def denied(self) -> StoreUnavailable:
        """The error when the znodes of this store belong to another user. With a wrong password, a user counts as
        another one."""
        who = f"the user {self._user!r}, or the password" if self._user else "a client without a user"
        return StoreUnavailable(f"ZooKeeper at {self.hosts} refuses {who}: the root belongs to another user")

    async def wait_connected(self, deadline: float | None = None) -> None:
        """Wait for a connection. Raises `StoreUnavailable` when the deadline passes first, and if the store went back
        in time."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._connected.wait()
        except TimeoutError:
            raise self.unavailable("there is no connection") from None
        if self._behind is not None and not is_telling():
            raise StoreUnavailable(behind(self._behind))

    def learn(self, tip: Stat) -> None:
        """How far this process has seen the store."""
        if self._newest is None or tip.mzxid > self._newest.mzxid:
            self._newest = tip

    # -- requests -----------------------------------------------------------------------------------------------

    def send(self, request: Any) -> asyncio.Future[Any]:
        """The answer to one request. Raises `LostError`: it may have been done, or may still be. Raises
        `StoreUnavailable` for a znode that this client may not read."""
        future: asyncio.Future[Any] = self._loop.create_future()
        # A client that is being closed raises nothing: it gives its error to the answer.
        self._client._call(request, _Answer(self._loop, future, self.denied))
        return future

    async def ask(self, request: Any, deadline: float) -> Any:
        """Send something that may be sent twice, until it is answered. Raises `StoreUnavailable`."""
        backoff = Backoff()
        while True:
            await self.wait_connected(deadline)
            try:
                async with asyncio.timeout_at(deadline):
                    return await self.send(request)
            except TimeoutError:
                raise self.unavailable("no answer in time") from None
            except LostError:
                await self._pause(backoff, deadline)

    async def read(self, operations: Sequence[bytes], deadline: float) -> Reading:
        """Up to `OPERATIONS_PER_READ` reads, linearizable. Raises `StoreUnavailable`."""
        assert len(operations) <= OPERATIONS_PER_READ
        backoff = Backoff()
        while True:
            await self.wait_connected(deadline)
            waiting = _Waiting(operations, self._loop.create_future())
            if not self._waiting:
                self._loop.call_soon(self._flush)
            self._waiting.append(waiting)
            try:
                async with asyncio.timeout_at(deadline):
                    return await waiting.answer
            except TimeoutError:
                raise self.unavailable("no answer in time") from None
            except LostError:
                await self._pause(backoff, deadline)

    async def children(self, path: str, deadline: float) -> list[str]:
        """The names of the children, in no order; none if there is no such znode. Raises `StoreUnavailable`."""
        (names,) = (await self.read([get_children(path)], deadline)).found
        return names if isinstance(names, list) else []

    async def _pause(self, backoff: Backoff, deadline: float) -> None:
        """kazoo may say that the connection is lost a moment before it says that it is not connected."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await backoff.pause()

    def _flush(self) -> None:
        """Send all reads that were requested in this round of the event loop, after one `sync`."""
        waiting, self._waiting = self._waiting, []
        synced = self.send(Sync(self._tip))
        part: list[_Waiting] = []
        size = 0
        for one in waiting:
            if part and size + len(one.operations) > OPERATIONS_PER_READ:
                self._send_reads(part, synced)
                part, size = [], 0
            part.append(one)
            size += len(one.operations)
        self._send_reads(part, synced)

    def _send_reads(self, part: list[_Waiting], synced: asyncio.Future[None]) -> None:
        operations = [operation for one in part for operation in one.operations]
        answer = self.send(MultiRead([self._tip_read, *operations, self._tip_read]))
        answer.add_done_callback(lambda _: self._deliver(part, synced, answer))

    def _deliver(
        self, part: list[_Waiting], synced: asyncio.Future[None], answer: asyncio.Future[list[Found] | Culprit]
    ) -> None:
        # The session answers in order, so `sync` is answered: its result decides whether the reads count.
        failure = synced.exception() if synced.done() else LostError("the reads were answered before their sync")
        failure = failure or answer.exception()
        found: list[Found] = []
        if failure is None:
            answered = answer.result()
            if not isinstance(answered, Culprit):
                found = answered
            elif answered.code == NO_AUTH:
                failure = self.denied()
        before, after = (found[0], found[-1]) if found else (None, None)
        if failure is None and not (isinstance(before, Node) and isinstance(after, Node)):
            failure = LostError("the reads were refused, or the root of the store is gone")
        if failure is None and isinstance(after, Node):
            self.learn(after.stat)
        position = 1
        for one in part:
            first, position = position, position + len(one.operations)
            if one.answer.done():
                continue
            if failure is not None:
                one.answer.set_exception(type(failure)(str(failure)))
                one.answer.exception()
            else:
                assert isinstance(before, Node) and isinstance(after, Node)
                one.answer.set_result(Reading(before, found[first:position], after))


def _went_back(seen: Stat, tip: Stat | None) -> str | None:
    """How the tip shows that the store contains less than was seen before."""
    if tip is None:
        return "its root is gone"
    applies = (tip.version - seen.version + (1 << 31)) % (1 << 32) - (1 << 31)  # it wraps around at 32 bits
    if applies < 0:
        return f"it has {-applies} changes fewer than it had"
    if tip.mzxid < seen.mzxid:
        return f"it was at revision {seen.mzxid}, and now it is at revision {tip.mzxid}"
    return None
