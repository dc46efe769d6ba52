"""Batches, checks and records as etcd's messages, and back. No I/O.

    check                 compare                                    what it says
    Absent(key)           create_revision(key) == 0                  no record
    AtVersion(key, v)     mod_revision(key) == v                     not written since
    FirstVersion(key)     version(key) == 1                          created and never written again
    EmptyRange(a, b)      create_revision([a, b)) == 0               holds for every record in the range: there is none

A batch becomes a nested transaction: its compares; its writes if they hold; otherwise one read per check, so that the
loser of a race gets the record that made it lose in the same answer. Or its compares and writes are among those of
others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING

from metastore import keys
from metastore.backends import etcd_encoding as encoding
from metastore.backends import etcd_stubs
from metastore.backends.etcd_stubs import KeyValue, RequestOp, ResponseOp
from metastore.errors import CheckFailed, InvalidBatch
from metastore.types import Absent, Batch, Check, EmptyRange, Event, FirstVersion, Record, Revision, holds

if TYPE_CHECKING:
    from etcd3.etcdrpc.rpc_pb2 import Messages


@dataclass(slots=True)
class Condition:
    """A check on one key, or on `[key, end)`, of the server."""

    check: Check
    key: bytes
    end: bytes = b""

    def add_read(self, operations: Messages[RequestOp], revision: Revision) -> None:
        """Read the record that decides, as it was at `revision`."""
        read = operations.add().request_range
        read.key = self.key
        read.revision = revision
        if self.end:
            read.range_end = self.end
            read.limit = 1


def first_failure(
    conditions: Iterable[Condition], found: Iterable[Record | None], revision: Revision
) -> CheckFailed | None:
    for condition, record in zip(conditions, found, strict=True):
        if not holds(condition.check, record):
            return CheckFailed(condition.check, record, revision)
    return None


@dataclass(slots=True)
class Encoded:
    """A batch as fields of a transaction (see `etcd_encoding`), its compares and its writes. `cost`: see
    `joining.Limits`; `size_bytes` counts the reads of a nested one too."""

    fields: bytes
    checks: tuple[Check, ...]
    cost: int
    size_bytes: int


MARKERS = "/batch/"
AFTER_MARKERS = keys.prefix_end(MARKERS)


class Wire:
    """Translates between this store's keys and etcd's, which begin with `root`.

    The markers of group commit are below the root too, but they are not records of this store. Every operation on a
    range leaves them out: reads and watches by `is_marker`, checks and deletes by `pieces`.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._markers = self.key(MARKERS)

    def is_marker(self, found: KeyValue) -> bool:
        return found.key.startswith(self._markers)

    def key(self, key: str) -> bytes:
        return (self._root + key).encode()

    def bounds(self, start: str, end: str) -> tuple[bytes, bytes] | None:
        """The range `[start, end)`; None if it is empty (etcd gives an empty or zero bound a meaning of its own)."""
        if start >= end:
            return None
        return self.key(start) or b"\0", self.key(end)

    def prefix_bounds(self, prefix: str) -> tuple[bytes, bytes]:
        below = self._root + prefix
        return (below.encode(), keys.prefix_end(below).encode()) if below else (b"\0", b"\0")

    def record(self, found: KeyValue) -> Record:
        return Record(found.key.decode()[len(self._root) :], found.value, found.mod_revision, found.version == 1)

    def event(self, event: etcd_stubs.Event) -> Event:
        if event.type == etcd_stubs.Event.DELETE:
            return Event(event.kv.key.decode()[len(self._root) :], None)
        record = self.record(event.kv)
        return Event(record.key, record)

    def found(self, answers: Iterable[ResponseOp]) -> list[Record | None]:
        """The results of single reads (of a key, or of the first key in a range)."""
        return [self.record(kvs[0]) if (kvs := answer.response_range.kvs) else None for answer in answers]

    def pieces(self, start: str, end: str) -> list[tuple[bytes, bytes]]:
        """The range `[start, end)` without the markers: none, one or two ranges."""
        cut = [(start, min(end, MARKERS)), (max(start, AFTER_MARKERS), end)]
        if end <= MARKERS or start >= AFTER_MARKERS:
            cut = [(start, end)]
        return [bounds for piece in cut if (bounds := self.bounds(*piece))]

    def conditions(self, checks: Iterable[Check]) -> list[Condition]:
        """What the server was asked to compare and, if that failed, to read, in that order."""
        found: list[Condition] = []
        for check in checks:
            if isinstance(check, EmptyRange):
                found += (Condition(check, key, end) for key, end in self.pieces(check.start, check.end))
            else:
                found.append(Condition(check, self.key(check.key)))
        return found

    def encode(self, batch: Batch, max_cost: int) -> Encoded:
        """Encode the batch. Raises `InvalidBatch` if it has more operations than a request can nest."""
        compares: list[bytes] = []
        for check in batch.checks:
            if isinstance(check, EmptyRange):
                compares += (encoding.is_empty(start, end) for start, end in self.pieces(check.start, check.end))
                continue
            key = (self._root + check.key).encode()
            if isinstance(check, Absent):
                compares.append(encoding.is_absent(key))
            elif isinstance(check, FirstVersion):
                compares.append(encoding.is_first(key))
            else:
                assert check.version > 0, "an absent record has no version"  # and etcd would take 0 for absent
                compares.append(encoding.is_at(key, check.version))
        writes = [encoding.delete(self.key(key)) for key in sorted(batch.deletes)]
        for bounds in batch.range_deletes:
            writes += (encoding.delete_range(start, end) for start, end in self.pieces(*bounds))
        writes += [encoding.put((self._root + key).encode(), value) for key, value in batch.puts.items()]
        width = 0
        operations = writes
        if len(writes) > max_cost:
            # Unconditional transactions one level deeper: a square holds more than a line.
            width = isqrt(len(writes)) + 1
            rows = (b"".join(writes[at : at + width]) for at in range(0, len(writes), width))
            operations = [encoding.txn(row) for row in rows]
        cost = max(len(compares), len(operations), 1) + width
        if cost > max_cost:
            raise InvalidBatch(
                f"{len(compares)} checks and {len(writes)} writes are more than the store accepts at once "
                f"(max_txn_ops is {max_cost + 2}): split the batch"
            )
        compared = b"".join(compares)
        fields = compared + b"".join(operations)
        return Encoded(fields, tuple(batch.checks), cost, len(fields) + len(compared))

    def with_reads(self, encoded: Encoded) -> bytes:
        """The batch with a read of every record that it checks, for the case that a check does not hold."""
        reads: list[bytes] = []
        for check in encoded.checks:
            if isinstance(check, EmptyRange):
                reads += (encoding.else_read_first(*piece) for piece in self.pieces(check.start, check.end))
            else:
                reads.append(encoding.else_read((self._root + check.key).encode()))
        return encoded.fields + b"".join(reads)

    def nested(self, encoded: Encoded) -> bytes:
        """The batch as one operation of a request."""
        return encoding.txn(self.with_reads(encoded))
