"""Checks of the metadata store, as far as they have come.

A check goes on while its page is visible. The browser closes the stream of a page in the background, and opens another
one when the page is visible again: the check goes on there. So the latest checks are kept, each under a number that
only the page of it knows.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

import metatxn
from metatxn.wire.coordinator import CheckedRecords, StoreFinding

RECORDS_PER_STEP = 200
"""The records of one step. Comparing them takes some milliseconds, in which the coordinator does nothing else."""
MOST_FINDINGS = 100
MOST_PREFIXES = 100
"""The most beginnings of keys: what other programs have written may have any beginning."""
MOST_CHECKS = 20
"""The most checks that are kept. A page that comes back to an earlier one begins anew."""
_ID = re.compile("[0-9a-f]{32}", re.ASCII)


@dataclass(slots=True)
class WatchedCheck:
    """A check. `ended_ms` is when everything had been examined."""

    records: int = 0
    wrong: int = 0
    findings: list[StoreFinding] = field(default_factory=list)
    sizes: dict[str, CheckedRecords] = field(default_factory=dict)
    ended_ms: int | None = None
    _token: str | None = None
    _going_on: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def go_on(self, client: metatxn.AsyncClient, steps: int, now_ms: int) -> None:
        """Examine some more records, each once, however many look. What fails is examined again the next time."""
        async with self._going_on:
            for _ in range(steps):
                if self.ended_ms is not None:
                    return
                found, self._token = await client.check_store(limit=RECORDS_PER_STEP).page_at(self._token)
                for each in found:
                    self._add(each)
                if self._token is None:
                    self.ended_ms = now_ms

    def _add(self, found: CheckedRecords) -> None:
        self.records += found.records
        self.wrong += len(found.findings)
        self.findings += found.findings[: MOST_FINDINGS - len(self.findings)]
        if found.prefix not in self.sizes and len(self.sizes) == MOST_PREFIXES:
            return
        size = self.sizes.setdefault(found.prefix, CheckedRecords(prefix=found.prefix))
        size.records += found.records
        size.bytes += found.bytes


class WatchedChecks:
    """The latest checks of this process. Another process does not know them, and begins anew."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, WatchedCheck] = OrderedDict()

    def of(self, number: str) -> tuple[str, WatchedCheck]:
        """The check with this number; a new one, under a number of its own, if there is none."""
        if not _ID.fullmatch(number):
            number = secrets.token_hex(16)
        check = self._kept.setdefault(number, WatchedCheck())
        self._kept.move_to_end(number)
        while len(self._kept) > MOST_CHECKS:
            self._kept.popitem(last=False)
        return number, check
