"""What a mutant is: an edit that breaks one rule, and where to look for what catches it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Edit(NamedTuple):
    """`before` becomes `after` in the file at `path`."""

    path: str
    before: str
    after: str

    def of(self, text: str) -> str:
        assert text.count(self.before) == 1, f"{text.count(self.before)} places in {self.path}"
        return text.replace(self.before, self.after)


@dataclass(frozen=True, slots=True)
class Mutant:
    """An edit. `rule` is what that breaks.

    `tests` are files or nodes of which one has to fail. Without them seeds of `workload` have to, the one that can show
    it; the others would only take their turns. `others` are the edits that take away what also holds the rule, where
    two guards are meant to.
    """

    name: str
    rule: str
    path: str
    before: str
    after: str
    workload: str = "bank"
    others: tuple[Edit, ...] = ()
    tests: tuple[str, ...] = ()

    @property
    def edits(self) -> tuple[Edit, ...]:
        return Edit(self.path, self.before, self.after), *self.others

    @property
    def tests_beside(self) -> str:
        """The directory of tests that is nearest to the file."""
        place = Path("tests") / Path(self.path.replace("metatxn_gateways", "gateways")).parent
        while not (ROOT / place).is_dir():
            place = place.parent
        return str(place)

    def apply(self, root: Path) -> None:
        """To the source at `root`."""
        for edit in self.edits:
            source = root / edit.path
            source.write_text(edit.of(source.read_text()))

    def take_back(self, root: Path) -> None:
        for edit in self.edits:
            (root / edit.path).write_text((ROOT / edit.path).read_text())
