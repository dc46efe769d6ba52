"""Records as they are in the metadata store, for people who want to see them without its tools."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import to_json

from coordinator import answers, paging
from metastore.api import MetadataStore
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.store import read_transaction
from metastore.types import Record
from metatxn.wire.coordinator import StoredRecord, StoredRecordPage
from metatxn.wire.ids import TxnId

PAGE_BYTES = 1 << 20
"""A page ends with the record that brings the values to more than this size."""


class StoredRecords:
    """The methods of this class only read."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def of_transaction(self, txn_id: TxnId, limit: int, page_token: str | None = None) -> StoredRecordPage:
        """The header and the records that belong to it, and then the operations. Raises TXN_NOT_FOUND,
        INVALID_ARGUMENT."""
        name = f"ops {txn_id}"
        after = paging.position_of(name, page_token)
        beside: list[Record] = []
        if not after:
            found = await read_transaction(self._store, txn_id)
            if found is None:
                raise answers.unknown_transaction(txn_id)
            records = (found.header_record, found.lease_record, found.prepared_record, found.writers_record)
            beside = [record for record in records if record is not None]
        return await self._page(name, paths.ops_of_transaction(txn_id), after, limit, beside)

    async def below(self, prefix: str, limit: int, page_token: str | None = None) -> StoredRecordPage:
        """The records whose keys begin with `prefix`, in the order of the keys. Raises INVALID_ARGUMENT."""
        name = f"records {prefix}"
        return await self._page(name, prefix, paging.position_of(name, page_token), limit)

    async def _page(
        self, name: str, prefix: str, after: str, limit: int, before: list[Record] | None = None
    ) -> StoredRecordPage:
        found = await self._store.range(f"{prefix}{after}\0" if after else prefix, prefix_end(prefix), limit=limit)
        shown: list[Record] = []
        size = 0
        for record in found.records:
            shown.append(record)
            size += len(record.value)
            if size > PAGE_BYTES:
                break
        more = found.more or len(shown) < len(found.records)
        token = paging.make_token(name, shown[-1].key.removeprefix(prefix)) if more else None
        return StoredRecordPage(items=[self._shown(each) for each in [*(before or []), *shown]], next_page_token=token)

    def _shown(self, record: Record) -> StoredRecord:
        command = self._store.command_for(record.key)
        return StoredRecord(key=record.key, value=_value(record.value), version=record.version, command=command)


def _value(stored: bytes) -> Any:
    """A value to show. Every value of ours is JSON. One that another program has written is shown as text, also if it
    is JSON that no answer can hold: half of a character, or lists that are too deep for their place in a page."""
    if not stored:
        return None
    try:
        value = json.loads(stored)
        to_json({"items": [{"value": value}]})
    except (ValueError, RecursionError):
        return stored.decode("utf-8", "replace")
    return value
