"""The table of records in docs/design.md has the fields that the records have.

Method: what stands in braces in a row is compared with the class; a `?` marks a field that may be absent.
"""

from __future__ import annotations

import re

import pytest
from pydantic import BaseModel

from metastore.txn import paths
from metastore.txn.records import (
    groups,
    operations,
    policies,
    processes,
    quotas,
    segments,
    subscriptions,
    topics,
    transactions,
)
from tests.citations import DESIGN

ROWS: dict[str, tuple[type[BaseModel], ...]] = {
    f"{paths.HEADERS}<txnId>": (transactions.Header,),
    f"{paths.LEASES}<txnId>": (transactions.Lease,),
    f"{paths.PREPARED}<txnId>": (transactions.Prepared,),
    f"{paths.OPS}<txnId>/<seq>": (operations.WriteOp, operations.AckOp, operations.OffsetOp),
    f"{paths.TRANSACTION_KEYS}<owner>&<key>": (transactions.TransactionKey,),
    f"{paths.SEGMENT_STATES}<segment>/outcome/<txnId>": (operations.Outcome,),
    f"{paths.TOPICS}<name>": (topics.TopicRecord, topics.SchemaHistory, topics.FormerSchema),
    f"{paths.EXCLUSIVE_PRODUCERS}<topic>": (topics.ExclusiveProducerRecord,),
    f"{paths.READ_HOLDS}<topic>/<hold>": (topics.ReadHoldRecord,),
    f"{paths.PULSAR_SCHEMAS}<topic>/<version>": (topics.PulsarSchemaRecord,),
    f"{paths.SEGMENTS}<id>": (
        segments.SegmentRecord,
        segments.LedgerRecord,
        segments.DedupSnapshot,
        segments.MergeClaim,
        segments.Compaction,
    ),
    f"{paths.SEGMENT_OWNERS}<id>": (segments.OwnerRecord,),
    paths.CLUSTER_POLICY: (policies.PolicyRecord,),
    f"{paths.NAMESPACE_POLICIES}<tenant/namespace>": (policies.PolicyRecord,),
    paths.DEFAULT_QUOTA: (quotas.QuotaRecord,),
    f"{paths.PRINCIPAL_QUOTAS}<name>": (quotas.QuotaRecord,),
    f"{paths.QUOTA_USES}<process>": (quotas.QuotaUseRecord, quotas.PrincipalUse),
    f"{paths.SUBSCRIPTIONS}<topic>/<subscription>": (subscriptions.SubscriptionRecord,),
    f"{paths.CURSORS}<segment>/<subscription>/<incarnation>/mark-delete": (subscriptions.MarkDelete,),
    f"{paths.CURSORS}<segment>/<subscription>/<incarnation>/acked/<bucket>": (subscriptions.AckedBucket,),
    f"{paths.CURSORS}<segment>/<subscription>/<incarnation>/deliveries": (subscriptions.DeliveryCountsRecord,),
    f"{paths.GROUPS}<group>": (groups.GroupRecord,),
    f"{paths.GROUP_OFFSETS}<group>/<segment>": (groups.CommittedOffset,),
    f"{paths.COORDINATORS}<id>": (processes.CoordinatorRecord,),
    f"{paths.BROKERS}<id>": (processes.BrokerRecord,),
    f"{paths.DRAINS}<storage>": (processes.DrainRecord,),
    f"{paths.PROCESSES}<id>": (processes.ProcessRecord,),
    paths.INCARNATION: (processes.Incarnation,),
    paths.VERSION: (processes.VersionRecord,),
    paths.GC_HORIZON: (transactions.GcHorizon,),
}


def drawn(page: str, key: str) -> list[set[str]]:
    """The fields of each value in the row of a key."""
    (row,) = re.findall(rf"^\| `{re.escape(key)}` \| (.*) \|$", page, re.MULTILINE)
    values = re.findall(r"\{([^}]*)\}", row)
    return [{re.sub(r":.*", "", field.strip()) for field in value.split(",")} for value in values]


def fields(model: type[BaseModel]) -> set[str]:
    infos = model.model_fields.items()
    return {name if info.is_required() or info.default is not None else f"{name}?" for name, info in infos}


@pytest.mark.parametrize("key", ROWS)
def test_the_table_has_the_fields_of_the_records(key: str) -> None:
    assert drawn(DESIGN.read_text(), key) == [fields(model) for model in ROWS[key]]


def test_every_prefix_of_the_layout_is_in_the_table() -> None:
    page = DESIGN.read_text()
    prefixes = [value for name, value in vars(paths).items() if name.isupper() and str(value).startswith("/")]
    assert len(prefixes) > 15
    assert [prefix for prefix in prefixes if f"| `{prefix}" not in page] == []


def test_a_field_that_is_missing_is_noticed() -> None:
    page = "| `/txn-lease/<txnId>` | `{deadline_ms, more?}` | A lease. |"
    assert drawn(page, "/txn-lease/<txnId>") == [{"deadline_ms", "more?"}]
    assert fields(transactions.GcHorizon) == {"revision", "finalized_ms?"}
