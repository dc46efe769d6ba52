"""Deleting the records of dropped subscriptions in slices. An interrupted deletion is started again."""

from __future__ import annotations

from collections.abc import Sequence

from metastore.api import MetadataStore
from metastore.keys import prefix_end
from metastore.slices import slices
from metastore.txn import paths
from metastore.txn.records.operations import AckOp, decode_op
from metastore.types import AtVersion, Batch, Record

RECORDS_PER_APPLY = 40
"""The records that are deleted at once: each is a check, a record and an index entry, so this stays below etcd's limit
of 128 operations per transaction."""
RECORDS_PER_READ = 4_000


async def delete_records(store: MetadataStore, owner: AtVersion, records: Sequence[Record]) -> None:
    """Delete these records. Raises `CheckFailed` on `owner` if this broker was deposed, and on a record if it was
    deleted by another process."""
    for some in slices(store, records, RECORDS_PER_APPLY, Batch.remove):
        batch = store.batch().check(owner)
        for record in some:
            batch.remove(record)
        await store.apply(batch)


async def delete_keys(store: MetadataStore, owner: AtVersion, start: str, end: str) -> None:
    """Delete the records of a range of keys. Raises as `delete_records`."""
    more = True
    while more:
        found = await store.range(start, end, limit=RECORDS_PER_READ)
        await delete_records(store, owner, found.records)
        more = found.more


async def delete_incarnations(
    store: MetadataStore, owner: AtVersion, segment: str, subscription: str, last: int
) -> None:
    """Delete every record on one segment of a subscription's incarnations up to `last`, which are dropped, so that none
    can be added. Raises as `delete_records`."""
    prefix = paths.acks_by_subscription(segment, subscription)
    entries = await store.query_index("acks-by-segment-subscription", prefix, prefix_end(prefix))
    for start in range(0, len(entries), RECORDS_PER_APPLY):
        keys = [paths.op_of_ack_entry(entry) for entry in entries[start : start + RECORDS_PER_APPLY]]
        found = (await store.get_many(keys)).records.values()
        await delete_records(store, owner, [record for record in found if record is not None and _is_of(record, last)])
    cursors = paths.cursors(segment, subscription)
    await delete_keys(store, owner, cursors, paths.cursor(segment, subscription, last + 1))


def _is_of(record: Record, last: int) -> bool:
    op = decode_op(record.value)
    assert isinstance(op, AckOp)
    return op.incarnation <= last
