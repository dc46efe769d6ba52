"""How far a command has come, on one line of standard error that is overwritten, for a person who sees nothing else.

It is shown only if standard error is a terminal and the output goes somewhere else, such as into a file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

FIRST_AFTER_S = 1.0
EVERY_S = 0.2
BAR = 20
_CLEAR = "\r\x1b[K"

ASKED_AT_ONCE = 16

T = TypeVar("T")
R = TypeVar("R")


class ProgressLine:
    """Inside its `with`, `at` or `over` say how far the work is, of `total` if known. Nothing is shown in the first
    second, and the line is gone at the end."""

    def __init__(
        self,
        what: str,
        *,
        total: int | None = None,
        beside_output: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._total = total
        self._clock = clock
        self._shows = sys.stderr.isatty() and not (beside_output and sys.stdout.isatty())
        self._next = clock() + FIRST_AFTER_S
        self._shown = False
        self.done = 0

    def at(self, done: int, total: int | None = None) -> None:
        """Show how many are done, of `total` if that is known only now."""
        self.done = done
        self._total = self._total or total
        if self._shows and self._clock() >= self._next:
            print(f"{_CLEAR}{self._bar()}{self.done:,} {self._what}", end="", file=sys.stderr, flush=True)
            self._next = self._clock() + EVERY_S
            self._shown = True

    def _bar(self) -> str:
        """The bar, which is empty if the total is not known."""
        if not self._total:
            return ""
        part = min(1.0, self.done / self._total)
        full = int(part * BAR)
        return f"[{'#' * full}{'.' * (BAR - full)}] {part:.0%}  "

    def over(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            yield item
            self.at(self.done + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            print(_CLEAR, end="", file=sys.stderr, flush=True)


def each_of(what: str, ask: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """What `ask` returns for each of the items, a few of which are asked for at a time, in their order."""
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool, ProgressLine(what, total=len(items)) as line:
        return list(line.over(pool.map(ask, items)))
