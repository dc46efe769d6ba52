"""Raising the cluster version (DESIGN §12), which is one compare-and-set on `/cluster/version`.

    read the version ─▶ read who is announced, and who owns segments ─▶ replace the version that was read

Every process writes the record again when it starts, after it was announced. So if one has started since the first
step, the last one fails; and one that starts after the last step reads the new version. A process that is frozen, and
is announced no longer, is found by what it owns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from metastore.api import MetadataStore
from metastore.check import dump
from metastore.clock import Clock
from metastore.errors import CheckFailed
from metastore.incarnation import with_barrier
from metastore.keys import unescape
from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord, CoordinatorRecord, Incarnation, ProcessRecord, VersionRecord
from metastore.txn.records.segments import OwnerRecord
from metastore.types import Record
from metastore.versions import FIRST, RELEASES, SPEAKS, too_new

_NAMED = 3
"""The most segments that an obstacle names."""


class UpgradeRefused(Exception):
    """The cluster version cannot be raised now, for these reasons. Nothing was changed."""

    def __init__(self, *obstacles: str) -> None:
        super().__init__("; ".join(obstacles))
        self.obstacles = list(obstacles)


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """A process that is announced, and the highest version that it speaks. `release` is what it runs."""

    id: str
    service: str
    url: str
    release: str
    speaks: int


@dataclass(slots=True)
class Upgrade:
    """The cluster as it was read. `obstacles` are what forbids to raise its version to `target`, each as a sentence."""

    version: int
    target: int
    finalized_ms: int | None
    processes: list[RunningProcess]
    absent_owners: dict[str, list[str]] = field(default_factory=dict)
    """The segments that a broker which is not announced owns, by its URL."""
    stored: Record | None = None

    @property
    def complete(self) -> bool:
        return self.version >= self.target

    @property
    def obstacles(self) -> list[str]:
        if self.complete:
            return []
        return [*self._old_processes(), *self._absent_owners()]

    def _old_processes(self) -> list[str]:
        return [
            f"{each.service} {each.url} runs release {each.release}: restart it with a release that speaks version "
            f"{self.target}"
            for each in self.processes
            if each.speaks < self.target
        ]

    def _absent_owners(self) -> list[str]:
        return [
            f"broker {url} does not run, and owns {_named(segments)}: start it with a release that speaks version "
            f"{self.target}, or say --accept-absent if it can never come back with an earlier one"
            for url, segments in sorted(self.absent_owners.items())
        ]


def _named(segments: list[str]) -> str:
    more = len(segments) - _NAMED
    return ", ".join(segments[:_NAMED]) + (f" and {more} more" if more > 0 else "")


async def read_upgrade(store: MetadataStore) -> Upgrade:
    """Read the version first, and then everything that may stand in the way. Raises the store's errors."""
    stored = await store.get(paths.VERSION)
    known = VersionRecord.decode(stored.value) if stored is not None else VersionRecord(version=FIRST)
    found = [each async for each in _processes(store)]
    processes = sorted(found, key=lambda each: (each.service != "coordinator", each.url))
    upgrade = Upgrade(known.version, max(SPEAKS, known.version), known.finalized_ms, processes, stored=stored)
    running = {each.id for each in processes}
    async for record in dump(store, paths.SEGMENT_OWNERS):
        owner = OwnerRecord.decode(record.value)
        if owner.broker and not owner.deleted and owner.broker not in running:
            segment = unescape(record.key.removeprefix(paths.SEGMENT_OWNERS))
            upgrade.absent_owners.setdefault(owner.url, []).append(segment)
    return upgrade


async def _processes(store: MetadataStore) -> AsyncIterator[RunningProcess]:
    """The processes that have announced their release, and those of release 0.2.0, which have not."""
    known: set[str] = set()
    async for record in dump(store, paths.PROCESSES):
        process = ProcessRecord.decode(record.value)
        process_id = unescape(record.key.removeprefix(paths.PROCESSES))
        known.add(process_id)
        yield RunningProcess(process_id, process.service, process.url, process.release, process.speaks)
    kinds = (("coordinator", paths.COORDINATORS, CoordinatorRecord), ("broker", paths.BROKERS, BrokerRecord))
    for service, prefix, kind in kinds:
        async for record in dump(store, prefix):
            process_id = unescape(record.key.removeprefix(prefix))
            if process_id not in known:
                url = kind.decode(record.value).url
                yield RunningProcess(process_id, service, url, RELEASES[FIRST], FIRST)


async def raise_version(store: MetadataStore, clock: Clock, *, accept_absent: bool = False) -> Upgrade:
    """Raise the cluster version to the one that this release speaks. Returns the cluster as it was before; if that has
    the version already, nothing is changed.

    Raises `UpgradeRefused`, which names what stands in the way, and the store's errors; after `OutcomeUnknown` the call
    can be repeated.
    """
    upgrade = await read_upgrade(store)
    if upgrade.version > SPEAKS:
        raise UpgradeRefused(too_new(upgrade.version))
    if upgrade.complete:
        return upgrade
    if accept_absent:
        upgrade.absent_owners.clear()
    if upgrade.obstacles:
        raise UpgradeRefused(*upgrade.obstacles)
    incarnation = await store.get(paths.INCARNATION)
    known = Incarnation.decode(incarnation.value) if incarnation is not None else None
    if incarnation is None or known is None:
        raise UpgradeRefused("no process has ever served this store: a new one begins with the version of its release")
    if known.recovering or known.restored_how is not None:
        raise UpgradeRefused("the store was restored from a backup: run `metatxn store recover` first")
    batch = store.batch()
    raised = VersionRecord(version=upgrade.target, finalized_ms=clock()).encode()
    if upgrade.stored is not None:
        batch.replace(upgrade.stored, raised)
    else:
        batch.create(paths.VERSION, raised)
    batch.replace(incarnation, with_barrier(known, upgrade.target).encode())
    try:
        await store.apply(batch)
    except CheckFailed as error:
        raise UpgradeRefused("a process has started meanwhile: try again") from error
    return upgrade
