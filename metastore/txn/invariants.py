"""The laws of the layout (see `metastore.txn.paths`): for each kind of record, what must hold between it and others.

A law is a pure function of one record and a `View` of the store at one revision. It asks the view for other records. As
long as one of them has not been read, its verdict does not count, so the caller reads the requested records and applies
the law again. A missing record is found by the records that point to it; every pair points in both directions:

    header ↔ deadline entry │ header ↔ final-state entry │ operation ↔ its index entries │ topic ↔ segment
    lease, prepared, writers → open header │ key ↔ open header │ header → id sequence
    operation → header, segment, owner │ outcome → segment, header │ owner → segment │ parent ↔ child
    offset → group │ acknowledgement → subscription │ cursor → segment, subscription │ subscription → topic
    exclusive producer → topic │ read hold → topic, horizon │ schema → topic │ every form → cluster version

Of processes and group-commit markers only the keys are checked. The laws are in `metastore.txn.laws`.
"""

from __future__ import annotations

from metastore.txn import paths
from metastore.txn.laws.cluster import (
    by_key_only,
    drain_law,
    first_number_law,
    horizon_law,
    incarnation_law,
    sequence_law,
    version_law,
)
from metastore.txn.laws.groups import group_law, group_offset_law
from metastore.txn.laws.law import Finding, Law, MalformedKeyError, UnreadableError, View
from metastore.txn.laws.operations import op_entry, op_law
from metastore.txn.laws.policies import policy_law
from metastore.txn.laws.quotas import quota_law, quota_use_law
from metastore.txn.laws.remedies import DELETE, RESTORE
from metastore.txn.laws.segments import (
    exclusive_producer_law,
    owner_law,
    pulsar_schema_law,
    read_hold_law,
    segment_law,
    segment_state_law,
    topic_law,
)
from metastore.txn.laws.subscriptions import cursor_law, subscription_law
from metastore.txn.laws.transactions import (
    beside_open_header,
    deadline_entry_law,
    final_state_entry_law,
    header_law,
    key_law,
)
from metastore.txn.laws.versions import form_law
from metastore.txn.records.transactions import Lease, Prepared, RememberedWriters
from metastore.types import Record


def judge(record: Record, view: View) -> list[Finding]:
    """Everything that is wrong with `record`, provided that `view.unread` is empty afterwards."""
    law = next((law for prefix, law in _LAWS if record.key.startswith(prefix)), None)
    if law is None:
        action = (
            "Find out what wrote it: a newer version stores its records here; other programs need a root of their own."
        )
        return [Finding(record.key, "the key does not belong to any part of the layout", action)]
    findings: list[Finding] = []
    try:
        for each in (law, form_law):
            for problem, action in each(record, view):
                findings.append(Finding(record.key, problem, action))
    except MalformedKeyError as error:
        findings.append(Finding(record.key, f"the key is malformed: {error}", DELETE))
    except UnreadableError as error:
        if error.key == record.key:
            findings.append(Finding(record.key, f"the value cannot be read: {error}", RESTORE))
    return findings


_LAWS: tuple[tuple[str, Law], ...] = (
    (paths.HEADERS, header_law),
    (paths.LEASES, beside_open_header(Lease, paths.LEASES)),
    (paths.REMEMBERED_WRITERS, beside_open_header(RememberedWriters, paths.REMEMBERED_WRITERS)),
    (paths.PREPARED, beside_open_header(Prepared, paths.PREPARED)),
    (paths.OPS, op_law),
    (paths.TRANSACTION_KEYS, key_law),
    (paths.ID_SEQUENCES, sequence_law),
    (paths.WRITES_INDEX, op_entry(paths.WRITES_INDEX, "write", 1)),
    (paths.ACKS_INDEX, op_entry(paths.ACKS_INDEX, "ack", 2)),
    (paths.OFFSETS_INDEX, op_entry(paths.OFFSETS_INDEX, "offset", 1)),
    (paths.DEADLINE_INDEX, deadline_entry_law),
    (paths.FINAL_STATE_INDEX, final_state_entry_law),
    (paths.SEGMENT_STATES, segment_state_law),
    (paths.GROUPS, group_law),
    (paths.GROUP_OFFSETS, group_offset_law),
    (paths.TOPICS, topic_law),
    (paths.SEGMENTS, segment_law),
    (paths.SEGMENT_OWNERS, owner_law),
    (paths.EXCLUSIVE_PRODUCERS, exclusive_producer_law),
    (paths.READ_HOLDS, read_hold_law),
    (paths.PULSAR_SCHEMAS, pulsar_schema_law),
    (paths.POLICIES, policy_law),
    (paths.QUOTAS, quota_law),
    (paths.QUOTA_USES, quota_use_law),
    (paths.GC_HORIZON, horizon_law),
    (paths.FIRST_NUMBER, first_number_law),
    (paths.SUBSCRIPTIONS, subscription_law),
    (paths.CURSORS, cursor_law),
    (paths.COORDINATORS, by_key_only),
    (paths.BROKERS, by_key_only),
    (paths.DRAINS, drain_law),
    (paths.PROCESSES, by_key_only),
    (paths.INCARNATION, incarnation_law),
    (paths.VERSION, version_law),
    (paths.GROUP_COMMIT_MARKERS, by_key_only),
)
