"""Batches, checks and records as etcd's messages, and back. No I/O.

    check                 compare                                    what it says
    Absent(key)           create_revision(key) == 0                  no record
    AtVersion(key, v)     mod_revision(key) == v                     nobody wrote it since
    FirstVersion(key)     version(key) == 1                          created and never written again
    EmptyRange(a, b)      create_revision([a, b)) == 0               holds for every record in the range: there is none

A batch becomes a nested transaction: its compares; its writes if they hold; otherwise one read per check, so that
the loser of a race learns what beat it in the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isqrt

from metastore import keys
from metastore.backends import etcd_stubs
from metastore.backends.etcd_stubs import (
    Compare,
    DeleteRangeRequest,
    KeyValue,
    PutRequest,
    RangeRequest,
    RequestOp,
    ResponseOp,
    TxnRequest,
)
from metastore.errors import CheckFailed, InvalidBatch
from metastore.types import Absent, AtVersion, Batch, Check, EmptyRange, Event, FirstVersion, Record, Revision


def holds(check: Check, found: Record | None) -> bool:
    """Whether `check` holds, `found` being its record (or the first one in its range)."""
    match check:
        case Absent() | EmptyRange():
            return found is None
        case AtVersion(_, version):
            return found is not None and found.version == version
        case FirstVersion():
            return found is not None and found.first


@dataclass(frozen=True, slots=True)
class Condition:
    """A check on one key, or on `[key, end)`, of the server."""

    check: Check
    key: bytes
    end: bytes = b""

    def compare(self) -> Compare:
        match self.check:
            case Absent():
                return Compare(target=Compare.CREATE, key=self.key, create_revision=0)
            case AtVersion(_, version):
                assert version > 0, "an absent record has no version"  # and etcd would take 0 for absent
                return Compare(target=Compare.MOD, key=self.key, mod_revision=version)
            case FirstVersion():
                return Compare(target=Compare.VERSION, key=self.key, version=1)
            case EmptyRange():
                return Compare(target=Compare.CREATE, key=self.key, range_end=self.end, create_revision=0)

    def read(self, revision: Revision = 0) -> RequestOp:
        """Reads the record that decides, now or at `revision`."""
        limit = 1 if self.end else 0
        return RequestOp(request_range=RangeRequest(key=self.key, range_end=self.end, limit=limit, revision=revision))


def first_failure(
    conditions: Iterable[Condition], found: Iterable[Record | None], revision: Revision
) -> CheckFailed | None:
    for condition, record in zip(conditions, found, strict=True):
        if not holds(condition.check, record):
            return CheckFailed(condition.check, record, revision)
    return None


@dataclass(frozen=True, slots=True)
class Nested:
    """A batch as one operation of a request. `cost`: see `etcd_joining.Limits`."""

    operation: RequestOp
    conditions: Sequence[Condition]
    cost: int


MARKERS = "/batch/"
AFTER_MARKERS = keys.prefix_end(MARKERS)


class Wire:
    """Translates between this store's keys and etcd's, which begin with `root`.

    The markers of group commit lie under the root too, but are no records of this store: nobody put them. Whatever
    covers a range leaves them out: reads and watches by `is_marker`, checks and deletes by `pieces`.
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
        """What single reads (of a key, or of the first key in a range) have found."""
        return [self.record(kvs[0]) if (kvs := answer.response_range.kvs) else None for answer in answers]

    def pieces(self, start: str, end: str) -> list[tuple[bytes, bytes]]:
        """The range `[start, end)` without the markers: none, one or two ranges."""
        cut = [(start, min(end, MARKERS)), (max(start, AFTER_MARKERS), end)]
        if end <= MARKERS or start >= AFTER_MARKERS:
            cut = [(start, end)]
        return [bounds for piece in cut if (bounds := self.bounds(*piece))]

    def conditions(self, check: Check) -> list[Condition]:
        if isinstance(check, EmptyRange):
            return [Condition(check, key, end) for key, end in self.pieces(check.start, check.end)]
        return [Condition(check, self.key(check.key))]

    def nested(self, batch: Batch, max_cost: int) -> Nested:
        """Raises `InvalidBatch` if the batch has more operations than a request can nest."""
        conditions = [condition for check in batch.checks for condition in self.conditions(check)]
        writes = self._writes(batch)
        below = 0
        if len(writes) > max_cost:
            # Unconditional transactions one level deeper: a square holds more than a line.
            below = isqrt(len(writes)) + 1
            writes = [
                RequestOp(request_txn=TxnRequest(success=writes[first : first + below]))
                for first in range(0, len(writes), below)
            ]
        cost = max(len(conditions), len(writes)) + below
        if cost > max_cost:
            raise InvalidBatch(
                f"{len(conditions)} checks and {len(batch.puts) + len(batch.deletes)} writes are more than the store "
                f"takes at once (max_txn_ops is {max_cost + 2}): split the batch"
            )
        body = TxnRequest(
            compare=[condition.compare() for condition in conditions],
            success=writes,
            failure=[condition.read() for condition in conditions],
        )
        return Nested(RequestOp(request_txn=body), conditions, max(cost, 1))

    def _writes(self, batch: Batch) -> list[RequestOp]:
        deletes = [DeleteRangeRequest(key=self.key(key)) for key in sorted(batch.deletes)]
        for start, end in batch.range_deletes:
            deletes += (DeleteRangeRequest(key=key, range_end=stop) for key, stop in self.pieces(start, end))
        puts = [PutRequest(key=self.key(key), value=value) for key, value in batch.puts.items()]
        return [
            *(RequestOp(request_delete_range=delete) for delete in deletes),
            *(RequestOp(request_put=put) for put in puts),
        ]
