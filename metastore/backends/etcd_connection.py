"""The way to an etcd cluster: channels, credentials, deadlines, and what an error code says.

Two channels: a watch that is flooded, or a server that stops answering watches, must not hold up the others. With
several endpoints gRPC connects to the first that answers and moves on when it is lost. gRPC's own retries are off:
whether a request may be sent again is decided here for reads, and in `etcd_group_commit` for writes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from metastore.backends.etcd_stubs import AuthenticateRequest, AuthStub, KVStub, LeaseStub, WatchStub
from metastore.errors import StoreClosed, StoreUnavailable

if TYPE_CHECKING:
    from etcd3.etcdrpc.rpc_pb2_grpc import Unary

Request = TypeVar("Request")
Response = TypeVar("Response")

_OPTIONS: list[tuple[str, object]] = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # etcd ends connections that ping more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
]

# What etcd or gRPC's server side says before it does anything with a write. All others leave its outcome open.
_REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


def is_refusal(error: grpc.aio.AioRpcError) -> bool:
    """Whether the server refused the request: it certainly did nothing and never will."""
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
    """Whether the user, not the request, was refused."""
    if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return True
    return any(hint in (error.details() or "") for hint in ("user name is empty", "authentication failed"))


def describe(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"


class Backoff:
    """Growing, jittered pauses between attempts, so that clients which failed together do not return together."""

    def __init__(self, first_s: float = 0.02, longest_s: float = 1.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self.next_s = first_s

    async def pause(self) -> None:
        await asyncio.sleep(self.next_s * random.uniform(0.5, 1.0))
        self.next_s = min(self.next_s * 2, self._longest_s)

    def reset(self) -> None:
        self.next_s = self._first_s


@dataclass(frozen=True, slots=True)
class Login:
    """A user of etcd's own authentication."""

    user: str
    password: str = field(repr=False)

    @classmethod
    def read(cls, user: str, password_file: str | Path | None) -> Login:
        if password_file is None:
            raise ValueError(f"the etcd user {user} needs a password_file")
        return cls(user, Path(password_file).read_text().rstrip("\n"))


def _credentials(ca: str | Path | None, cert: str | Path | None, key: str | Path | None) -> grpc.ChannelCredentials:
    trusted, private, chain = (Path(file).read_bytes() if file else None for file in (ca, key, cert))
    return grpc.ssl_channel_credentials(trusted, private, chain)


async def _target(endpoints: Sequence[str]) -> str:
    """gRPC takes one name, or a list of addresses: so several names are looked up here."""
    hosts = [endpoint.split("://")[-1].rstrip("/") for endpoint in endpoints]
    if len(hosts) == 1:
        return f"dns:///{hosts[0]}"
    loop = asyncio.get_running_loop()
    addresses = []
    for host, _, port in (name.rpartition(":") for name in hosts):
        try:
            found = await loop.getaddrinfo(host, int(port), family=2)
        except (OSError, ValueError) as error:
            raise StoreUnavailable(f"cannot look up the etcd endpoint {host}:{port}: {error}") from None
        addresses.append("{}:{}".format(*found[0][4]))
    return "ipv4:" + ",".join(addresses)


class Connection:
    """Stubs on connected channels. Every call has a deadline; `ask` is for what may be asked twice."""

    def __init__(
        self, endpoints: Sequence[str], target: str, credentials: grpc.ChannelCredentials | None, login: Login | None
    ) -> None:
        self.endpoints = ", ".join(endpoints)
        self._login = login
        self.metadata: list[tuple[str, str]] = []
        self._channel = self._open(target, credentials, "requests")
        self._watch_channel = self._open(target, credentials, "watches")
        self.kv = KVStub(self._channel)
        self.leases = LeaseStub(self._channel)
        self.watches = WatchStub(self._watch_channel)
        self._closed = False

    @classmethod
    async def open(
        cls,
        endpoints: Sequence[str],
        *,
        ca: str | Path | None = None,
        cert: str | Path | None = None,
        key: str | Path | None = None,
        login: Login | None = None,
    ) -> Connection:
        """Open the channels; nothing is sent yet."""
        assert endpoints, "at least one endpoint"
        credentials = None
        if ca or cert or key or any(endpoint.startswith("https://") for endpoint in endpoints):
            credentials = _credentials(ca, cert, key)
        return cls(endpoints, await _target(endpoints), credentials, login)

    @staticmethod
    def _open(target: str, credentials: grpc.ChannelCredentials | None, purpose: str) -> grpc.aio.Channel:
        options = [*_OPTIONS, ("metatxn.channel", purpose)]
        if credentials is None:
            return grpc.aio.insecure_channel(target, options)
        return grpc.aio.secure_channel(target, credentials, options)

    @property
    def ready(self) -> bool:
        """Whether a request sent now leaves at once. While this is false, a write that is not sent is certainly
        not applied; a write sent nevertheless could wait inside gRPC and leave later."""
        return self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    async def wait_ready(self) -> None:
        while not self._closed and not self.ready:
            await self._channel.wait_for_state_change(self._channel.get_state(try_to_connect=True))

    async def call(self, method: Unary[Request, Response], request: Request, timeout_s: float) -> Response:
        """One call. Raises `grpc.aio.AioRpcError`, or `StoreClosed` when `close` has cut it off."""
        if self._login and not self.metadata:
            await self.authenticate(timeout_s)
        try:
            return await self._send(method, request, timeout_s)
        except grpc.aio.AioRpcError as error:
            if self._login is None or not _is_stale_token(error):
                raise
        await self.authenticate(timeout_s)
        return await self._send(method, request, timeout_s)

    async def _send(self, method: Unary[Request, Response], request: Request, timeout_s: float) -> Response:
        try:
            return await method(request, timeout=timeout_s, metadata=self.metadata or None)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task and not task.cancelling():
                raise StoreClosed("this store is closed") from None
            raise

    async def ask(self, method: Unary[Request, Response], request: Request, timeout_s: float) -> Response:
        """A call without effect on records, repeated while the server is away. Raises `StoreUnavailable`, and
        `grpc.aio.AioRpcError` for a refusal, whose meaning only the caller knows."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        backoff = Backoff(longest_s=0.25)
        while True:
            try:
                return await self.call(method, request, max(deadline - loop.time(), 0.001))
            except grpc.aio.AioRpcError as error:
                if is_refusal(error) and not is_overload(error):
                    raise
                if loop.time() + backoff.next_s >= deadline:
                    raise self.unavailable(describe(error)) from None
            await backoff.pause()

    def unavailable(self, reason: str) -> StoreUnavailable:
        return StoreUnavailable(f"etcd at {self.endpoints} does not answer ({reason}): is it running there?")

    async def authenticate(self, timeout_s: float) -> None:
        """Get a new token, if there is a login: etcd's simple tokens end after minutes of silence."""
        if self._login is None:
            return
        request = AuthenticateRequest(name=self._login.user, password=self._login.password)
        method = AuthStub(self._channel).Authenticate
        answer = await method(request, timeout=timeout_s)
        self.metadata = [("token", answer.token)]

    async def close(self) -> None:
        self._closed = True
        await self._watch_channel.close(None)
        await self._channel.close(None)
