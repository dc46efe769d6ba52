"""Pages whose marked examples are run, and whose shown output is compared to the letter.

`<!-- example: python -->` marks a program, and the `<!-- output -->` block behind it is what it prints.
`<!-- example: console -->` marks commands, each with its output below it:

    $ etcdctl get --prefix --keys-only /txn/
    /txn/00000000000000000000000000000004
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

PROMPT = "$ "


@dataclass(frozen=True, slots=True)
class Command:
    """What is typed, and what the page shows below it."""

    typed: str
    shown: str


def _marked(kind: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- example: {kind} -->\n```{kind}\n)(.*?)(?=```)", re.DOTALL)


def examples(page: str, kind: str) -> list[str]:
    return _marked(kind).findall(page)


def outputs(page: str) -> list[str]:
    """The blocks that show what a program prints."""
    return re.findall(r"<!-- output -->\n```text\n(.*?)```", page, re.DOTALL)


def commands(session: str, prompt: str = PROMPT) -> list[Command]:
    """The commands of one console block."""
    before, *parts = re.split(rf"^{re.escape(prompt)}", session, flags=re.MULTILINE)
    assert not before, f"what is this the output of: {before!r}"
    return [Command(typed, shown) for typed, _, shown in (part.partition("\n") for part in parts)]


async def replayed(page: str, answer: Callable[[str], Awaitable[str]], prompt: str = PROMPT) -> str:
    """The page as it is when every command of its console blocks is given to `answer`, in order.

    Equal to `page` when the page is right, and the right page when it is not.
    """
    parts = _marked("console").split(page)
    for at in range(1, len(parts), 2):
        typed = [command.typed for command in commands(parts[at], prompt)]
        parts[at] = "".join([f"{prompt}{command}\n{await answer(command)}" for command in typed])
    return "".join(parts)
