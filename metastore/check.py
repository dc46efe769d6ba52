"""Examining a whole store without changing it: every record in key order, and everything that contradicts the layout.

Both functions read the keys page by page and never hold more than one page. A store that is being served changes
meanwhile, so the pages are of different revisions. The check therefore only *suspects* in its first look. Then it reads
the record and everything that its laws need again, together at one revision, and reports what still does not hold
there. So a finding is never an artefact of two reads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from metastore.api import MetadataStore
from metastore.keys import prefix_end
from metastore.txn.invariants import judge
from metastore.txn.laws.law import Finding, View
from metastore.types import Record

EVERYTHING = "/"
"""Every key of the layout begins with it. The empty prefix cannot be used, because it has no end."""

PAGE = 200


async def dump(store: MetadataStore, prefix: str = "", page: int = PAGE) -> AsyncIterator[Record]:
    """Every record whose key begins with `prefix`, in key order. Raises the store's errors."""
    start, end = prefix or EVERYTHING, prefix_end(prefix or EVERYTHING)
    while True:
        found = await store.range(start, end, limit=page)
        for record in found.records:
            yield record
        if not found.more:
            return
        start = found.records[-1].key + "\0"


class StoreCheck:
    """One check of `store`. `records` counts what has been examined so far."""

    def __init__(
        self, store: MetadataStore, page: int = PAGE, *, examined: Callable[[int], None] = lambda _: None
    ) -> None:
        """`examined` is told after each page how many records have been examined."""
        self._store = store
        self._page = page
        self._examined = examined
        self.records = 0

    async def findings(self) -> AsyncIterator[Finding]:
        """The findings, in the order of the keys that are wrong. Raises the store's errors."""
        page: list[Record] = []
        async for record in dump(self._store, page=self._page):
            page.append(record)
            if len(page) == self._page:
                async for finding in self._of_page(page):
                    yield finding
                page = []
        async for finding in self._of_page(page):
            yield finding

    async def wrong_with(self, records: list[Record]) -> list[Finding]:
        """What is wrong with these records, whenever they were read. Raises the store's errors."""
        return [finding for key in await self._suspects(records) for finding in await self._confirmed(key)]

    async def _of_page(self, page: list[Record]) -> AsyncIterator[Finding]:
        for finding in await self.wrong_with(page):
            yield finding
        self.records += len(page)
        self._examined(self.records)

    async def _suspects(self, page: list[Record]) -> list[str]:
        """The keys of the page that look wrong in reads of several revisions."""
        view = View({record.key: record for record in page})
        suspects: dict[str, bool] = {}
        undecided = page
        while undecided:
            unread: set[str] = set()
            waiting = []
            for record in undecided:
                view.begin()
                suspects[record.key] = bool(judge(record, view))
                if view.unread:
                    unread |= view.unread
                    waiting.append(record)
            if unread:
                view.add(await self._store.get_many(sorted(unread)))
            undecided = waiting
        return [record.key for record in page if suspects[record.key]]

    async def _confirmed(self, key: str) -> list[Finding]:
        """What is wrong with the record now, with everything that was needed read at one revision."""
        wanted = {key}
        while True:
            snapshot = await self._store.get_many(sorted(wanted))
            record = snapshot.records[key]
            if record is None:
                return []
            view = View(snapshot.records)
            view.begin()
            findings = judge(record, view)
            if not view.unread:
                return findings
            wanted = {key} | view.asked
