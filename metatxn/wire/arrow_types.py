"""Arrow's types by the names that Arrow gives them, such as `int64`, `decimal128(9, 2)` or `list<item: string>`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from metatxn.wire.text import split_outside_brackets

_DECIMALS: dict[str, Callable[[int, int], pa.DataType]] = {
    "decimal128": pa.decimal128,
    "decimal256": pa.decimal256,
}
_LISTS: dict[str, Callable[[Any], pa.DataType]] = {"list": pa.list_, "large_list": pa.large_list}


def type_named(name: str) -> pa.DataType:
    """The type with this name. Raises `ValueError` for a name that is not known here."""
    kind, _, rest = name.partition("<")
    if rest:
        return _nested(kind, rest.removesuffix(">"), name)
    if decimal := re.fullmatch(r"(\w+)\((\d+), ?(-?\d+)\)", name):
        kind, digits, scale = decimal.groups()
        return _DECIMALS.get(kind, _unknown)(int(digits), int(scale))
    if width := re.fullmatch(r"fixed_size_binary\[(\d+)\]", name):
        return pa.binary(int(width[1]))
    if zoned := re.fullmatch(r"timestamp\[(\w+), ?tz=(.+)\]", name):
        timestamp: Callable[[str, str], pa.DataType] = pa.timestamp  # type: ignore[assignment]  # stubs list the units
        return timestamp(*zoned.groups())
    type_for_alias: Callable[[str], pa.DataType] = pa.type_for_alias  # type: ignore[assignment]
    return type_for_alias(name)


def _nested(kind: str, inside: str, name: str) -> pa.DataType:
    parts = [part.strip() for part in split_outside_brackets(inside)]
    if kind in _LISTS and len(parts) == 1:
        return _LISTS[kind](type_named(parts[0].removeprefix("item: ").removeprefix("element: ")))
    if kind == "map" and len(parts) == 2:
        return pa.map_(*map(type_named, parts))
    if kind == "struct" and all(": " in part for part in parts):
        fields = [part.split(": ", 1) for part in parts]
        return pa.struct([pa.field(field, type_named(text)) for field, text in fields])
    raise ValueError(f"No type alias for {name}")


def _unknown(*_: int) -> pa.DataType:
    raise ValueError(f"a decimal type is one of {', '.join(_DECIMALS)}")
