"""How the servers of a ZooKeeper ensemble are set up, as far as they tell: by the commands `srvr` and `conf`, by their
AdminServer, and by what they do with a large request. docs/stores.md has the reasons."""

from __future__ import annotations

import asyncio
import json
import re
import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPException
from ssl import SSLError

from kazoo.hosts import collect_hosts
from kazoo.protocol.serialization import Connect

from metastore.backends.credentials import Tls
from metastore.backends.options import ZooKeeperOptions
from metastore.backends.zookeeper import ZooKeeperStore
from metastore.backends.zookeeper_commands import MOST_BYTES, WITHIN_S, ask, numbers_in
from metastore.backends.zookeeper_group_commit import MAX_REQUEST_BYTES

ADMIN_PORT = 8080
"""Where an AdminServer listens, unless `admin.serverPort` says otherwise. Nothing in the client's protocol tells it."""
OLDEST = (3, 6)
MUCH_LOG_BYTES = 20 << 30
SESSION_MS = ZooKeeperOptions().session_timeout_ms
_STORES = "docs/stores.md has the settings."
_ALLOW = "Set 4lw.commands.whitelist=srvr,conf, or compare its file with docs/stores.md."

Remark = tuple[str, str, str, str, str]
"""The members of an `Examined`."""


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """One server. `silence` says why nothing is known of it; without `conf` it does not allow that command. `file` is
    the text of its configuration, if its AdminServer tells it, and `takes_large` whether it takes a request as large as
    any of a store; `None` is not known."""

    server: str
    servers: int
    version: str | None = None
    mode: str | None = None
    conf: Mapping[str, int] = field(default_factory=dict)
    file: str | None = None
    takes_large: bool | None = None
    silence: str | None = None
    away: bool = False

    def examined(self) -> Iterator[Remark]:
        about = f"zookeeper {self.server}"
        if self.silence is not None:
            action = "Start it, or check the network between here and there." if self.away else _ALLOW
            yield "zookeeper", about, "problem" if self.away else "skipped", self.silence, action
            return
        yield from self._of_version(about)
        yield from self._of_mode(about)
        yield from self._of_requests(about)
        yield from self._of_purges(about)
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
            action = "It has no majority: check the other servers, and its log."
            yield "zookeeper mode", about, "problem", "it runs and does not serve", action
        elif self.mode == "standalone" and self.servers > 1:
            action = "Give each its server.N lines, or name one ensemble only: these are several stores."
            yield "zookeeper mode", about, "problem", f"it runs standalone, but --store names {self.servers}", action
        else:
            yield "zookeeper mode", about, "ok", self.mode, ""

    def _of_requests(self, about: str) -> Iterator[Remark]:
        if self.takes_large is None:
            return
        does = "takes" if self.takes_large else "ends the connection at"
        action = "" if self.takes_large else f"Leave its jute.maxbuffer at 1048575, its default: {_STORES}"
        what = f"it {does} a request of {MAX_REQUEST_BYTES} bytes"
        yield "zookeeper jute.maxbuffer", about, "problem" if action else "ok", what, action

    def _of_purges(self, about: str) -> Iterator[Remark]:
        check = "zookeeper autopurge"
        if self.file is None:
            what = f"no AdminServer shows its settings at port {ADMIN_PORT}"
            yield check, about, "skipped", what, f"Check that its file has autopurge.purgeInterval=1: {_STORES}"
            return
        hours = int(_setting(self.file, "autopurge.purgeInterval") or 0)
        if hours > 0:
            yield check, about, "ok", f"it removes old snapshots and logs every {hours} h", ""
        else:
            action = f"Set autopurge.purgeInterval=1, unless zkCleanup.sh runs every day: {_STORES}"
            yield check, about, "advice", "it never removes old snapshots and logs", action

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


async def settings_of_servers(
    store: ZooKeeperStore, *, admin_port: int = ADMIN_PORT
) -> AsyncIterator[ZooKeeperSettings]:
    """One for each server that the URL of the store names."""
    hosts, _ = collect_hosts(store.connection.hosts)
    tls = store.connection.tls
    for host, port in hosts:
        server = f"{host}:{port}"
        try:
            srvr = await asyncio.to_thread(ask, host, port, b"srvr", tls)
            conf = await asyncio.to_thread(ask, host, port, b"conf", tls)
        except OSError as error:
            yield ZooKeeperSettings(server, len(hosts), silence=f"it does not answer: {error}", away=True)
            continue
        told = told_by(server, len(hosts), srvr, conf)
        if told.mode is None:  # it does not serve
            yield told
            continue
        file = await asyncio.to_thread(_file, host, admin_port)
        yield replace(told, file=file, takes_large=await asyncio.to_thread(_takes_large, host, port, tls))


def told_by(server: str, servers: int, srvr: str, conf: str) -> ZooKeeperSettings:
    """The settings, from the answers to the two commands."""
    if "whitelist" in srvr:
        return ZooKeeperSettings(server, servers, silence="it does not allow the command `srvr`")
    version = re.search(r"version: (\d[\d.]*)", srvr)
    mode = re.search(r"^Mode: (\w+)", srvr, re.MULTILINE)
    return ZooKeeperSettings(
        server,
        servers,
        version=version[1] if version else None,
        mode=mode[1] if mode else None,
        conf=numbers_in(conf),
    )


def _setting(file: str, name: str) -> str | None:
    found = re.findall(rf"^\s*{re.escape(name)}\s*[=:\s]\s*(\d+)\s*$", file, re.MULTILINE)
    return str(found[-1]) if found else None


def _file(host: str, port: int) -> str | None:
    """The text of the server's configuration file, by the AdminServer; `None` if there is none."""
    connection = HTTPConnection(host, port, timeout=WITHIN_S)
    try:
        connection.request("GET", "/commands/initial_configuration")
        told = json.loads(connection.getresponse().read(MOST_BYTES))
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        connection.close()
    found = told.get("initial_configuration") if isinstance(told, dict) else None
    return found if isinstance(found, str) else None


def _takes_large(host: str, port: int, tls: Tls | None) -> bool | None:
    """Whether it answers a request of as many bytes as `MAX_REQUEST_BYTES`, and does not end the connection.

    The request opens a session that there cannot be, and what follows in it means nothing, so it changes nothing: the
    answer says that the session has expired.
    """
    asked = Connect(0, 0, SESSION_MS, session_id=1, passwd=bytes(16), read_only=False).serialize()
    frame = struct.pack(">i", MAX_REQUEST_BYTES) + bytes(asked).ljust(MAX_REQUEST_BYTES, b"\0")
    try:
        return bool(ask(host, port, frame, tls))
    except (ConnectionResetError, BrokenPipeError, SSLError):  # it has ended the connection before all was sent
        return False
    except OSError:
        return None
