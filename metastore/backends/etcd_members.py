"""The members of an etcd cluster, and the one in use.

The members that the store was opened with are always kept. Others are learned from the cluster itself from time to
time, so that a process survives the replacement of every member it once knew. The address that a member advertises need
not be valid for this machine (by default it is `localhost`). So a member is only used after that very member, of this
very cluster, has answered there; and one that is connected under its given address is not connected a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

import grpc
import grpc.aio

from metastore.backends.etcd_stubs import ClusterStub, MemberListRequest, MemberListResponse

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

ListMembers = Callable[["EtcdMember"], Awaitable[MemberListResponse]]
"""Ask this very member. Raises `grpc.aio.AioRpcError`."""


class EtcdMember:
    """One endpoint. `id` is the cluster's id of the member that serves there, once that is known."""

    def __init__(self, endpoint: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = _address(endpoint)
        self._credentials = credentials
        self._change: asyncio.Task[None] | None = None
        self.id = 0
        self.answered_at = 0.0
        self.requests = self._channel("requests")
        self.streams = self._channel("watches")

    async def reconnect(self) -> None:
        """Open new channels, and cut off the calls in flight on the old ones."""
        old = (self.streams, self.requests)
        self.requests, self.streams = self._channel("requests"), self._channel("watches")
        await self._close(old)

    def _channel(self, purpose: str) -> grpc.aio.Channel:
        options = [*_OPTIONS, ("metatxn.channel", purpose)]
        if self._credentials is None:
            return grpc.aio.insecure_channel(f"dns:///{self.address}", options)
        return grpc.aio.secure_channel(f"dns:///{self.address}", self._credentials, options)

    @property
    def ready(self) -> bool:
        return self.requests.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    def change(self) -> asyncio.Task[None]:
        """Wait until the state of the channel for requests has changed."""
        if self._change is None or self._change.done():
            watched = self.requests.wait_for_state_change(self.requests.get_state(try_to_connect=True))
            self._change = asyncio.ensure_future(watched)
        return self._change

    async def close(self) -> None:
        await self._close((self.streams, self.requests))

    async def _close(self, channels: Sequence[grpc.aio.Channel]) -> None:
        change, self._change = self._change, None
        if change:
            change.cancel()
            await asyncio.gather(change, return_exceptions=True)
        for channel in channels:
            await channel.close(None)


class EtcdMembers:
    """The members. `in_use` is the one to which calls go."""

    def __init__(self, endpoints: Sequence[str], credentials: grpc.ChannelCredentials | None) -> None:
        self._credentials = credentials
        self._given = [EtcdMember(endpoint, credentials) for endpoint in endpoints]
        self._learned: list[EtcdMember] = []
        self.in_use = self._given[0]
        self._given_up: set[asyncio.Task[None]] = set()
        self._learning = asyncio.Lock()

    @property
    def all(self) -> list[EtcdMember]:
        return self._given + self._learned

    @property
    def ready(self) -> bool:
        """Whether the member in use is connected. If not, and another one is, that is in use from now on; and all of
        them are told to connect."""
        if not self.in_use.ready:
            connected = _connected(self.all)
            if not connected:
                return False
            self.in_use = connected[0]
        return True

    async def wait_for_change(self) -> None:
        """Wait until one of them connects, or loses its connection."""
        await asyncio.wait([member.change() for member in self.all], return_when=asyncio.FIRST_COMPLETED)

    def leave(self, member: EtcdMember, *, silent: bool) -> None:
        """If `member` is in use, continue with the next one that is connected, because `member` does not serve.

        One that is silent may be frozen behind a connection that looks alive, so that connection is given up. Doing so
        without need costs a connection, and no more: what was on its way counts as lost.
        """
        everyone = self.all
        if member is not self.in_use or len(everyone) == 1:
            return
        at = everyone.index(member)
        others = everyone[at + 1 :] + everyone[:at]
        self.in_use = next(iter(_connected(others)), others[0])
        if silent:
            given_up = asyncio.get_running_loop().create_task(member.reconnect(), name="etcd silent member")
            self._given_up.add(given_up)
            given_up.add_done_callback(self._given_up.discard)

    async def learn(self, ask: ListMembers) -> None:
        """Add members that have joined the cluster, and forget learned ones that have left it. A member that is still
        catching up with the others does not answer yet. Raises the errors of `ask`."""
        async with self._learning:
            await self._learn(ask)

    async def _learn(self, ask: ListMembers) -> None:
        asked = self.in_use
        answer = await ask(asked)
        asked.id = answer.header.member_id
        await self._identify(ask)
        listed = {one.ID: one.clientURLs for one in answer.members}
        for member in [member for member in self._learned if member.id not in listed and member is not self.in_use]:
            self._learned.remove(member)
            await member.close()
        for member_id in sorted(listed.keys() - {member.id for member in self.all}):
            for url in filter(self._is_new, listed[member_id]):
                if await self._take_up(url, member_id, answer.header.cluster_id, ask):
                    break

    def _is_new(self, url: str) -> bool:
        """Whether no member is contacted at this address yet, and it is as secure as the given ones."""
        secure = self._credentials is not None
        return url.startswith("https://") == secure and _address(url) not in {member.address for member in self.all}

    async def _identify(self, ask: ListMembers) -> None:
        """Learn which member serves at each of the given addresses. It may be another one than before."""
        for member in _connected(self._given):
            with suppress(grpc.aio.AioRpcError):
                member.id = (await ask(member)).header.member_id

    async def _take_up(self, url: str, member_id: int, cluster_id: int, ask: ListMembers) -> bool:
        """Add the member at `url` if `member_id` answers there. Returns whether it does."""
        candidate = EtcdMember(url, self._credentials)
        try:
            header = (await ask(candidate)).header
            if (header.cluster_id, header.member_id) != (cluster_id, member_id):
                return False
            candidate.id = member_id
            self._learned.append(candidate)
            return True
        except grpc.aio.AioRpcError:
            return False
        finally:
            if not candidate.id:
                await candidate.close()

    async def close(self) -> None:
        for task in self._given_up:
            task.cancel()
        await asyncio.gather(*self._given_up, return_exceptions=True)
        for member in self.all:
            await member.close()


def _connected(members: Iterable[EtcdMember]) -> list[EtcdMember]:
    """The connected members, as a list, because each of them is asked, which also makes it connect."""
    return [member for member in members if member.ready]


def _address(endpoint: str) -> str:
    return endpoint.split("://")[-1].rstrip("/")


async def list_members(member: EtcdMember, timeout_s: float, metadata: Sequence[tuple[str, str]]) -> MemberListResponse:
    """The members of the cluster, according to `member`."""
    stub = ClusterStub(member.requests)
    return await stub.MemberList(MemberListRequest(), timeout=timeout_s, metadata=metadata or None)
