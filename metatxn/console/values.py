"""How the value of a message looks: a tree of what is in it, of which a page shows as much as it can hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import escape

LONGEST_TEXT = 1_000
MOST_NODES = 150
MOST_CHARACTERS = 6_000
DEEPEST = 16
SHORT = 100
BYTES_IN_A_LINE = 16
SHOWN_BYTES = 512
NODE_CHARACTERS = 120
"""About as much HTML as a node needs besides its texts."""


@dataclass(slots=True)
class ValueNode:
    """A part of a value with its name there. One with `children` may be opened; `more` means that not all is shown."""

    name: str | None
    text: str
    kind: str
    children: list[ValueNode] = field(default_factory=list)
    more: bool = False

    @property
    def is_short(self) -> bool:
        """Whether there is nothing to open."""
        return not self.children and not self.more and len(self.text) <= SHORT and "\n" not in self.text

    @property
    def brief(self) -> str:
        line = self.text[: SHORT + 1].replace("\n", " ")
        return line if len(line) <= SHORT else f"{line[:SHORT]}…"

    def weight(self) -> int:
        """About how many characters of HTML it is."""
        own = NODE_CHARACTERS + len(escape(self.text)) + len(escape(self.brief)) + len(escape(self.name or ""))
        return own + sum(child.weight() for child in self.children)


def tree_of(value: Any) -> ValueNode:
    """The value as a tree that is not larger than a page can hold."""
    return _Tree().node(None, value, 0)


class _Tree:
    def __init__(self) -> None:
        self._nodes = MOST_NODES
        self._characters = MOST_CHARACTERS

    def node(self, name: str | None, value: Any, depth: int) -> ValueNode:
        self._nodes -= 1
        if isinstance(value, bytes):
            return ValueNode(name, hex_text(value[:SHOWN_BYTES]), "bytes", more=len(value) > SHOWN_BYTES)
        if not isinstance(value, dict | list | tuple):
            text = plain_text(value) if depth == 0 else json_text(value)
            return ValueNode(name, self._cut(text), _kind(value), more=len(text) > LONGEST_TEXT)
        made = ValueNode(name, self._cut(_summary(value)), "object" if isinstance(value, dict) else "list")
        for inner, each in _members(value):
            if self._nodes <= 0 or self._characters <= 0 or depth == DEEPEST:
                made.more = True
                break
            made.children.append(self.node(self._cut(inner), each, depth + 1))
        return made

    def _cut(self, text: str) -> str:
        cut = text[: max(SHORT, min(LONGEST_TEXT, self._characters))]
        self._characters -= len(cut)
        return cut


def _members(value: Mapping[str, Any] | Sequence[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return ((str(name), each) for name, each in value.items())
    return ((str(index), each) for index, each in enumerate(value))


def _summary(value: Mapping[str, Any] | Sequence[Any]) -> str:
    """The first members of a value, as much as fits into a line."""
    if not value:
        return "{}" if isinstance(value, Mapping) else "[]"
    parts: list[str] = []
    length = 0
    for name, each in _members(value):
        word = _word(each)
        parts.append(f"{name}: {word}" if isinstance(value, Mapping) else word)
        length += len(parts[-1])
        if length > SHORT:
            break
    text = ", ".join(parts) + (", …" if len(parts) < len(value) else "")
    return f"{{{text}}}" if isinstance(value, Mapping) else f"[{text}]"


def _word(value: Any) -> str:
    match value:
        case dict():
            return "{…}" if value else "{}"
        case list() | tuple():
            return "[…]" if value else "[]"
        case bytes():
            return f"{len(value)} bytes"
    return json_text(value)[: SHORT + 1]


def json_text(value: Any) -> str:
    """A scalar as JSON writes it; what JSON has no type for, as text without quotes."""
    if value is None or isinstance(value, str | bool | int | float):
        return json.dumps(value[: LONGEST_TEXT + 1] if isinstance(value, str) else value, ensure_ascii=False)
    return str(value)


def plain_text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def cell_text(value: Any) -> str:
    """A value in a column of a table: short, and in one line."""
    match value:
        case None:
            return ""
        case dict() | list() | tuple():
            text = _summary(value)
        case bytes():
            text = value[:SHORT].hex(" ")
        case _:
            text = plain_text(value)
    line = text[: SHORT + 1].replace("\n", " ")
    return line if len(line) <= SHORT else f"{line[:SHORT]}…"


def hex_text(value: bytes) -> str:
    """A few bytes in one line; more of them in lines with their offset and the characters of ASCII."""
    if len(value) <= 2 * BYTES_IN_A_LINE:
        return value.hex(" ")
    starts = range(0, len(value), BYTES_IN_A_LINE)
    return "\n".join(_line(start, value[start : start + BYTES_IN_A_LINE]) for start in starts)


def _line(start: int, part: bytes) -> str:
    letters = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
    return f"{start:06x}  {part.hex(' '):<{3 * BYTES_IN_A_LINE}} {letters}"


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "text"
        case int() | float():
            return "number"
    return "other"
