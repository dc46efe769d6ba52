"""How the members of an etcd cluster are set up, as far as they say: their metrics, the number of operations that a
request may have, and whether history is ever compacted. docs/stores.md has the reasons."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from urllib.error import URLError
from urllib.request import urlopen

import grpc

from metastore.backends.credentials import Tls
from metastore.backends.etcd import EtcdStore
from metastore.backends.etcd_connection import is_compacted
from metastore.backends.etcd_stubs import RangeRequest

METRICS_WITHIN_S = 3.0
MUCH_HISTORY = 100_000
"""Revisions after which history that was never compacted is conspicuous."""
WANTED_MAX_TXN_OPS = (512, 256, 128)
FULL = 0.7
SMALL_QUOTA = 4 << 30
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH)
_CORRUPTING = ("3.5.0", "3.5.1", "3.5.2")
_STORES = "docs/stores.md has the flags."
_ALARMS = {
    "NOSPACE": "All writes are refused. Compact and defragment each member, and then end it with etcdctl alarm disarm.",
    "CORRUPT": "A member has other data than the rest. Replace it: remove it, delete its data, and add it again.",
}
_VALUE = re.compile(r"^(\w+)(?:\{(.*)\})? ([0-9.e+-]+)$", re.ASCII | re.MULTILINE)

Told = tuple[str, str, str, str, str]
"""The members of an `Examined`."""


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """One member. What it does not say is None, and `silence` says why: it is `away` if nothing answers at its
    address. `alarms` are those of the whole cluster."""

    member: str
    max_txn_ops: int
    revision: int
    never_compacted: bool
    version: str | None = None
    quota_bytes: int | None = None
    size_bytes: int | None = None
    silence: str | None = None
    away: bool = False
    has_leader: bool = True
    alarms: tuple[str, ...] = ()

    def examined(self) -> Iterator[Told]:
        about = f"etcd {self.member}"
        allowed = f"{self.max_txn_ops} operations in a request" if self.max_txn_ops else "fewer than 128 in a request"
        action = "" if self.max_txn_ops >= WANTED_MAX_TXN_OPS[0] else f"Set --max-txn-ops=512: {_STORES}"
        verdict = "problem" if not self.max_txn_ops else "advice" if action else "ok"
        yield "etcd --max-txn-ops", about, verdict, allowed, action
        if self.never_compacted and self.revision > MUCH_HISTORY:
            what = f"all {self.revision} revisions are kept: the history was never compacted"
            action = f"Set --auto-compaction-mode=periodic and --auto-compaction-retention=2m: {_STORES}"
            yield "etcd history", about, "problem", what, action
        else:
            kept = "nothing is compacted yet" if self.never_compacted else "it is compacted"
            yield "etcd history", about, "ok", f"revision {self.revision}, {kept}", ""
        yield from self._of_alarms(about)
        if self.away:
            action = (
                "Start it, or remove it from the cluster with etcdctl member remove: another failure stops all writes."
            )
            yield "etcd member", about, "problem", f"it does not answer: {self.silence}", action
            return
        if not self.has_leader:
            action = "It sees no majority of the members. Look at the others and at the network between them."
            yield "etcd member", about, "problem", "it knows no leader, so it accepts no writes", action
        if self.silence is not None:
            yield "etcd metrics", about, "skipped", self.silence, "Look at version and quota with etcdctl."
            return
        yield from self._of_version(about)
        yield from self._of_quota(about)

    def _of_alarms(self, about: str) -> Iterator[Told]:
        for alarm in self.alarms:
            action = _ALARMS.get(alarm, "Look at it with etcdctl alarm list.")
            yield "etcd alarm", about, "problem", f"the alarm {alarm} is raised", action

    def _of_version(self, about: str) -> Iterator[Told]:
        if self.version in _CORRUPTING:
            action = "Upgrade to 3.5.28 or later: this version corrupts data after a crash."
            yield "etcd version", about, "problem", f"version {self.version}", action
        elif self.version is not None:
            yield "etcd version", about, "ok", f"version {self.version}", ""

    def _of_quota(self, about: str) -> Iterator[Told]:
        if self.quota_bytes is None or self.size_bytes is None:
            return
        used = f"{self.size_bytes >> 20} MiB of {self.quota_bytes >> 20} MiB"
        if self.size_bytes > FULL * self.quota_bytes:
            action = "Compact and defragment it, or raise --quota-backend-bytes: at the quota all writes stop."
            yield "etcd quota", about, "problem", used, action
        elif self.quota_bytes < SMALL_QUOTA:
            action = f"Set --quota-backend-bytes=8589934592: {_STORES}"
            yield "etcd quota", about, "advice", f"{used}, which a busy minute can fill", action
        else:
            yield "etcd quota", about, "ok", used, ""


async def settings_of(store: EtcdStore) -> AsyncIterator[EtcdSettings]:
    """The settings of each known member. Raises the store's errors."""
    revision, never_compacted = await store.current_revision(), await _has_all_history(store)
    max_txn_ops = 0
    for count in WANTED_MAX_TXN_OPS:
        if await store.takes_operations(count):
            max_txn_ops = count
            break
    alarms = tuple(await store.alarms())
    for member in store.connection.members.all:
        told, silence, away = await _metrics_of(member.address, store.connection.tls)
        quota, size = told.get("etcd_server_quota_backend_bytes"), told.get("etcd_mvcc_db_total_size_in_bytes")
        yield EtcdSettings(
            member.address,
            max_txn_ops,
            revision,
            never_compacted,
            version=next((name.partition(" ")[2] for name in told if name.startswith("version ")), None),
            quota_bytes=int(quota) if quota is not None else None,
            size_bytes=int(size) if size is not None else None,
            silence=silence,
            away=away,
            has_leader=told.get("etcd_server_has_leader", 1) > 0,
            alarms=alarms,
        )


async def _has_all_history(store: EtcdStore) -> bool:
    first = RangeRequest(key=b"\0", count_only=True, revision=1)
    try:
        await store.connection.kv.Range(first, timeout=METRICS_WITHIN_S, metadata=store.connection.metadata)
    except grpc.aio.AioRpcError as error:
        if is_compacted(error):
            return False
    return True


async def _metrics_of(address: str, tls: Tls | None) -> tuple[dict[str, float], str | None, bool]:
    """What a member says over HTTP, with its version as the name `version <number>`; or why it does not, and whether
    nothing answers there."""
    try:
        text = await asyncio.to_thread(_get, f"{'https' if tls else 'http'}://{address}/metrics", tls)
    except (URLError, OSError, ValueError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        away = isinstance(cause, ConnectionRefusedError | TimeoutError) or getattr(cause, "errno", None) in _NO_ROUTE
        return {}, f"its metrics cannot be read: {cause if away else error}", away
    return parsed_metrics(text), None, False


def parsed_metrics(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, labels, value in _VALUE.findall(text):
        if name == "etcd_server_version":
            found[f"version {labels.partition('=')[2].strip(chr(34))}"] = 1
        else:
            found.setdefault(name, float(value))
    return found


def _get(url: str, tls: Tls | None) -> str:
    with urlopen(url, timeout=METRICS_WITHIN_S, context=tls.context() if tls else None) as answer:
        body: bytes = answer.read(4 << 20)
    return body.decode(errors="replace")
