"""Every mutant must be caught.

python -m tests.mutants              all of them, in an hour or more; writes the table of docs/mutants.md
python -m tests.mutants NAME …       these, without writing
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.mutants.guards import GUARDS
from tests.mutants.hunt import SEEDS, Found, failing_anyway, give_up, hunt
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.protocol import PROTOCOL

PAGE = ROOT / "docs" / "mutants.md"
_BEGIN, _END = "<!-- mutants -->\n", "<!-- end of mutants -->\n"
_HEAD = """\
| mutant | rule | test | s | promise, in the simulation | workload | seed | s |
|---|---|---|---:|---|---|---:|---:|
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    wanted = parser.parse_args().names
    mutants = (*PROTOCOL, *GUARDS)
    if unknown := sorted(set(wanted) - {mutant.name for mutant in mutants}):
        parser.error(f"there are no such mutants: {', '.join(unknown)}")
    chosen = [mutant for mutant in mutants if not wanted or mutant.name in wanted]
    rows = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            for mutant, found in zip(chosen, pool.map(hunt, chosen), strict=True):
                rows.append((mutant, found))
                _say(_row(mutant, found) if _is_caught(mutant, found) else f"{mutant.name}: NOT CAUGHT\n")
        except KeyboardInterrupt:
            give_up()
            raise
    if failing := failing_anyway(found.by_tests.by for _, found in rows if found.by_tests):
        _say(f"without any mutant, too, these fail: {', '.join(failing)}\n")
        return 1
    missed = [mutant.name for mutant, found in rows if not _is_caught(mutant, found)]
    if missed:
        _say(f"not caught: {', '.join(missed)}\n")
        return 1
    if not wanted:
        _write_table(rows)
    return 0


def _is_caught(mutant: Mutant, found: Found) -> bool:
    """By what has to catch it."""
    return (found.by_tests if mutant.tests else found.by_seeds) is not None


def _row(mutant: Mutant, found: Found) -> str:
    tests, seeds = found
    cells = [f"`{mutant.name}`", mutant.rule]
    cells += [f"`{tests.by.removeprefix('tests/')}`", f"{tests.seconds:.0f}"] if tests else ["", ""]
    cells += [seeds.by, mutant.workload, str(seeds.seed), f"{seeds.seconds:.0f}"] if seeds else ["", "", "", ""]
    return f"| {' | '.join(cells)} |\n"


def _write_table(rows: list[tuple[Mutant, Found]]) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    total = f"Of the source at {commit}: {len(rows)} mutants, all caught, with at most {SEEDS} seeds each.\n\n"
    page = PAGE.read_text()
    begin, end = page.index(_BEGIN) + len(_BEGIN), page.index(_END)
    table = total + _HEAD + "".join(_row(mutant, found) for mutant, found in rows)
    PAGE.write_text(page[:begin] + table + page[end:])


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
