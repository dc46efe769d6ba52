"""The quotas of principals, and what processes tell of their use."""

from __future__ import annotations

from metastore.txn import paths
from metastore.txn.laws.law import Problems, View, decoded, named
from metastore.txn.records.quotas import QuotaRecord, QuotaUseRecord
from metastore.types import Record


def quota_law(record: Record, view: View) -> Problems:
    """A principal need not have a token: its quota may come first."""
    if record.key != paths.DEFAULT_QUOTA:
        named(record.key, paths.quota_of_principal)
    decoded(record, QuotaRecord.decode)
    yield from ()


def quota_use_law(record: Record, view: View) -> Problems:
    """Its process may have ended: another one deletes the record after a minute."""
    named(record.key, paths.quota_use)
    decoded(record, QuotaUseRecord.decode)
    yield from ()
