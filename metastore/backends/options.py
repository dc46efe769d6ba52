"""What may be chosen when a store with servers is opened. Needs no library of a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdOptions:
    """`on_group` is called with the size of each group of applies, and `on_lost` for each group whose reply was lost.

    `max_txn_ops` must not exceed the server's flag of that name; None: find it out. `max_request_bytes` limits groups;
    a batch up to `max_batch_bytes` is sent alone if necessary, so the server's limit must be above that. `pipeline`
    requests are in flight at a time.
    """

    deadline_ms: int = 5_000
    max_txn_ops: int | None = None
    max_request_bytes: int = 1_000_000
    pipeline: int = 3
    on_group: Callable[[int], None] | None = None
    on_lost: Callable[[], None] | None = None

    @property
    def deadline_s(self) -> float:
        return self.deadline_ms / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperOptions:
    """`on_group` is called with the size of each group of applies, and `on_lost` for each group whose reply was lost.

    The server limits `session_timeout_ms` to 2 to 20 of its ticks. Ephemeral records live that long after their process
    stops, whatever their own time to live. A connection without answers is given up after two thirds of it.
    `max_request_bytes` limits groups. With `read_only`, the store must exist; nothing at all is written, not even what
    every client tidies up, and every apply and ephemeral record is refused.
    """

    deadline_ms: int = 5_000
    session_timeout_ms: int = 6_000
    max_request_bytes: int = 512_000
    read_only: bool = False
    on_group: Callable[[int], None] | None = None
    on_lost: Callable[[], None] | None = None

    @property
    def deadline_s(self) -> float:
        return self.deadline_ms / 1000
