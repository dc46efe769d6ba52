"""The policies of namespaces and of the cluster."""

from __future__ import annotations

from metastore.txn import paths
from metastore.txn.laws.law import MalformedKeyError, Problems, View, decoded, named
from metastore.txn.records.policies import PolicyRecord
from metastore.types import Record


def policy_law(record: Record, view: View) -> Problems:
    """A namespace need not have topics: its policy may come first."""
    if record.key != paths.CLUSTER_POLICY and named(record.key, paths.namespace_policy).count("/") != 1:
        raise MalformedKeyError("a namespace is named tenant/namespace")
    decoded(record, PolicyRecord.decode)
    yield from ()
