"""What was found of each system in each round, and the figures and ratios that come of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from benchmarks.peers.servers import ETCD, KAFKA, KAFKA_FSYNC, OURS, SQLITE
from benchmarks.peers.work import Found
from benchmarks.report import Figure


class Measured:
    """By the name of what was done and the name of the system."""

    def __init__(self) -> None:
        self._found: defaultdict[tuple[str, str], list[Found]] = defaultdict(list)

    def add(self, what: str, peer: str, found: Found) -> None:
        self._found[what, peer].append(found)

    def runs(self, what: str, peer: str, key: str) -> list[float]:
        return [found[key] for found in self._found[what, peer]]

    def figures(
        self, what: str, key: str, unit: str, title: str | None = None, at_most: dict[str, float] | None = None
    ) -> Iterator[Figure]:
        """Of every system that did it. The bars are by its name."""
        for doing, peer in self._found:
            if doing == what:
                bar = (at_most or {}).get(peer)
                yield Figure(f"{what}: {title or key}, {peer}", self.runs(what, peer, key), unit, at_most=bar)

    def against(
        self,
        what: str,
        key: str,
        *,
        title: str | None = None,
        theirs: Sequence[str] = (KAFKA, KAFKA_FSYNC),
        their_work: str | None = None,
        at_most: dict[tuple[str, str], float] | None = None,
        at_least: dict[tuple[str, str], float] | None = None,
    ) -> Iterator[Figure]:
        """Ours ÷ theirs, round by round. The bars are by the names of the two. `their_work` is what they do instead,
        where that has another name."""
        for ours in OURS:
            for other in theirs:
                ratios = self._ratios((what, ours), (their_work or what, other), key)
                yield Figure(
                    f"{what}: {title or key}, {ours} ÷ {other}",
                    ratios,
                    "ratio",
                    at_most=(at_most or {}).get((ours, other)),
                    at_least=(at_least or {}).get((ours, other)),
                )

    def within(
        self, what: str, base: str, key: str, *, at_most: float | None = None, at_least: float | None = None
    ) -> Iterator[Figure]:
        """What one of ours does ÷ something else that it does, round by round."""
        for ours in OURS:
            ratios = self._ratios((what, ours), (base, ours), key)
            yield Figure(f"{what} ÷ {base}: {key}, {ours}", ratios, "ratio", at_most=at_most, at_least=at_least)

    def _ratios(self, one: tuple[str, str], other: tuple[str, str], key: str) -> list[float]:
        return [ours / theirs for ours, theirs in zip(self.runs(*one, key), self.runs(*other, key), strict=True)]


def both(theirs: str, bar: float) -> dict[tuple[str, str], float]:
    """The same bar on both stores."""
    return each(theirs, bar, bar)


def each(theirs: str, sqlite: float, etcd: float) -> dict[tuple[str, str], float]:
    return {(SQLITE, theirs): sqlite, (ETCD, theirs): etcd}
