"""Which schemas may follow others in a topic.

An entry keeps the form in which it was written, and is read in the columns of the topic as they are then. So a mode
compares new columns with all earlier versions, and not only with the last one: entries of each may still be there.

    backward   what was written under any earlier version fits the new columns
    forward    what is written under the new one fits the columns of any earlier version
    full       both

Every column may be null. So columns may come and go in each of these modes, and what matters is their types: one
includes another if each value of that has an equal one in it, in Arrow and as JSON. The latter excludes times of other
units, because in JSON a number counts the units of its column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from metatxn.wire.policies import CompatibilityKind

_EXACT_BITS = {16: 11, 32: 24, 64: 53}
"""The bits of integers that are exact in a floating type, by its width."""


@dataclass(frozen=True, slots=True)
class Incompatible:
    column: str
    why: str


def incompatible(
    mode: CompatibilityKind, schema: pa.Schema, earlier: Mapping[str, pa.Schema]
) -> Iterator[Incompatible]:
    """Why `schema` may not follow the `earlier` ones, which are given by their names."""
    given = {field.name: field.type for field in schema}
    for name, version in earlier.items():
        for field in version:
            kind = given.get(field.name, field.type)
            if mode in ("backward", "full") and not includes(kind, field.type):
                yield Incompatible(field.name, f"is {kind}, which cannot hold every {field.type} of {name}")
            elif mode in ("forward", "full") and not includes(field.type, kind):
                yield Incompatible(field.name, f"is {kind}, and not every one fits the {field.type} of {name}")


def includes(kind: pa.DataType, other: pa.DataType) -> bool:
    """Whether each value of `other` has an equal one of `kind`. It is a partial order: what includes a type
    includes all that this one includes."""
    if kind.equals(other) or pat.is_null(other):
        return True
    if pat.is_integer(other):
        return _includes_integers(kind, other)
    if pat.is_floating(other):
        return pat.is_floating(kind) and kind.bit_width >= other.bit_width
    if pat.is_decimal(other):
        return pat.is_decimal(kind) and _whole(kind) >= _whole(other) and kind.scale >= other.scale
    if pat.is_string(other):
        return pat.is_large_string(kind)
    if pat.is_binary(other):
        return pat.is_large_binary(kind)
    return _includes_nested(kind, other)


def _includes_integers(kind: pa.DataType, other: pa.DataType) -> bool:
    bits = other.bit_width - pat.is_signed_integer(other)
    if pat.is_integer(kind):
        signed = pat.is_signed_integer(kind)
        return kind.bit_width - signed >= bits and signed >= pat.is_signed_integer(other)
    if pat.is_floating(kind):
        return _EXACT_BITS[kind.bit_width] >= bits
    return pat.is_decimal(kind) and _whole(kind) >= len(str(2**bits)) and kind.scale >= 0


def _whole(kind: Any) -> int:
    """The digits before the point of a decimal type."""
    return int(kind.precision - kind.scale)


def _includes_nested(kind: pa.DataType, other: pa.DataType) -> bool:
    if pat.is_list(other):
        return (pat.is_list(kind) or pat.is_large_list(kind)) and includes(kind.value_type, other.value_type)
    if pat.is_large_list(other):
        return pat.is_large_list(kind) and includes(kind.value_type, other.value_type)
    if pat.is_struct(other) and pat.is_struct(kind):
        ours, theirs = ([each.field(index) for index in range(each.num_fields)] for each in (kind, other))
        return [field.name for field in ours] == [field.name for field in theirs] and all(
            includes(one.type, another.type) for one, another in zip(ours, theirs, strict=True)
        )
    if pat.is_map(other) and pat.is_map(kind):
        return bool(kind.key_type.equals(other.key_type)) and includes(kind.item_type, other.item_type)
    return False
