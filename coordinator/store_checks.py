"""The metadata store looked through step by step: what it holds, and what contradicts the layout.

Nothing is remembered between two steps. A caller that wants to know about the whole store goes on until there is no
page left, and adds up. So the work of a request has an end, and nothing goes on in the coordinator for a caller that
has left.
"""

from __future__ import annotations

from coordinator import paging
from metastore.api import MetadataStore
from metastore.check import EVERYTHING, StoreCheck
from metastore.keys import prefix_end
from metastore.types import Record
from metatxn.wire.coordinator import CheckedRecords, StoreCheckPage, StoreFinding, key_prefix

STEP_BYTES = 1 << 20
"""A step ends with the record that brings the values to more than this size."""
_LIST = "check"


class StoreChecks:
    """The methods of this class only read."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def step(self, limit: int, page_token: str | None = None) -> StoreCheckPage:
        """Examine the next records, in the order of their keys. Raises INVALID_ARGUMENT and the store's errors."""
        after = paging.position_of(_LIST, page_token)
        start = f"{after}\0" if after else EVERYTHING
        found = await self._store.range(start, prefix_end(EVERYTHING), limit=limit)
        records = _fitting(found.records)
        more = found.more or len(records) < len(found.records)
        checked: dict[str, CheckedRecords] = {}
        for record in records:
            of = checked.setdefault(prefix := key_prefix(record.key), CheckedRecords(prefix=prefix))
            of.records += 1
            of.bytes += len(record.key.encode()) + len(record.value)
        for each in await StoreCheck(self._store).wrong_with(records):
            finding = StoreFinding(key=each.key, problem=each.problem, action=each.action)
            checked[key_prefix(each.key)].findings.append(finding)
        token = paging.make_token(_LIST, records[-1].key) if more else None
        return StoreCheckPage(items=[*checked.values()], next_page_token=token)


def _fitting(found: list[Record]) -> list[Record]:
    size = 0
    for count, record in enumerate(found, 1):
        size += len(record.value)
        if size > STEP_BYTES:
            return found[:count]
    return found
