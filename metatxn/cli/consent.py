"""Commands that destroy something ask a person before they do it, and show what they would do with `--dry-run`.

Only a person at a terminal is asked: scripts run as they did before, and `--yes` is an answer that holds for both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

import metatxn
from metatxn.cli.options import CliError, Interrupted, ServiceOptions, takes
from metatxn.cli.output import printable
from metatxn.wire.access import AccessInfo
from metatxn.wire.names import topic_name

YES = frozenset({"y", "yes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsentOptions:
    """The options of every command that destroys something."""

    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False

    @property
    def wants_effect(self) -> bool:
        """Whether someone would read what the command does before it does that."""
        return self.dry_run or (not self.yes and at_terminal())

    def given(self, session: ServiceOptions, effect: Callable[[], str]) -> bool:
        """Whether to go on. `effect` says in one sentence what would happen; it is called only if someone reads
        that. Raises `CliError` if the answer is not yes."""
        if self.dry_run:
            said = effect()
            session.print_done({"dry_run": True, "would": said}, f"would {said}")
            return False
        if not self.yes and at_terminal():
            ask_person(effect())
        return True


def at_terminal() -> bool:
    """Whether a person can read the question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask_person(effect: str) -> None:
    """Ask a person. Raises `CliError` if the answer is not yes."""
    answer = ""
    try:
        print(f"This will {printable(effect)}\nContinue? [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        raise Interrupted("nothing was changed, because the command was interrupted.") from None
    finally:
        if not answer.endswith("\n"):
            print(file=sys.stderr)  # the cursor is still behind the question
    if answer.strip().lower() not in YES:
        raise CliError("nothing was changed, because the answer was not yes. Give --yes to skip the question.")


def check_administers(client: metatxn.Client, topic: str) -> None:
    """A dry run changes nothing, so no service refuses it. Raises `NotAllowed` if the change itself would be."""
    try:
        name = topic_name(topic)
    except ValueError:
        return  # there is no such topic, as the next request says
    access = client.access()
    if not access.may("admin", name):
        raise _lacks(access, f"the right admin on topic {name}")


def check_administers_all(client: metatxn.Client, prefix: str) -> None:
    """Check the same for a change of every topic whose name begins with `prefix`."""
    access = client.access()
    if not access.may_below("admin", prefix):
        raise _lacks(access, f"the right admin on all topics {prefix}*")


def _lacks(access: AccessInfo, what: str) -> metatxn.NotAllowed:
    action = "Use a token of a principal that has this right, or have the right granted."
    return metatxn.NotAllowed(f"principal {access.principal!r} lacks {what}", action=action)


takes_consent = takes("consent", ConsentOptions)


def counted(number: int, thing: str) -> str:
    """`1 segment`, `2 segments`, `2 entries`."""
    several = f"{thing[:-1]}ies" if thing.endswith("ry") else f"{thing}s"
    return f"{number:,} {thing if number == 1 else several}"
