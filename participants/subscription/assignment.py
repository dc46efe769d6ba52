"""Which consumer of a `key_shared` subscription is due for which keys.

Every consumer has `POINTS` points in the range of key hashes, which depend only on the number of its session. A hash
belongs to the consumer of the next point, so a consumer that comes takes a few ranges over from the others, and those
of one that goes fall to the others: no other key changes its consumer.

An assignment says who is due, not who may have a message: see `KeyedDispatch`. So two brokers that know different
consumers for a moment do no harm.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from hashlib import sha256
from struct import unpack
from typing import NamedTuple

POINTS = 128
_DIGEST_POINTS = 16


class Assignment(NamedTuple):
    """The points in ascending order, and the consumer of each."""

    points: tuple[int, ...]
    consumers: tuple[int, ...]

    def consumer_of(self, key: int) -> int | None:
        """The consumer that is due for a key with this hash, or None without consumers."""
        if not self.points:
            return None
        return self.consumers[bisect_left(self.points, key) % len(self.points)]


@lru_cache(maxsize=128)
def assignment(sessions: tuple[int, ...]) -> Assignment:
    """The assignment to the consumers with these sessions. Where points coincide, the earlier session has it."""
    owners: dict[int, int] = {}
    for session in sorted(sessions, reverse=True):
        owners.update(dict.fromkeys(_points(session), session))
    points = tuple(sorted(owners))
    return Assignment(points, tuple(owners[point] for point in points))


def _points(session: int) -> list[int]:
    digests = (sha256(f"{session}/{number}".encode()).digest() for number in range(POINTS // _DIGEST_POINTS))
    return [point for digest in digests for point in unpack(f">{_DIGEST_POINTS}H", digest)]
