"""The commands of `metatxn`, each loaded when it is used: a command that begins a transaction does not load what
another one needs to read tables, and the help of the program loads none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class CommandSource:
    """Where a command comes from. `about` is what the help of the program says of it; `add` loads it and adds it to an
    app, under its name."""

    about: str
    add: Callable[[typer.Typer], object]


class LoadedCommands(MutableMapping[str, Any]):
    def __init__(self, sources: dict[str, CommandSource]) -> None:
        self._sources = sources
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            part = typer.Typer(rich_markup_mode=None)
            self._sources[name].add(part)
            self._loaded |= typer.main.get_group(part).commands
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._sources[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def group_of(sources: dict[str, CommandSource]) -> type[TyperGroup]:
    """A group of these commands."""
    commands = LoadedCommands(sources)

    class LoadedGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**{**attributes, "commands": commands})

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            named: list[Any] = [TyperCommand(name, help=source.about) for name, source in sources.items()]
            TyperGroup(name=self.name, commands=named).format_commands(ctx, formatter)

    return LoadedGroup
