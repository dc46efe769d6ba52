"""Requests that a broker sends to another one for a caller: they count where the caller has sent its own.

A broker announces the hash of a secret that it has drawn, and shows the secret to other brokers. It gives no rights.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from metastore.api import MetadataStore
from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord
from metastore.types import Event
from metastore.watches import Mirror


def hash_of_proof(proof: str) -> str:
    return hashlib.sha256(proof.encode()).hexdigest()


class KnownPeers:
    def __init__(self, store: MetadataStore) -> None:
        self._mirror = Mirror(store, paths.BROKERS, self._changed)
        self._hashes: Mapping[str, str] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the announcements inside this block. Raises the store's errors."""
        async with self._mirror.running():
            yield

    def knows(self, proof: bytes | None) -> bool:
        """Whether this is the secret of a broker that is announced."""
        return proof is not None and hash_of_proof(proof.decode("latin-1")) in self._hashes.values()

    def _changed(self, event: Event) -> None:
        found = dict(self._hashes)
        record = BrokerRecord.decode(event.record.value) if event.record is not None else None
        if record is None or record.peer is None:
            found.pop(event.key, None)
        else:
            found[event.key] = record.peer
        self._hashes = found
