"""Which applies may travel together, and which must wait: the joining rule of group commit, without any I/O.

One request holds many applies, each as a nested transaction with its own compares, or (*flat*) with the compares and
writes of all in one list. etcd evaluates *all* compares of a request, at every level, on the state before it, and then
runs the operations in order. Two applies of which one checks what the other writes would both pass: write skew. So an
apply may join a request only if

    what it checks, writes or range-deletes  ∩  what the members of the request write  =  ∅.

Then the order of the members is a valid serial order. Take the i-th member and run it alone after its predecessors: the
state differs from the one before the request only at keys that they wrote, and it checks none of those, so each compare
(and each record reported for a failed one) is the same. It writes none of those either, so a range delete finds the
same keys, a put meets the same record, and etcd's own rule (no key twice in a request) is kept. The other direction is
free: a member may check what a *later* one writes, because checks see the state before the request, which is what
serial order asks for. By induction the whole request equals its members one after the other. A flat one takes effect
only if every member would; otherwise nothing has happened.

Across requests neither direction is free: two requests in flight may reach the server in either order. So an apply
waits for every request in flight that it *touches* (either one writes what the other checks or writes), and for every
earlier apply that waits and that it touches. Applies that touch therefore take effect in the order of the calls; those
that do not touch commute, and may overtake each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from metastore.types import Batch, EmptyRange

KeyRange = tuple[str, str]

# How many waiting applies are examined for one request. This is only for speed: later ones wait for the next one.
MAX_SCANNED = 2_000


def _ranges_meet(keys: set[str], ranges: list[KeyRange], other_keys: set[str], other_ranges: list[KeyRange]) -> bool:
    """Whether a range of one side holds a key of the other, or two ranges overlap."""
    return (
        any(start <= key < end for start, end in ranges for key in other_keys)
        or any(start <= key < end for start, end in other_ranges for key in keys)
        or any(a < other_b and other_a < b for a, b in ranges for other_a, other_b in other_ranges)
    )


@dataclass(slots=True)
class Footprint:
    """The keys and ranges `[start, end)` that one or several applies check, and those that they write."""

    checked: set[str] = field(default_factory=set)
    checked_ranges: list[KeyRange] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    written_ranges: list[KeyRange] = field(default_factory=list)

    @classmethod
    def of(cls, batch: Batch) -> Footprint:
        footprint = cls(set(), [], batch.written(), list(batch.range_deletes))
        for check in batch.checks:
            if isinstance(check, EmptyRange):
                footprint.checked_ranges.append((check.start, check.end))
            else:
                footprint.checked.add(check.key)
        return footprint

    def add(self, other: Footprint) -> None:
        self.checked |= other.checked
        self.checked_ranges += other.checked_ranges
        self.written |= other.written
        self.written_ranges += other.written_ranges

    def depends_on(self, other: Footprint) -> bool:
        """Whether something that `other` writes is checked or written here."""
        written = other.written
        if not (written.isdisjoint(self.written) and written.isdisjoint(self.checked)):
            return True
        if not (self.checked_ranges or self.written_ranges or other.written_ranges):
            return False
        return _ranges_meet(self.written, self.written_ranges, written, other.written_ranges) or _ranges_meet(
            self.checked, self.checked_ranges, written, other.written_ranges
        )

    def touches(self, other: Footprint) -> bool:
        """Whether their order matters: either one writes what the other checks or writes."""
        if not (
            self.written.isdisjoint(other.written)
            and self.written.isdisjoint(other.checked)
            and self.checked.isdisjoint(other.written)
        ):
            return True
        ranges = self.checked_ranges or self.written_ranges or other.checked_ranges or other.written_ranges
        return bool(ranges) and (self.depends_on(other) or other.depends_on(self))

    def touches_any(self, others: Iterable[Footprint]) -> bool:
        return any(map(self.touches, others))


class Waiting(Protocol):
    """An apply that waits to be sent."""

    @property
    def footprint(self) -> Footprint: ...

    @property
    def cost(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request may contain.

    etcd counts, level by level, the longest of a transaction's three lists, and what a level uses is taken from what
    the levels below may use. A request of n nested members has n operations besides its marker's, so n + 1 + the
    highest `cost` of a member must be at most `max_txn_ops`. In a flat one the members' costs add up.
    """

    max_txn_ops: int
    max_bytes: int

    @property
    def max_cost(self) -> int:
        """The highest cost that an apply can have: that of the only member of a request."""
        return self.max_txn_ops - 2

    def hold(self, members: int, highest_cost: int, total_cost: int, size_bytes: int, flat: bool) -> bool:
        used = total_cost if flat else members + highest_cost
        return used + 1 <= self.max_txn_ops and size_bytes <= self.max_bytes


W = TypeVar("W", bound=Waiting)


def take_group(
    queue: deque[W], in_flight: Iterable[Footprint], limits: RequestLimits, *, flat: bool = False
) -> tuple[list[W], Footprint]:
    """Remove from `queue` the applies that may be sent in one request now, in order. None: all must wait.

    The first apply that does not wait for another one is taken whatever its size, so that none can starve.
    """
    overtaken = Footprint()
    barriers = list(in_flight)
    together = Footprint()
    taken: list[W] = []
    skipped: list[W] = []
    highest_cost = total_cost = size_bytes = 0
    while queue and len(skipped) + len(taken) < MAX_SCANNED:
        waiting = queue[0]
        footprint = waiting.footprint
        if footprint.depends_on(together) or footprint.touches_any(barriers):
            if not skipped:
                barriers.append(overtaken)
            skipped.append(queue.popleft())
            overtaken.add(footprint)
            continue
        if waiting.cost > highest_cost:
            highest_cost = waiting.cost
        total_cost += waiting.cost
        size_bytes += waiting.size_bytes
        if taken and not limits.hold(len(taken) + 1, highest_cost, total_cost, size_bytes, flat):
            break
        taken.append(queue.popleft())
        together.add(footprint)
    queue.extendleft(reversed(skipped))
    return taken, together
