"""What a run of many seeds has found so far: kept as it goes, so that one that is cut off goes on where it was.

    build/simulation/<digest>.json    a run that goes on, or was cut off: the same seeds of the same source
    build/simulation/record.json      the latest one that came to its end
    build/simulation/record.md        … as the tables of docs/simulation.md

Seeds are added in their order, no matter who has run them. So a run is the same with any number of workers, and in any
number of pieces: one digest tells all of its traces."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from textwrap import shorten
from typing import Any

from tests.simulation.run import Result

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "simulation.md"
DECIDING = (
    *("metastore", "coordinator", "participants", "metatxn", "metatxn_gateways"),
    *("tests/simulation", "tests/bounds.py", "tests/gateways/asking.py", "tests/stand.py"),
)
"""Packages and files: all that decides what seeds find."""
SUMMARY_CHARACTERS = 200
_BEGIN, _END = "<!-- record -->\n", "<!-- end of record -->\n"


@dataclass(frozen=True, slots=True)
class Failure:
    seed: int
    workload: str
    violations: list[str]

    @property
    def replay(self) -> str:
        """The command."""
        return f"make simulate SEED={self.seed} WORKLOAD={self.workload}"

    @property
    def summary(self) -> str:
        """Each violation once, within a line."""
        return shorten("; ".join(dict.fromkeys(self.violations)), SUMMARY_CHARACTERS, placeholder=" …")


@dataclass
class Record:
    """Of the seeds `first`, `first` + 1, … as many as are `done`, of `seeds`; `workload` if all of them had one.

    Times are in seconds: `wall_s` is the sum over the pieces of a run that was cut off, `shortest_s` the least that a
    seed has simulated. `digest` is that of all traces.
    """

    first: int
    seeds: int
    workload: str | None
    done: int = 0
    wall_s: float = 0.0
    simulated_s: float = 0.0
    shortest_s: float = 0.0
    digest: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    workloads: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    @property
    def left(self) -> range:
        return range(self.first + self.done, self.first + self.seeds)

    def add(self, result: Result) -> None:
        assert result.seed == self.left.start, "in their order"
        self.shortest_s = min(self.shortest_s, result.simulated_s) if self.done else result.simulated_s
        self.done += 1
        self.simulated_s += result.simulated_s
        self.digest = blake2b(f"{self.digest} {result.digest}".encode(), digest_size=8).hexdigest()
        self.counts += result.counts
        self.workloads[result.workload] += 1
        self.faults += result.faults
        if result.violations:
            self.failures.append(Failure(result.seed, result.workload, result.violations))

    # -- kept --------------------------------------------------------------------------------------------------

    def place(self, kept: Path) -> Path:
        """Where it is kept as long as it goes on. Other seeds, or another source, have another place."""
        return kept / f"{source_digest(ROOT, self.first, self.seeds, self.workload)}.json"

    def save(self, path: Path) -> None:
        """In one piece: who is killed here leaves what was there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(vars(self), default=asdict, indent=1))
        new.replace(path)

    @classmethod
    def load(cls, path: Path) -> Record:
        kept: dict[str, Any] = json.loads(path.read_text())
        kept |= {name: Counter(kept[name]) for name in ("counts", "workloads", "faults")}
        kept["failures"] = [Failure(**failure) for failure in kept["failures"]]
        return cls(**kept)

    # -- told --------------------------------------------------------------------------------------------------

    def tables(self) -> str:
        """In Markdown."""
        failed = [f"`{failure.replay}`: {failure.summary}" for failure in self.failures]
        told = [
            ("seeds", f"{self.done:,}, from {self.first} on"),
            ("failed", "<br>".join(failed) or "0"),
            ("simulated time", f"{self.simulated_s / 3600:,.1f} h, at least {self.shortest_s:.0f} s a seed"),
            ("wall time", f"{self.wall_s / 60:,.1f} min"),
            *_thousands(self.counts.items()),
            ("faults injected", f"{self.faults.total():,}"),
            ("digest of all traces", f"`{self.digest}`"),
        ]
        return "\n".join(
            [
                *_table(("what", "how much"), told),
                *_table(("workload", "seeds"), _thousands(sorted(self.workloads.items()))),
                *_table(("fault", "injected"), _thousands(sorted(self.faults.items()))),
            ]
        )


def _thousands(counted: Iterable[tuple[str, int]]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), f"{count:,}") for name, count in counted]


def _table(head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> list[str]:
    return [f"| {head[0]} | {head[1]} |", "|---|---:|", *(f"| {name} | {value} |" for name, value in rows), ""]


def sources(root: Path, package: str) -> list[Path]:
    """The files of a package or, if that is one file, that one."""
    place = root / package
    return sorted(place.rglob("*.py")) if place.is_dir() else sorted(root.glob(package))


def source_digest(root: Path, *parameters: object, packages: Iterable[str] = DECIDING) -> str:
    """Of these, and of all the source below `root` that decides what seeds find, or of other packages."""
    digest = blake2b(repr(parameters).encode(), digest_size=8)
    for package in packages:
        for path in sources(root, package):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def publish(tables: str) -> None:
    """Put them between the marks of docs/simulation.md, with the commit of the source."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    page = PAGE.read_text()
    begin, end = page.index(_BEGIN) + len(_BEGIN), page.index(_END)
    PAGE.write_text(f"{page[:begin]}Of the source at {commit}:\n\n{tables}{page[end:]}")
