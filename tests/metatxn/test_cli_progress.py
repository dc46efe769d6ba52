"""Goal: a person sees how far a long command is, and neither a file nor a short command has anything of it.

Method: streams that say what they are, and a clock that is moved by hand."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from metastore.backends.sqlite import SqliteStore
from metastore.check import StoreCheck
from metastore.txn.store import INDEXES
from metatxn.cli.progress import FIRST_AFTER_S, ProgressLine


class Stream(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def shown(
    seconds: list[float],
    *,
    errors: bool = True,
    output: bool = False,
    beside_output: bool = True,
    total: int | None = None,
) -> list[str]:
    """What is on the line after each of the items, which are done at these times."""
    now = 0.0
    lines: list[str] = []
    with redirect_stderr(Stream(terminal=errors)) as written, redirect_stdout(Stream(terminal=output)) as printed:
        line = ProgressLine("records", total=total, beside_output=beside_output, clock=lambda: now)
        with line as progress:
            for number in progress.over(range(len(seconds))):
                now = seconds[number]
                lines.append(written.getvalue().rpartition("\x1b[K")[2])
        lines.append(written.getvalue().rpartition("\x1b[K")[2])
        assert printed.getvalue() == ""
    return lines


def test_the_line_counts_after_a_second_and_is_gone_at_the_end() -> None:
    late = FIRST_AFTER_S
    assert shown([late / 2, late, late + 0.1, late + 0.2, late + 1]) == [
        "",
        "",
        "2 records",
        "2 records",
        "4 records",
        "",
    ]


def test_a_bar_shows_how_much_is_done_where_that_is_known() -> None:
    assert shown([5, 6, 7, 8], total=4)[1:4] == [
        "[#####...............] 25%  1 records",
        "[##########..........] 50%  2 records",
        "[###############.....] 75%  3 records",
    ]


@pytest.mark.parametrize(
    ("errors", "output", "beside_output", "shows"),
    [(True, False, True, True), (True, True, True, False), (True, True, False, True), (False, False, True, False)],
)
def test_only_a_person_who_sees_nothing_else_sees_it(
    errors: bool, output: bool, beside_output: bool, shows: bool
) -> None:
    assert any(shown([5, 6], errors=errors, output=output, beside_output=beside_output)) is shows


async def test_a_check_tells_how_far_it_is(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "metadata.db", INDEXES)
    batch = store.batch()
    for number in range(5):
        batch.put(f"/odd/{number}", b"")
    await store.apply(batch)
    told: list[int] = []
    found = [each async for each in StoreCheck(store, page=2, examined=told.append).findings()]
    await store.close()
    assert (len(found), told) == (5, [2, 4, 5])
