"""Commands that destroy something ask a person before they do it, and show what they would do with `--dry-run`.

Only a person at a terminal is asked: a script that was written before goes on, and `--yes` says it for all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from metatxn.cli.options import CliError, ServiceOptions, takes
from metatxn.cli.output import printable

YES = frozenset({"y", "yes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsentOptions:
    """The options of every command that destroys something."""

    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False

    def given(self, session: ServiceOptions, effect: Callable[[], str]) -> bool:
        """Whether to go on. `effect` says in one sentence what would happen; it is called only if somebody reads
        that. Raises `CliError` if the answer is not yes."""
        if self.dry_run:
            said = effect()
            session.print_done({"dry_run": True, "would": said}, f"would {said}")
            return False
        if not self.yes and at_terminal():
            _ask(effect())
        return True


def at_terminal() -> bool:
    """Whether a person reads what is asked, and can answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask(effect: str) -> None:
    print(f"This will {printable(effect)}\nContinue? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in YES:
        raise CliError("nothing was changed, because the answer was not yes. Give --yes to be asked nothing.")


takes_consent = takes("consent", ConsentOptions)


def counted(number: int, thing: str) -> str:
    """`1 segment`, `2 segments`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
