"""The table of mixes: which store, where the ledgers lie, and how often each fault occurs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal


class Fault(StrEnum):
    KILL = "kill -9"
    RESTARTS = "restart storm"
    STOP = "SIGTERM"
    RELEASE = "the other release"
    DRAIN = "drained"
    FREEZE = "SIGSTOP"
    CUT = "connections cut"
    LATE_REQUESTS = "late requests"
    LOST_REQUESTS = "lost requests"
    LATE_REPLIES = "late replies"
    LOST_REPLIES = "lost replies"
    SILENCE = "silence both ways"
    COMPACTION = "compaction every 100 ms"
    LEADER = "leader frozen"
    QUORUM = "quorum lost"
    APART = "member cut off"
    APART_SILENT = "silence between members"
    STORE_FULL = "store full"
    STORE_DISK = "store's disk full"
    DISK = "disk full"


NETWORK = {
    Fault.CUT: 2,
    Fault.LATE_REQUESTS: 1,
    Fault.LOST_REQUESTS: 1,
    Fault.LATE_REPLIES: 2,
    Fault.LOST_REPLIES: 2,
    Fault.SILENCE: 1,
}
EVERYTHING = {
    Fault.KILL: 4,
    Fault.RESTARTS: 1,
    Fault.STOP: 1,
    Fault.DRAIN: 1,
    Fault.FREEZE: 3,
    **NETWORK,
    Fault.COMPACTION: 2,
    Fault.DISK: 1,
}
STORE_DISK = EVERYTHING | {Fault.STORE_DISK: 1}
STORE_FULL = STORE_DISK | {Fault.STORE_FULL: 1}
UPGRADE = {Fault.RELEASE: 8, Fault.KILL: 2, Fault.STOP: 1, Fault.FREEZE: 1, Fault.CUT: 1, Fault.LOST_REPLIES: 1}
APART = {Fault.APART: 1, Fault.APART_SILENT: 1, Fault.STORE_DISK: 1}
WITH_LEADER = STORE_FULL | APART | {Fault.LEADER: 2, Fault.QUORUM: 1}


@dataclass(frozen=True, slots=True)
class Mix:
    """`members` of the store. Ledgers are objects that both brokers reach, or a directory of each broker. `faults` says
    how many of each kind are in a deck. They follow each other after `pause_s` on average and last up to
    `longest_s`."""

    store: Literal["etcd", "zk"]
    members: int
    ledgers: Literal["shared", "local"]
    faults: Mapping[Fault, int]
    pause_s: float = 5.0
    longest_s: float = 30.0
    upgrade: bool = False
    """Whether every process is of the previous release at first, until it is started with the other one."""
    listener: Literal["kafka", "pulsar"] | None = None
    """Whose clients brokers serve, too; these then take the place of one process of clients."""


MIXES = {
    "etcd": Mix("etcd", 1, "shared", STORE_FULL),
    "local": Mix("etcd", 1, "local", STORE_FULL),
    "cluster": Mix("etcd", 3, "shared", WITH_LEADER),
    "zookeeper": Mix("zk", 1, "shared", STORE_DISK),
    "network": Mix("etcd", 1, "shared", NETWORK, pause_s=3.0),
    "short": Mix("etcd", 1, "shared", EVERYTHING, pause_s=2.0, longest_s=8.0),
    "store": Mix("etcd", 3, "shared", APART | {Fault.STORE_FULL: 1}, pause_s=10.0),
    "ensemble": Mix("zk", 3, "shared", APART | {Fault.LEADER: 1, Fault.QUORUM: 1}, pause_s=10.0),
    "kafka": Mix("etcd", 1, "shared", EVERYTHING, pause_s=3.0, listener="kafka"),
    "pulsar": Mix("etcd", 1, "shared", EVERYTHING, pause_s=3.0, listener="pulsar"),
    "frozen": Mix("etcd", 1, "shared", {Fault.FREEZE: 1}, pause_s=15.0, longest_s=90.0),
}
MIXES |= {
    f"upgrade-{name}": replace(MIXES[name], faults=UPGRADE, pause_s=2.0, longest_s=8.0, upgrade=True)
    for name in ("etcd", "local", "zookeeper")
}
GROUPS = {"upgrades": [name for name, mix in MIXES.items() if mix.upgrade]}
"""Mixes that one word names; they share the time of a run."""
DEFAULT = ("etcd", "local", "cluster", "zookeeper")
"""Those that share the time of a run that names none."""
