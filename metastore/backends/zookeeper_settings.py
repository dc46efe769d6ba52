"""How the servers of a ZooKeeper ensemble are set up, as far as they tell by the commands `srvr` and `conf`.
docs/stores.md has the reasons."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field

from kazoo.hosts import collect_hosts

from metastore.backends.credentials import Tls
from metastore.backends.options import ZooKeeperOptions
from metastore.backends.zookeeper import ZooKeeperStore

WITHIN_S = 3.0
MOST_BYTES = 1 << 20
OLDEST = (3, 6)
MUCH_LOG_BYTES = 20 << 30
SESSION_MS = ZooKeeperOptions().session_timeout_ms
_STORES = "docs/stores.md has the settings."
_ALLOW = "Set 4lw.commands.whitelist=srvr,conf, or compare its file with docs/stores.md."

Remark = tuple[str, str, str, str, str]
"""The members of an `Examined`."""


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """One server. `silence` says why nothing is known of it; without `conf` it does not allow that command."""

    server: str
    servers: int
    version: str | None = None
    mode: str | None = None
    conf: Mapping[str, int] = field(default_factory=dict)
    silence: str | None = None
    away: bool = False

    def examined(self) -> Iterator[Remark]:
        about = f"zookeeper {self.server}"
        if self.silence is not None:
            action = "Start it, or see what is between here and there." if self.away else _ALLOW
            yield "zookeeper", about, "problem" if self.away else "skipped", self.silence, action
            return
        yield from self._of_version(about)
        yield from self._of_mode(about)
        if not self.conf:
            yield "zookeeper settings", about, "skipped", "it does not allow the command `conf`", _ALLOW
            return
        yield from self._of_connections(about)
        yield from self._of_sessions(about)
        yield from self._of_log(about)

    def _of_version(self, about: str) -> Iterator[Remark]:
        if self.version is None:
            return
        numbers = tuple(int(each) for each in re.findall(r"\d+", self.version)[:2])
        action = "Upgrade it: metatxn needs ZooKeeper 3.6 or later." if numbers < OLDEST else ""
        yield "zookeeper version", about, "problem" if action else "ok", f"version {self.version}", action

    def _of_mode(self, about: str) -> Iterator[Remark]:
        if self.mode is None:
            action = "It has no majority: see how the other servers are, and what its log says."
            yield "zookeeper mode", about, "problem", "it runs and does not serve", action
        elif self.mode == "standalone" and self.servers > 1:
            action = "Give each its server.N lines, or name one ensemble only: these are several stores."
            yield "zookeeper mode", about, "problem", f"it stands alone, and --store names {self.servers}", action
        else:
            yield "zookeeper mode", about, "ok", self.mode, ""

    def _of_connections(self, about: str) -> Iterator[Remark]:
        most = self.conf.get("maxClientCnxns")
        if most is None:
            return
        allowed = f"{most} connections from one address" if most else "any number of connections from one address"
        action = f"Set maxClientCnxns=0: {_STORES}" if most else ""
        yield "zookeeper maxClientCnxns", about, "advice" if most else "ok", allowed, action

    def _of_sessions(self, about: str) -> Iterator[Remark]:
        shortest, longest = self.conf.get("minSessionTimeout"), self.conf.get("maxSessionTimeout")
        if shortest is None or longest is None:
            return
        got = min(max(SESSION_MS, shortest), longest)
        what = f"a session of {SESSION_MS / 1000:g} s lasts {got / 1000:g} s"
        action = "" if got == SESSION_MS else f"Set tickTime=2000: {_STORES}"
        yield "zookeeper sessions", about, "advice" if action else "ok", what, action

    def _of_log(self, about: str) -> Iterator[Remark]:
        size = self.conf.get("dataLogSize")
        if size is None:
            return
        action = f"Set autopurge.purgeInterval=1: {_STORES}" if size > MUCH_LOG_BYTES else ""
        yield "zookeeper log", about, "problem" if action else "ok", f"{size >> 20} MiB of logs", action


async def settings_of_servers(store: ZooKeeperStore) -> AsyncIterator[ZooKeeperSettings]:
    """One for each server that the URL of the store names."""
    hosts, _ = collect_hosts(store.connection.hosts)
    tls = store.connection.tls
    for host, port in hosts:
        server = f"{host}:{port}"
        try:
            told = await asyncio.to_thread(_ask, host, port, b"srvr", tls)
            conf = await asyncio.to_thread(_ask, host, port, b"conf", tls)
        except OSError as error:
            yield ZooKeeperSettings(server, len(hosts), silence=f"it does not answer: {error}", away=True)
        else:
            yield told_by(server, len(hosts), told, conf)


def told_by(server: str, servers: int, srvr: str, conf: str) -> ZooKeeperSettings:
    """From what it answers to the two commands."""
    if "whitelist" in srvr:
        return ZooKeeperSettings(server, servers, silence="it does not allow the command `srvr`")
    version = re.search(r"version: (\d[\d.]*)", srvr)
    mode = re.search(r"^Mode: (\w+)", srvr, re.MULTILINE)
    numbers = re.findall(r"^(\w+)=(\d+)$", conf, re.MULTILINE)
    return ZooKeeperSettings(
        server,
        servers,
        version=version[1] if version else None,
        mode=mode[1] if mode else None,
        conf={name: int(value) for name, value in numbers},
    )


def _ask(host: str, port: int, command: bytes, tls: Tls | None) -> str:
    """The answer ends with the connection. Some servers end that without a farewell of TLS."""
    with socket.create_connection((host, port), timeout=WITHIN_S) as plain:
        plain.settimeout(WITHIN_S)
        if tls is None:
            return _answer(plain, command)
        with tls.context().wrap_socket(plain, server_hostname=host) as secured:
            return _answer(secured, command)


def _answer(connection: socket.socket, command: bytes) -> str:
    connection.sendall(command)
    with connection.makefile("rb") as answer:
        return answer.read(MOST_BYTES).decode(errors="replace")
