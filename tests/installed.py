"""Environments as users have them: the wheel of this checkout, and what its metadata says that it needs, nothing else.

pip installs the wheel itself. What it needs is linked from the environment of the tests instead of being downloaded
again: the distributions that pip would choose, each with all that it needs in turn.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def build_wheel(directory: Path) -> Path:
    """Of a copy, so that nothing is left in the checkout, and nothing of its `build` gets in."""
    copy = directory / "source"
    for name in _sources():
        if (ROOT / name).is_file() and not name.startswith(("tests/", "benchmarks/", "docs/", "examples/")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", str(directory), str(copy)], check=True)
    (wheel,) = directory.glob("metatxn-*.whl")
    return wheel


def _sources() -> list[str]:
    """The files of a checkout, or of a copy that has nothing else, such as that of a mutant."""
    if not (ROOT / ".git").exists():
        return [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if "__pycache__" not in path.parts]
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return listed.rstrip("\0").split("\0")


@dataclass(frozen=True, slots=True)
class Environment:
    directory: Path

    @property
    def python(self) -> str:
        return str(self.directory / "bin" / "python")

    @property
    def metatxn(self) -> str:
        return str(self.directory / "bin" / "metatxn")

    @property
    def packages(self) -> Path:
        return next(self.directory.glob("lib/python*/site-packages"))

    def run(
        self, *command: str, cwd: Path, source: str | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """With no other variables: nothing of this checkout may be found by accident."""
        variables = {"PATH": f"{self.directory / 'bin'}:/usr/bin:/bin"} | variables
        return subprocess.run(command, input=source, cwd=cwd, env=variables, capture_output=True, text=True)


def install(wheel: Path, directory: Path, *extras: str) -> Environment:
    venv.create(directory, with_pip=False, symlinks=True)
    environment = Environment(directory)
    command = [sys.executable, "-m", "pip", "--python", environment.python, "install", "--quiet", "--no-index"]
    # Where pip sees a checkout that is installed, by its directory or by the path that tests of Spark leave to their
    # workers, it finds metatxn there, and does nothing.
    without_path = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*command, "--no-deps", str(wheel)], cwd=directory, env=without_path, check=True)
    (metadata,) = environment.packages.glob("metatxn-*.dist-info")
    needed = _needed(Distribution.at(metadata).requires or (), extras, set())
    for each in needed:
        _link(each, environment.packages)
    return environment


def _needed(requirements: Iterable[str], extras: Iterable[str], seen: set[str]) -> Iterator[Distribution]:
    for text in requirements:
        requirement = Requirement(text)
        wanted = requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in ("", *extras))
        name = requirement.name.lower()
        if not wanted or (name in seen and not requirement.extras):
            continue
        if name == "metatxn":  # an extra that names others
            raise AssertionError("name the extras themselves")
        seen.add(name)
        found = distribution(name)
        assert requirement.specifier.contains(found.version, prereleases=True), (text, found.version)
        yield found
        yield from _needed(found.requires or (), requirement.extras, seen)


def _link(found: Distribution, packages: Path) -> None:
    tops = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
    for top in tops:
        if not (packages / top).exists():
            (packages / top).symlink_to(Path(str(found.locate_file(top))))
