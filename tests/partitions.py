"""Ways between the members of a store's cluster: each can be cut or held alone, from one member to another.

A member of etcd tells all others the same address, so each has a door before it; who comes in there is known by the
process at the other end of the connection. A server of ZooKeeper reads in its own file where the others are, so each
file has other addresses. But one that is called by a server with a lower number calls back, at the address it is told
then: the way that the call has come puts one of ours there.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import TypeVar

from tests.metastore.storms.relay import Relay
from tests.servers import EtcdCluster, EtcdServer, ZooKeeperEnsemble, peer_address

T = TypeVar("T")
Pair = tuple[int, int]
"""Numbers of members, from the one that calls to the one that is called."""


class PeerWays:
    """What lies between any two members. Ways that are cut or held are those of one direction, but TCP needs both."""

    def __init__(self) -> None:
        self.relays: dict[Pair, list[Relay]] = {}

    def cut(self, *pairs: Pair) -> None:
        """End connections from the first of each pair to the second; none begins."""
        for relay in self._of(pairs):
            relay.cut()

    def hold(self, *pairs: Pair) -> None:
        """Nothing comes through, and nobody is told: packets that are dropped."""
        for relay in self._of(pairs):
            relay.hold("requests")
            relay.hold("replies")

    def mend(self) -> None:
        """All of them; what was held is lost."""
        for relay in self._of(tuple(self.relays)):
            relay.mend()
            relay.release(lose=True)

    def _of(self, pairs: tuple[Pair, ...]) -> list[Relay]:
        return [relay for pair in pairs for relay in self.relays[pair]]


def around(alone: int, members: int) -> list[Pair]:
    """The ways that cut one member off from all others."""
    return [pair for pair in permutations(range(members), 2) if alone in pair]


@asynccontextmanager
async def between_etcds(cluster: EtcdCluster) -> AsyncIterator[PeerWays]:
    """Enter before the cluster is started."""
    ways = PeerWays()
    async with AsyncExitStack() as stack:
        for called, member in enumerate(cluster.members):
            for calling in range(len(cluster.members)):
                if calling != called:
                    relay = Relay(member.peer_port)
                    stack.push_async_callback(relay.close)
                    ways.relays[calling, called] = [relay]
            door = await asyncio.start_server(partial(_arrive, cluster.members, ways, called), "127.0.0.1", 0)
            stack.callback(door.close)
            member.peer = f"http://127.0.0.1:{door.sockets[0].getsockname()[1]}"
        cluster.introduce()
        yield ways


def _arrive(
    members: list[EtcdServer],
    ways: PeerWays,
    called: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    calling = caller(writer, {number: member.pid for number, member in enumerate(members) if number != called})
    if calling is None:
        writer.transport.abort()  # it has gone again
    else:
        ways.relays[calling, called][0].accept(reader, writer)


def caller(writer: asyncio.StreamWriter, processes: Mapping[T, int | None]) -> T | None:
    """Which of these processes, by the id of each that runs, is at the other end of a connection on this machine."""
    inode = _inode(*(writer.get_extra_info(end)[1] for end in ("peername", "sockname")))
    held = (name for name, pid in processes.items() if pid and _holds(pid, f"socket:[{inode}]"))
    return next(held, None)


_ASK = struct.Struct("=IHHII BBBxI 2s2s 16s16s I 8s")
"""A netlink header, and `inet_diag_req_v2`: one socket, by its two ends. `/proc/net/tcp` would be read as a whole, for
tens of milliseconds on a machine with many connections."""
_ANSWER = struct.Struct("=4xH10x 68x I")
"""What kind it is, and the inode, last of `inet_diag_msg`."""
_SOCK_DIAG = 4
_BY_FAMILY = 20


def _inode(port: int, other: int) -> int:
    """Of the socket that is connected from `port` to `other`, both of ours; 0 if there is none any more."""
    home = bytes((127, 0, 0, 1)).ljust(16, b"\0")
    request, every_state, any_cookie = 1, 0xFFFFFFFF, b"\xff" * 8
    ends = (port.to_bytes(2, "big"), other.to_bytes(2, "big"), home, home)
    header = (_ASK.size, _BY_FAMILY, request, 0, 0)
    asked = _ASK.pack(*header, socket.AF_INET, socket.IPPROTO_TCP, 0, every_state, *ends, 0, any_cookie)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.send(asked)
        answer = kernel.recv(1 << 12)
    kind, inode = _ANSWER.unpack_from(answer)
    return int(inode) if kind == _BY_FAMILY else 0


def _holds(pid: int, name: str) -> bool:
    try:
        return any(_leads_to(file, name) for file in Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:  # it has ended
        return False


def _leads_to(file: Path, name: str) -> bool:
    try:
        return str(file.readlink()) == name
    except FileNotFoundError:  # it is closed while we look
        return False


@asynccontextmanager
async def between_zookeepers(ensemble: ZooKeeperEnsemble) -> AsyncIterator[PeerWays]:
    """Enter before the ensemble is started."""
    ways = PeerWays()
    electing: dict[Pair, Relay] = {}
    async with AsyncExitStack() as stack:
        for calling, called in permutations(range(len(ensemble.members)), 2):
            to_leader, to_elect = ensemble.peer_ports[called]
            leading = await stack.enter_async_context(Relay(to_leader))
            back = partial(_call_back_through, electing, ensemble.peer_ports[calling][1], (called, calling))
            electing[calling, called] = await stack.enter_async_context(Relay(to_elect, back))
            ways.relays[calling, called] = [leading, electing[calling, called]]
            address = peer_address(leading.port, electing[calling, called].port)
            ensemble.members[calling].settings[f"server.{called + 1}"] = address
        yield ways


def _call_back_through(electing: dict[Pair, Relay], told: int, way: Pair, said: bytes) -> bytes:
    """The first words of a call, with another address to call back at; its length is told in front of it."""
    told_address, address = b"127.0.0.1:%d" % told, b"127.0.0.1:%d" % electing[way].port
    return said.replace(told_address, address.ljust(len(told_address)))
