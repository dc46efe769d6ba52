"""How much may be recorded about a transaction, so that it can still be ended on any store.

A decision is one apply, and a store accepts an apply of `max_batch_bytes` (ZooKeeper: 400,000). It contains the header,
with everything that was given when the transaction began and the writers that count. It also contains a reason, the
name of the caller, and the keys of index entries and side records, together shorter than `ROOM_BYTES`; and, under a
transaction key, that key's record with the sessions that it remembers, shorter than `ROOM_OF_KEY_BYTES`. A begin under
a key also contains the header of the transaction that it replaces.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import to_json

from metastore.api import MetadataStore
from metastore.txn.store import TransactionRecords
from metatxn.wire.coordinator import BeginRequest
from metatxn.wire.errors import invalid_field

ROOM_BYTES = 16 << 10
ROOM_OF_KEY_BYTES = 96 << 10


def refuse_large_properties(request: BeginRequest, store: MetadataStore) -> None:
    """Raises INVALID_ARGUMENT if the properties are larger than the header can hold until its end."""
    headers = 1 if request.transaction_key is None else 2
    allowed = _room(store, request.transaction_key) // headers
    if (size := len(to_json(request.properties))) > allowed:
        raise invalid_field("properties", f"{size} bytes of JSON are more than the {allowed} that the store accepts")


def refuse_large_list(names: Sequence[str], field: str, records: TransactionRecords, store: MetadataStore) -> None:
    """Raises INVALID_ARGUMENT for a list of writers that a commit could not store: the list and the header share one
    apply."""
    allowed = _room(store, records.header.key) - len(records.header_record.value)
    if len(to_json(names)) > allowed:
        raise invalid_field(field, f"the names of the writers together exceed the {allowed} bytes that are left")


def _room(store: MetadataStore, key: str | None) -> int:
    """The bytes of an apply that are available for headers and writers."""
    return store.max_batch_bytes - ROOM_BYTES - (0 if key is None else ROOM_OF_KEY_BYTES)
