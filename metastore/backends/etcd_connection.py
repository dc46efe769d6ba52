"""The connection to an etcd cluster: credentials, deadlines, and the meaning of error codes.

One member is used at a time: the first that connects, until its connection is lost, it is silent for the time of a
whole call, or it says that it cannot serve, because it has lost the majority or only learns. gRPC could go through a
list of addresses by itself, but it would check all certificates against one host name, and would stay with a frozen
server until its keepalive ends, after 15 seconds. Each member has two channels: a watch that is flooded, or a server
that stops answering watches, must not hold up the others.

gRPC's own retries are off: whether a request may be sent again is decided here for reads, and in `etcd_group_commit`
for writes. Connections come back by themselves, in growing, jittered pauses of gRPC's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio

from metastore.backends.credentials import Login, Tls
from metastore.backends.etcd_members import EtcdMember, EtcdMembers, list_members
from metastore.backends.etcd_stubs import (
    AuthenticateRequest,
    AuthStub,
    KVStub,
    LeaseStub,
    MaintenanceStub,
    MemberListResponse,
    WatchStub,
)
from metastore.background import Backoff, in_background
from metastore.errors import StoreClosed, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from etcd3.etcdrpc.rpc_pb2_grpc import Unary

Request = TypeVar("Request")
Response = TypeVar("Response")

# With several members, a call that may be repeated leaves the others time to answer it.
_ATTEMPT_SHARE = 0.4
# No member counts as silent before this time.
_SILENCE_S = 0.1

HUNG_S = 1.0
"""How long after its deadline a call counts as one that will never end."""
MEMBERS_EVERY_S = 60.0
MEMBERS_WITHIN_S = 5.0
"""The interval at which members are asked for the list of members, and the time that they have to answer."""

# How gRPC words the refusal of a server that does not accept the client's certificate.
_CERTIFICATE_REFUSED = "TSI_DATA_CORRUPTED"

# Errors of etcd or gRPC's server side before a write has any effect. All other errors leave its outcome open.
_REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,  # a lease that has ended
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


def is_refusal(error: grpc.aio.AioRpcError) -> bool:
    """Whether the server refused the request, so that it certainly has no effect, now or later."""
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # HTTP/2 flow control uses this code too, and that says nothing about the request.
        return (error.details() or "").startswith(("etcdserver:", "grpc: received message larger"))
    return error.code() in _REFUSALS


def is_full(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "space exceeded" in (error.details() or "")


def is_overload(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "too many requests" in (error.details() or "")


def is_compacted(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.OUT_OF_RANGE and "compacted" in (error.details() or "")


def _is_stale_token(error: grpc.aio.AioRpcError) -> bool:
    details = error.details() or ""
    return "invalid auth token" in details or "revision of auth store is old" in details


def is_denied(error: grpc.aio.AioRpcError) -> bool:
    """Whether the user was refused instead of the request."""
    if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return True
    return any(hint in (error.details() or "") for hint in ("user name is empty", "authentication failed"))


def error_text(error: grpc.aio.AioRpcError) -> str:
    details = error.details() or ""
    if _CERTIFICATE_REFUSED in details:
        details += ": the server demands a client certificate that it trusts"
    return f"{error.code().name}: {details}"


def _failed(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details, None)


class EndedAt:
    """Raises DEADLINE_EXCEEDED if a call has not ended at this time of the event loop.

    gRPC's own deadline does not end every call: one whose channel is closed before the call has begun never writes and
    never returns.
    """

    def __init__(self, time: float) -> None:
        self._timeout = asyncio.timeout_at(time)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise _failed(grpc.StatusCode.DEADLINE_EXCEEDED, "the call has not ended by its deadline") from None


class _Routed:
    """Stands in for the channel of a stub: each call uses the channel of the member that is in use at that moment."""

    def __init__(self, channel: Callable[[], grpc.aio.Channel]) -> None:
        self._channel = channel

    def unary_unary(self, method: str, **serializers: Any) -> Any:
        made_for: grpc.aio.Channel | None = None
        call: Any = None

        def routed(request: Any, **options: Any) -> Any:
            nonlocal made_for, call
            channel = self._channel()
            if channel is not made_for:  # to make a call anew each time takes a tenth of a request
                made_for, call = channel, channel.unary_unary(method, **serializers)
            return call(request, **options)

        return routed

    def unary_stream(self, method: str, **serializers: Any) -> Any:
        return lambda request, **options: self._channel().unary_stream(method, **serializers)(request, **options)

    def stream_stream(self, method: str, **serializers: Any) -> Any:
        return lambda **options: self._channel().stream_stream(method, **serializers)(**options)


class EtcdConnection:
    """Stubs for the member in use. Every call has a deadline; `ask` is for requests that may be sent twice."""

    def __init__(self, endpoints: Sequence[str], root: str, tls: Tls | None, login: Login | None) -> None:
        self.tls = tls
        self.endpoints = ", ".join(endpoints)
        self._root = root
        self._login = login
        self.metadata: list[tuple[str, str]] = []
        self._renewal: asyncio.Task[None] | None = None
        self.members = EtcdMembers(endpoints, grpc.ssl_channel_credentials(*tls.pem()) if tls else None)
        self._learning: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        requests = _Routed(lambda: self.members.in_use.requests)
        self.kv = KVStub(requests)
        self.leases = LeaseStub(requests)
        self.maintenance = MaintenanceStub(requests)
        self._auth = AuthStub(requests)
        self.watches = WatchStub(_Routed(lambda: self.members.in_use.streams))
        self._closed = False

    @classmethod
    async def open(
        cls, endpoints: Sequence[str], root: str = "", *, tls: Tls | None = None, login: Login | None = None
    ) -> EtcdConnection:
        """Open the channels; nothing is sent yet. `root` is only for messages. Raises `InvalidCredentials`."""
        assert endpoints, "at least one endpoint"
        if tls is None and any(endpoint.startswith("https://") for endpoint in endpoints):
            tls = Tls()
        return cls(endpoints, root, tls, login)

    @property
    def ready(self) -> bool:
        """Whether a request sent now leaves at once. While this is false, a write that is not sent is certainly
        not applied; a write sent nevertheless could wait inside gRPC and leave later.

        Takes another member that is connected when the one in use is not.
        """
        return self.members.ready

    async def wait_ready(self) -> None:
        while not self._closed and not self.ready:
            await self.members.wait_for_change()

    def follow_members(self) -> None:
        """From now on, keep track of members that join or leave the cluster."""
        self._learning = in_background(self._learn_for_ever(), "etcd members")

    async def _learn_for_ever(self) -> None:
        while True:
            with suppress(grpc.aio.AioRpcError, StoreClosed):
                await self.learn_members()
            await asyncio.sleep(MEMBERS_EVERY_S)

    async def learn_members(self) -> None:
        """See `EtcdMembers.learn`."""

        async def ask(member: EtcdMember) -> MemberListResponse:
            with self.cut_off():
                return await list_members(member, MEMBERS_WITHIN_S, self.metadata)

        await self.members.learn(ask)

    async def call(self, method: Unary[Request, Response], request: Request, timeout_s: float) -> Response:
        """One call. Raises `grpc.aio.AioRpcError`, or `StoreClosed` when `close` has cut it off.

        etcd refuses a stale token before it does anything with a request; only then it is sent again.
        """
        deadline = self._loop.time() + timeout_s
        backoff = Backoff()
        while True:
            if self._login and not self.metadata:
                await self._authenticate(timeout_s)
            token = self.metadata
            try:
                return await self._send(method, request, deadline)
            except grpc.aio.AioRpcError as error:
                if self._login is None or not _is_stale_token(error) or self._loop.time() >= deadline:
                    raise
            if self.metadata is token:
                self.metadata = []
            await backoff.pause()

    async def _send(self, method: Unary[Request, Response], request: Request, deadline: float) -> Response:
        member, sent_at = self.members.in_use, self._loop.time()
        timeout_s = max(deadline - sent_at, 0.001)
        try:
            with self.cut_off():
                async with EndedAt(sent_at + timeout_s + HUNG_S):
                    answer = await method(request, timeout=timeout_s, metadata=self.metadata or None)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                if member.answered_at < sent_at and timeout_s >= _SILENCE_S:
                    self.members.leave(member, silent=True)
            elif not is_refusal(error) or is_overload(error):
                # The request was not refused: this member cannot serve it, but another one may.
                self.members.leave(member, silent=False)
            raise
        member.answered_at = self._loop.time()
        return answer

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """A call whose channel is closed ends as if its task were cancelled. Makes that a lost connection, or
        `StoreClosed`; a task that is really cancelled stays so."""
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            if self._closed:
                raise StoreClosed("this store is closed") from None
            raise _failed(grpc.StatusCode.UNAVAILABLE, "the connection to a silent member was given up") from None

    async def ask(self, method: Unary[Request, Response], request: Request, timeout_s: float) -> Response:
        """A call without effect on records, repeated while the server is away. Raises `StoreUnavailable`, and
        `grpc.aio.AioRpcError` for a refusal, whose meaning only the caller knows."""
        deadline = self._loop.time() + timeout_s
        attempt_s = timeout_s if len(self.members.all) == 1 else timeout_s * _ATTEMPT_SHARE
        backoff = Backoff(longest_s=0.25)
        reason = ""
        while True:
            if not self.ready:
                # Not until the deadline, because only a call says why there is no connection.
                with suppress(TimeoutError):
                    async with asyncio.timeout((deadline - self._loop.time()) / 2):
                        await self.wait_ready()
            try:
                return await self.call(method, request, max(min(deadline - self._loop.time(), attempt_s), 0.001))
            except grpc.aio.AioRpcError as error:
                if is_refusal(error) and not is_overload(error):
                    raise
                if not reason or error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    reason = error_text(error)
                if self._loop.time() + backoff.next_s >= deadline:
                    raise self.unavailable(reason) from None
            await backoff.pause()

    def unavailable(self, reason: str) -> StoreUnavailable:
        return StoreUnavailable(f"etcd at {self.endpoints} does not answer ({reason}). Is it running there?")

    def full(self) -> StoreFull:
        return StoreFull(f"etcd at {self.endpoints} is full: compact and defragment it")

    def denied(self, error: grpc.aio.AioRpcError) -> StoreUnavailable:
        """See `is_denied`."""
        who = f"the user {self._login.user!r}" if self._login else "a client without a user"
        return StoreUnavailable(
            f"etcd at {self.endpoints} refuses {who}: {error.details()}: "
            f"it needs a user with a role that may read and write the prefix {self._root + '/'!r}"
        )

    async def _authenticate(self, timeout_s: float) -> None:
        """Get a new token: etcd's simple tokens end after minutes without use, and with their server. Calls that need
        one meanwhile wait for the same token, because each costs etcd a tenth of a second of computing."""
        if self._renewal is None or self._renewal.done():
            self._renewal = self._loop.create_task(self._renew(timeout_s), name="etcd authentication")
        with self.cut_off():
            await asyncio.shield(self._renewal)

    async def _renew(self, timeout_s: float) -> None:
        assert self._login is not None
        request = AuthenticateRequest(name=self._login.user, password=self._login.password)
        answer = await self._send(self._auth.Authenticate, request, self._loop.time() + timeout_s)
        self.metadata = [("token", answer.token)]

    async def close(self) -> None:
        self._closed = True
        for task in filter(None, (self._renewal, self._learning)):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.members.close()
