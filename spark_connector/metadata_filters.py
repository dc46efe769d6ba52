"""Filters of a query that can be decided by an entry's metadata alone, before the entry is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

COLUMNS = {"__topic", "__segment", "__position", "__publish_ms", "__txn_id"}
"""Metadata that all rows of one entry share. The key is not included, because every row has its own."""
_KINDS = (EqualTo, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, IsNull, IsNotNull)


class MetadataFilters:
    """All of these filters must hold. Without any, every entry passes."""

    def __init__(self, filters: Iterable[Filter] = ()) -> None:
        self._filters = tuple(filters)

    def let_through(self, described: Mapping[str, Any]) -> bool:
        """Whether an entry may pass. `described` may contain only some columns; filters on other columns are not
        applied yet."""
        return all(_holds(each, described) for each in self._filters if each.attribute[0] in described)  # type: ignore[attr-defined]  # all of _KINDS have it


def can_be_pushed(each: Filter) -> bool:
    return isinstance(each, _KINDS) and len(each.attribute) == 1 and each.attribute[0] in COLUMNS


def _holds(each: Filter, described: Mapping[str, Any]) -> bool:
    """Whether a filter holds. As in SQL, a comparison with null never does."""
    value = described[each.attribute[0]]  # type: ignore[attr-defined]  # as above
    match each:
        case IsNull():
            return value is None
        case IsNotNull():
            return value is not None
        case _ if value is None:
            return False
        case EqualTo():
            return bool(value == each.value)
        case In():
            return value in each.value
        case GreaterThan():
            return bool(value > each.value)
        case GreaterThanOrEqual():
            return bool(value >= each.value)
        case LessThan():
            return bool(value < each.value)
        case LessThanOrEqual():
            return bool(value <= each.value)
    raise AssertionError(f"{each} should not have been pushed")
