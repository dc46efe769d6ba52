"""What an operator should know of a store, without changing it: how its server is set up, and whether every storage of
segments has a broker.

Each check says what it has looked at, also if nothing is wrong there. A check that cannot look says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

from metastore.api import MetadataStore
from metastore.check import dump
from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord
from metastore.txn.records.segments import SegmentRecord


@dataclass(frozen=True, slots=True)
class Examined:
    """The outcome of one check. `verdict` is `ok`, `advice` (all is well and could be better), `problem` or `skipped`.
    `action` says what to do about a problem, or how to let a skipped check look."""

    check: str
    about: str
    verdict: str
    what: str
    action: str = ""


async def examine(store: MetadataStore) -> AsyncIterator[Examined]:
    """Raises the store's errors."""
    if store.kind == "etcd":
        # Imported here, so that a process with another store does not load gRPC.
        from metastore.backends.etcd import EtcdStore
        from metastore.backends.etcd_settings import settings_of

        assert isinstance(store, EtcdStore)
        async for settings in settings_of(store):
            for examined in settings.examined():
                yield Examined(*examined)
    elif store.kind == "zk":
        from metastore.backends import zookeeper_settings
        from metastore.backends.zookeeper import ZooKeeperStore

        assert isinstance(store, ZooKeeperStore)
        async for server in zookeeper_settings.settings_of_servers(store):
            for examined in server.examined():
                yield Examined(*examined)
    async for examined_storage in _storages(store):
        yield examined_storage


async def _storages(store: MetadataStore) -> AsyncIterator[Examined]:
    announced = {
        BrokerRecord.decode(record.value).storage: BrokerRecord.decode(record.value).url
        async for record in dump(store, paths.BROKERS)
    }
    needed: Counter[str] = Counter()
    async for record in dump(store, paths.SEGMENTS):
        segment = SegmentRecord.decode(record.value)
        if segment.state != "deleted":
            needed[segment.storage] += 1
    for storage, segments in sorted(needed.items()):
        about, number = f"storage {storage}", f"{segments} segment{'' if segments == 1 else 's'}"
        if storage in announced:
            yield Examined("storage", about, "ok", f"{number}, served at {announced[storage]}")
        else:
            yield Examined(
                *("storage", about, "problem", f"{number}, and no broker that is announced has it open"),
                "Start a broker on its data directory (storage.json there has this id) or with its --storage URL.",
            )
