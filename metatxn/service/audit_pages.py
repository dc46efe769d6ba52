"""The audit log of this process read back, latest line first.

Only a file of its own can be read: `--audit-log` names it. A page token is a place in the file, and the number of the
file on its disk: if `logrotate` has moved the file away, the token means nothing any more.

    <inode> - <position of the first line that was already shown>      hexadecimal
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from pydantic import ValidationError

from metatxn.service import audit
from metatxn.wire import errors
from metatxn.wire.errors import invalid_field
from metatxn.wire.models import AuditEntry, AuditPage

PAGE_BYTES = 1 << 18
"""The bytes that are read for one page. They hold hundreds of lines; none is nearly as long."""
_TOKEN = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which lines are wanted: those that match everything that is given. `verb` may be the first part of one: `topic`
    stands for `topic.create`, `topic.delete` and so on. `text` is in the names and ids of the object, or in the
    arguments, ignoring case."""

    principal: str | None = None
    verb: str | None = None
    text: str | None = None
    outcome: str | None = None

    def matches(self, entry: AuditEntry) -> bool:
        return (
            self.principal in (None, entry.principal)
            and self.outcome in (None, entry.outcome)
            and (self.verb is None or f"{entry.verb}.".startswith(f"{self.verb}."))
            and (self.text is None or self._has_text(entry, self.text.casefold()))
        )

    @staticmethod
    def _has_text(entry: AuditEntry, text: str) -> bool:
        values = chain(entry.object.values(), (entry.arguments or {}).values())
        return any(text in str(value).casefold() for value in values)


EVERY_LINE = AuditFilter()


def latest_lines(limit: int, page_token: str | None, wanted: AuditFilter = EVERY_LINE) -> AuditPage:
    """A page of the lines that are wanted; it may be empty although there are more. Raises NOT_FOUND if there is no
    file, and INVALID_ARGUMENT. It reads a disk: call it in a thread."""
    path = audit.log_file()
    if path is None:
        raise errors.NotFound(
            "this service writes its audit log among the lines of its log",
            action="Start it with --audit-log FILE, and ask again.",
        )
    try:
        return _read(path, limit, page_token, wanted)
    except OSError as error:
        raise errors.NotFound(
            f"the audit log cannot be read: {error.strerror}", action="Check the file of --audit-log on its machine."
        ) from error


def _read(path: Path, limit: int, page_token: str | None, wanted: AuditFilter) -> AuditPage:
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        end = about.st_size if page_token is None else _place(page_token, about.st_ino, about.st_size)
        start = max(0, end - PAGE_BYTES)
        file.seek(start)
        data = file.read(end - start)
    items: list[AuditEntry] = []
    shown = start
    for begins, line in _lines_backwards(data, start):
        shown = begins
        if (entry := _entry(line)) is not None and wanted.matches(entry):
            items.append(entry)
        if len(items) == limit:
            break
    return AuditPage(items=items, next_page_token=f"{about.st_ino:x}-{shown:x}" if shown else None)


def _place(token: str, inode: int, size: int) -> int:
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise invalid_field("page_token", "is not a token of this service")
    if int(found[1], 16) != inode or int(found[2], 16) > size:
        action = "Begin with the first page again."
        raise invalid_field("page_token", "belongs to a file that has been moved away since", action=action)
    return int(found[2], 16)


def _lines_backwards(data: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    """Each whole line with its place in the file, the last one first. What is before the first end of a line is left to
    the next page, unless it begins the file; what is behind the last one is being written."""
    end = data.rfind(b"\n")
    while end >= 0:
        before = data.rfind(b"\n", 0, end)
        if before < 0 and start:
            return
        yield start + before + 1, data[before + 1 : end]
        end = before


def _entry(line: bytes) -> AuditEntry | None:
    """The entry in a line, or None if something else has written it."""
    try:
        return AuditEntry.model_validate(json.loads(line))
    except (ValueError, RecursionError, ValidationError):
        return None
