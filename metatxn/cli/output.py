"""The output of the commands: tables for people, JSON for programs, and one line for an error."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from metatxn.wire.errors import MetatxnError

CANNOT_BE_WRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""The errors of an output that takes no more, such as a full disk."""
TIMES = frozenset({"created_ms", "deadline_ms", "finalized_ms", "renewed_ms", "updated_ms", "until_ms"})
"""The members of answers that are points in time; others are durations."""


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


def as_json(value: Any) -> Any:
    """Convert models to objects without their empty fields."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True, by_alias=True)
    if isinstance(value, list):
        return [as_json(item) for item in value]
    return value


def print_json(value: Any) -> None:
    print(json.dumps(as_json(value), indent=2, ensure_ascii=False), flush=True)


def print_line(value: Any) -> None:
    print(json.dumps(as_json(value), ensure_ascii=False), flush=True)


class JsonLines:
    """One JSON list, printed item by item, each on a line of its own; `[]` if there are none."""

    def __init__(self) -> None:
        self._printed = 0

    def print(self, value: Any) -> None:
        print(",\n" if self._printed else "[\n", json.dumps(as_json(value), ensure_ascii=False), sep="", end="")
        self._printed += 1

    def end(self) -> None:
        print("\n]" if self._printed else "[]", flush=True)


class TableRows:
    """Aligned columns without borders, so that `grep` and `awk` work on them, printed a part at a time: each part is as
    wide as it has to be, and no narrower than the ones before."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._head = [list(columns)]
        self._widths = [0] * len(columns)

    def print(self, rows: Iterable[Sequence[Any]]) -> None:
        """Print the rows, the first time with the names of the columns."""
        texts = [*self._head, *([_cell(cell) for cell in row] for row in rows)]
        self._head = []
        self._widths = [max([width, *(len(row[index]) for row in texts)]) for index, width in enumerate(self._widths)]
        for row in texts:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, self._widths, strict=True)).rstrip())


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print all rows at once, so that they are aligned with each other."""
    TableRows(columns).print(rows)


def print_fields(fields: dict[str, Any]) -> None:
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        print(f"{name.ljust(width)}  {_cell(value)}")


def print_error(message: str, _: MetatxnError | None = None) -> None:
    """Print the message on one line, whatever it contains."""
    print("metatxn:", printable(" ".join(message.split())), file=sys.stderr)


def print_error_as_json(message: str, answered: MetatxnError | None = None) -> None:
    """Print one object on one line: the message that people get, and the facts of an error that a service answered."""
    said: dict[str, Any] = {"error": " ".join(message.split())}
    if answered is not None:
        said |= {"code": answered.code, "detail": answered.detail, "action": answered.action}
        said |= {"retriable": answered.retriable, "definite": answered.definite} | answered.members
    print(json.dumps(said, ensure_ascii=False), file=sys.stderr)


def printable(text: str) -> str:
    """The text on one line and without control sequences for the terminal, whatever it contains."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def print_note(message: str) -> None:
    """Print something that a person should know on one line of standard error, where it does not disturb programs."""
    print("note:", printable(" ".join(message.split())), file=sys.stderr)


def print_more(rest: Iterator[Any], listed: int, limit: int) -> None:
    """Print a note if `limit` items were listed, and there are more."""
    if listed == limit and next(rest, None) is not None:
        print_note(f"there are more than these {limit}; --limit shows more of them.")


def when(time_ms: int | None) -> str | None:
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def with_dates(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields for people: a time in `created_ms` becomes a date in `created`. The other fields stay."""
    return {
        name.removesuffix("_ms") if name in TIMES else name: when(value) if name in TIMES else value
        for name, value in fields.items()
    }


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return printable(" ".join(value.splitlines())) or "-"
    return json.dumps(as_json(value), ensure_ascii=False)
