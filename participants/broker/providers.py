"""The transaction buffer and the pending-ack store of each namespace: the two SPIs of PIP-471.

An installed package offers its own implementation under a name, as an entry point that is called for each segment, or
for each subscription on a segment:

    [project.entry-points."metatxn.transaction_buffers"]
    spilling = "example.buffers:open_buffer"        (segment: str, empty_at: Position) -> TransactionBuffer

    [project.entry-points."metatxn.pending_ack_stores"]
    spilling = "example.acks:open_pending_acks"     (segment: str, subscription: str) -> PendingAckStore

An operator chooses one for a namespace, or with `*` for all namespaces that are not named. The default is the built-in
`memory`. What a provider keeps is a view of records and ledgers, which recovery builds anew whenever a segment is
opened; so a namespace may get another provider at any restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TypeVar, cast

from metatxn.wire.position import Position
from participants.subscription.memory_pending_acks import open_memory_pending_acks
from participants.subscription.pending_acks import OpenPendingAcks, PendingAckStore
from participants.txn.buffer import OpenBuffer, TransactionBuffer
from participants.txn.memory_buffer import open_memory_buffer

T = TypeVar("T")

BUFFERS = "metatxn.transaction_buffers"
PENDING_ACKS = "metatxn.pending_ack_stores"
BUILT_IN = "memory"
ALL_OTHERS = "*"


@dataclass(frozen=True, slots=True)
class Providers:
    """The providers by namespace, which is `tenant/namespace` or `*`."""

    buffers: Mapping[str, OpenBuffer] = field(default_factory=dict)
    pending_acks: Mapping[str, OpenPendingAcks] = field(default_factory=dict)

    @classmethod
    def load(cls, buffers: Mapping[str, str], pending_acks: Mapping[str, str]) -> Providers:
        """Load the named providers, both by namespace. Raises `ValueError`, which names what is not installed."""
        return cls(
            {namespace: _loaded(BUFFERS, name, open_memory_buffer) for namespace, name in buffers.items()},
            {
                namespace: _loaded(PENDING_ACKS, name, open_memory_pending_acks)
                for namespace, name in pending_acks.items()
            },
        )

    def transaction_buffer(self, segment: str, empty_at: Position) -> TransactionBuffer:
        return _chosen(self.buffers, segment, open_memory_buffer)(segment, empty_at)

    def pending_ack_store(self, segment: str, subscription: str) -> PendingAckStore:
        return _chosen(self.pending_acks, segment, open_memory_pending_acks)(segment, subscription)


def _chosen(by_namespace: Mapping[str, T], segment: str, built_in: T) -> T:
    namespace = segment.removeprefix("segment://").rsplit("/", 2)[0]
    return by_namespace.get(namespace, by_namespace.get(ALL_OTHERS, built_in))


def _loaded(group: str, name: str, built_in: T) -> T:
    if name == BUILT_IN:
        return built_in
    installed = entry_points(group=group)
    if name not in installed.names:
        names = ", ".join(sorted({BUILT_IN, *installed.names}))
        raise ValueError(f"no package offers {name!r} as one of {group}; there are: {names}")
    return cast(T, installed[name].load())
