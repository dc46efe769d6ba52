"""Every mutant must be caught.

python -m tests.mutants              all of them, in half an hour; writes the table of docs/mutants.md
python -m tests.mutants --new        those that the table does not have as they are now; adds them to it
python -m tests.mutants NAME …       these, without writing
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.mutants.guards import GUARDS
from tests.mutants.hunt import SEEDS, Found, Last, failing_anyway, give_up, hunt
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.protocol import PROTOCOL

MUTANTS = (*PROTOCOL, *GUARDS)
AT_ONCE = 2 * (os.cpu_count() or 1)
"""The mutants that are looked for at the same time. Many tests wait, for what a mutant keeps from happening."""
PAGE = ROOT / "docs" / "mutants.md"
_BEGIN, _END = "<!-- mutants -->\n", "<!-- end of mutants -->\n"
_HEAD = """\
| mutant | rule | test | s | promise, in the simulation | workload | seed | s |
|---|---|---|---:|---|---|---:|---:|
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--new", action="store_true", help="those that the table does not have as they are now")
    given = parser.parse_args()
    wanted, rows_so_far = set(given.names), known_rows()
    known = {each.name: rows_so_far[each.name] for each in MUTANTS if given.new and is_in(rows_so_far, each)}
    if unknown := sorted(wanted - {mutant.name for mutant in MUTANTS}):
        parser.error(f"there are no such mutants: {', '.join(unknown)}")
    chosen = [mutant for mutant in MUTANTS if (not wanted or mutant.name in wanted) and mutant.name not in known]
    if not chosen:
        _say("the table has all of them\n")
        return 0
    last = [last_of(rows_so_far.get(mutant.name)) for mutant in chosen]
    rows = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for mutant, found in zip(chosen, pool.map(hunt, chosen, last), strict=True):
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
        _write_table(known | {mutant.name: _row(mutant, found) for mutant, found in rows}, len(rows))
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


def known_rows() -> dict[str, str]:
    """The rows of the table, by the name of the mutant."""
    return {row.split("`")[1]: f"{row}\n" for row in PAGE.read_text().splitlines() if row.startswith("| `")}


def is_in(rows: dict[str, str], mutant: Mutant) -> bool:
    """Whether one of these rows tells of the mutant as it is: what caught it is a test that it names, or beside its
    file, and a seed."""
    last = last_of(rows.get(mutant.name))
    if last is None:
        return False
    if mutant.tests:
        return last.test is not None and last.test.startswith(mutant.tests)
    return last.seed is not None and (last.test is None or last.test.startswith(mutant.tests_beside))


def last_of(row: str | None) -> Last | None:
    """What a row of the table tells."""
    if row is None:
        return None
    _, _, _, test, _, _, _, seed, *_ = (cell.strip(" `") for cell in row.split("|"))
    return Last(f"tests/{test}" if test else None, int(seed) if seed else None)


def found_by_seeds_alone() -> set[tuple[str, int]]:
    """The workloads and seeds that catch those mutants of the table that no test catches."""
    cells = ([cell.strip(" `") for cell in row.split("|")] for row in known_rows().values())
    return {(workload, int(seed)) for _, _, _, test, _, _, workload, seed, *_ in cells if not test}


def _write_table(row_of: dict[str, str], new: int) -> None:
    """`new` of these rows were found now."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    total = f"{len(MUTANTS)} mutants, all caught, with at most {SEEDS} seeds each"
    of = f"the latest {new} of them in the source at {commit}" if new < len(MUTANTS) else f"in the source at {commit}"
    page = PAGE.read_text()
    begin, end = page.index(_BEGIN) + len(_BEGIN), page.index(_END)
    table = f"{total}: {of}.\n\n{_HEAD}" + "".join(row_of[mutant.name] for mutant in MUTANTS)
    PAGE.write_text(page[:begin] + table + page[end:])


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
