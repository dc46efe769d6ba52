"""Makes a decision durable on one segment, and then deletes the operation records of the segment (DESIGN §5.5-7).

The outcome record is written before or together with the first deletions, never after them. The operation records are
found by a range read that begins *after* the decision was seen: none can be added later, because each one is created
under the check that the header is open. Any step may crash or be repeated, because the header and the remaining records
still contain everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from metastore.api import MetadataStore
from metastore.errors import CheckFailed
from metastore.keys import prefix_end
from metastore.slices import slices
from metastore.txn import paths
from metastore.txn.records.operations import Outcome
from metastore.types import AtVersion, Batch, Record
from metatxn.wire.ids import TxnId

OPS_PER_APPLY = 40
"""Each deletion is a check, a record and an index entry, so this stays below etcd's limit of 128 operations per
transaction."""
TOGETHER_BYTES = 64 << 10
"""A larger outcome is written by an apply of its own: it may list nearly as many writers as an apply may have bytes
(`coordinator/capacity.py`), and deletions beside it would exceed that."""
OPS_PER_READ = 4_000
"""The operations of one read, much larger than `OPS_PER_APPLY`: on ZooKeeper a read after each deletion would list the
whole directory again."""


async def materialize(
    store: MetadataStore, segment: str, ownership: AtVersion, txn_id: TxnId, outcome: Outcome | None
) -> None:
    """Materialize a decision. Raises `CheckFailed` on `ownership` if this broker was deposed, and the store's errors,
    after which the call can be repeated."""
    prefix = paths.write_ops_of_segment(txn_id, segment)
    records: list[Record] = []
    more = True
    while True:
        if more and not records:
            found = await store.range(prefix, prefix_end(prefix), limit=OPS_PER_READ)
            records, more = found.records, found.more
        if not records:
            return  # the outcome was stored before the last of them went
        batch = store.batch().check(ownership)
        deleted: Sequence[Record] = next(slices(store, records, OPS_PER_APPLY, Batch.remove), [])
        if outcome is not None:
            value = outcome.encode()
            batch.create(paths.outcome(segment, txn_id), value)
            if len(value) > TOGETHER_BYTES:
                # A late copy of this request must not store it again when it is obsolete, so it needs an operation.
                deleted = []
                batch.check(AtVersion(records[0].key, records[0].version))
        for record in deleted:
            batch.remove(record)
        try:
            await store.apply(batch)
        except CheckFailed as lost:
            if lost.check == ownership:
                raise
            if outcome is not None and lost.check == batch.checks[1]:
                outcome = None
            records, more = [], True
            continue
        records = records[len(deleted) :]
        if not records and not more:
            return
        outcome = None
