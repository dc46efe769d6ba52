"""Which messages are looked for: an expression over their columns, such as
`amount >= 100 and customer.country = "DE" or urgent = true`.

    expression   alternative ("or" alternative)*
    alternative  comparison ("and" comparison)*
    comparison   column operator literal
    column       name ("." name)*    letters, digits and _, or anything but ` in backquotes
    operator     =  !=  <  <=  >  >=  ~
    literal      "text", a number, true, false or null, as in JSON

A column is a member of a value that is an object; a dot leads into an object within it. A value of any other kind has
one column, `value`. Times, dates and whatever JSON has no type for are compared as the text that people are shown, and
decimals as numbers. `~` looks for a text within a text, ignoring case. What has another type than the literal, and what
is not there, matches nothing; `= null` matches what is not there or null, and `!= null` everything else.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import metatxn

LONGEST = 500
VALUE_COLUMN = "value"
_TOKEN = re.compile(
    r'\s*(?:(?P<literal>"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)'
    r"|(?P<operator>!=|<=|>=|=|<|>|~)"
    r"|(?P<word>(?:\w+|`[^`]+`)(?:\.(?:\w+|`[^`]+`))*))"
)
_NAME = re.compile(r"`([^`]+)`|(\w+)")
_LITERALS = {"true": True, "false": False, "null": None}
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda value, part: part.casefold() in value.casefold(),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    column: tuple[str, ...]
    operator: str
    literal: Any

    def matches(self, value: Any) -> bool:
        found = _found(value, self.column)
        if self.literal is None:
            return (found is None) == (self.operator == "=")
        found = _comparable(found)
        return _kind(found) == _kind(self.literal) and _COMPARED[self.operator](found, self.literal)


@dataclass(frozen=True, slots=True)
class Where:
    """An expression. One of the alternatives has to match, with each of its comparisons."""

    alternatives: Sequence[Sequence[Comparison]]

    def matches(self, value: Any) -> bool:
        return any(all(each.matches(value) for each in comparisons) for comparisons in self.alternatives)


def parsed_where(text: str) -> Where:
    """The expression in a text. Raises `InvalidArgument`, which says where it cannot be understood."""
    if len(text) > LONGEST:
        raise _refused(f"it has {len(text)} characters, and may have {LONGEST}")
    tokens = [*_tokens(text)]
    alternatives: list[list[Comparison]] = [[]]
    while True:
        alternatives[-1].append(_comparison(tokens))
        if not tokens:
            return Where(alternatives)
        kind, word = tokens.pop(0)
        if kind != "word" or word.lower() not in ("and", "or"):
            raise _refused(f"{word} stands where `and` or `or` is expected")
        if word.lower() == "or":
            alternatives.append([])


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    text, at = text.rstrip(), 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise _refused(f"{text[at:].strip()[:40]} cannot be read")
        yield found.lastgroup, found[found.lastgroup]
        at = found.end()


def _comparison(tokens: list[tuple[str, str]]) -> Comparison:
    kind, column = _next(tokens, "a column")
    if kind != "word":
        raise _refused(f"{column} stands where a column is expected")
    kind, sign = _next(tokens, "one of = != < <= > >= ~")
    if kind != "operator":
        raise _refused(f"{sign} stands where one of = != < <= > >= ~ is expected")
    literal = _literal(*_next(tokens, 'a value such as 5, "text", true or null'))
    if (literal is None or isinstance(literal, bool)) and sign not in ("=", "!="):
        raise _refused(f"{json.dumps(literal)} can only be compared with = and !=")
    if sign == "~" and not isinstance(literal, str):
        raise _refused("~ needs a text in quotes")
    return Comparison(tuple(quoted or plain for quoted, plain in _NAME.findall(column)), sign, literal)


def _next(tokens: list[tuple[str, str]], expected: str) -> tuple[str, str]:
    if not tokens:
        raise _refused(f"it ends where {expected} is expected")
    return tokens.pop(0)


def _literal(kind: str, text: str) -> Any:
    if kind == "word" and text in _LITERALS:
        return _LITERALS[text]
    try:
        if kind == "literal":
            return json.loads(text)
    except ValueError:
        pass
    raise _refused(f'{text} is not a value: text must be in quotes, as in "{text[:20]}"')


def _refused(problem: str) -> metatxn.InvalidArgument:
    action = 'Write it as in: amount >= 100 and country = "DE" or urgent = true'
    return metatxn.InvalidArgument(f"where: {problem}", action=action, field="where")


def _found(value: Any, column: Sequence[str]) -> Any:
    if not isinstance(value, dict):
        return value if tuple(column) == (VALUE_COLUMN,) else None
    for name in column:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _comparable(value: Any) -> Any:
    plain = value is None or isinstance(value, str | bool | int | float | Decimal | bytes | dict | list | tuple)
    return value if plain else str(value)


def _kind(value: Any) -> str | None:
    match value:
        case bool():
            return "boolean"
        case int() | float() | Decimal():
            return "number"
        case str():
            return "text"
    return None
