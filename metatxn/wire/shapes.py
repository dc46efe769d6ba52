"""The type that JSON values have in common, one value after another. A value that has another type is refused, so the
first one decides: of 1 and "one" the type is a number; of 1 and 1.5 it is a number, too."""

from __future__ import annotations

import reprlib
from typing import Any, TypeAlias, Union

import pyarrow as pa

EXACT = 2**53
"""The largest integer that is exact among numbers with a fraction."""
_INTEGER, _LARGE, _NUMBER = "integer", "large integer", "number"
Shape: TypeAlias = Union[type, str, list["Shape"], dict[str, "Shape"], None]  # noqa: UP007  # it is recursive
"""The shape of values, which is None as long as every value was null."""
_TYPES: dict[Any, pa.DataType] = {
    None: pa.null(),
    bool: pa.bool_(),
    str: pa.string(),
    bytes: pa.binary(),
    _INTEGER: pa.int64(),
    _LARGE: pa.int64(),
    _NUMBER: pa.float64(),
}
_WITH: dict[tuple[Any, Any], Shape] = {
    (_INTEGER, _LARGE): _LARGE,
    (_INTEGER, _NUMBER): _NUMBER,
    (_LARGE, _INTEGER): _LARGE,
    (_NUMBER, _INTEGER): _NUMBER,
}


def extended(shape: Shape, value: Any) -> Shape:
    """The shape of all values so far and this one. Raises `ValueError` if it does not fit."""
    if value is None:
        return shape
    if isinstance(value, list) and (shape is None or isinstance(shape, list)):
        return [_of_items(shape[0] if shape else None, value)]
    if isinstance(value, dict) and (shape is None or isinstance(shape, dict)):
        return (shape or {}) | {name: extended((shape or {}).get(name), each) for name, each in value.items()}
    own = _of_scalar(value)
    if shape is None or shape == own:
        return own
    both = _WITH.get((shape, own)) if isinstance(shape, str) else None
    if both is None and (shape, own) in ((_LARGE, _NUMBER), (_NUMBER, _LARGE)):
        raise ValueError(f"{value!r}: integers above 2^53 and other numbers do not fit into one column")
    if both is None:
        raise ValueError(f"{reprlib.repr(value)} is of another type than the values before it")
    return both


def _of_items(shape: Shape, values: list[Any]) -> Shape:
    for value in values:
        shape = extended(shape, value)
    return shape


def _of_scalar(value: Any) -> Shape:
    if isinstance(value, bool | str | bytes):
        return type(value)
    if isinstance(value, float):
        return _NUMBER
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"{reprlib.repr(value)} is too large a number")
        return _INTEGER if -EXACT <= value <= EXACT else _LARGE
    return type(value)


def arrow_type(shape: Shape) -> pa.DataType:
    if isinstance(shape, list):
        return pa.list_(arrow_type(shape[0]))
    if isinstance(shape, dict):
        return pa.struct([pa.field(name, arrow_type(each)) for name, each in shape.items()])
    return _TYPES[shape]
