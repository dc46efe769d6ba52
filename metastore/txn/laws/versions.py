"""No record has a form that a process of the cluster version might not know (see `metastore.versions`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from metastore.txn import paths
from metastore.txn.laws.law import Problems, View, decoded
from metastore.txn.records.operations import AckOp, OffsetOp, decode_op
from metastore.txn.records.processes import VersionRecord
from metastore.txn.records.segments import LedgerRecord, SegmentRecord
from metastore.txn.records.subscriptions import SubscriptionRecord
from metastore.txn.records.topics import TopicRecord
from metastore.txn.records.transactions import TransactionKey
from metastore.types import Record
from metastore.versions import FIRST, Feature, features_of

_LEDGER_OF_2 = ("hidden", "hidden_bytes", "form", "former", "first_offset")


def form_law(record: Record, view: View) -> Problems:
    """The law of forms. A store whose version was never recorded is not judged: no process of this release has served
    it."""
    needed = version_needed(record)
    if needed == FIRST:
        return
    known = view.decode(VersionRecord, paths.VERSION)
    if known is not None and known.version < needed:
        yield (
            f"its form needs cluster version {needed}, and that of this cluster is {known.version}",
            "Run `metatxn upgrade finalize` before any process of an earlier release reads this.",
        )


def version_needed(record: Record) -> int:
    """The lowest cluster version whose processes know the form of this record. Raises `UnreadableError`."""
    for prefix, needs in _NEEDS.items():
        if record.key.startswith(prefix):
            return max((feature.since for feature in needs(record)), default=FIRST)
    return FIRST


def _of_topic(record: Record) -> list[Feature]:
    topic = decoded(record, TopicRecord.decode)
    found: dict[Feature, object] = {
        Feature.POLICIES: topic.policy,
        Feature.REMOVAL: topic.first_segment,
        (Feature.PULSAR if topic.format == "pulsar" else Feature.KAFKA): topic.format,
        Feature.SCHEMA_VERSIONS: topic.schema_history,
    }
    return [feature for feature, value in found.items() if value is not None]


def _of_segment(record: Record) -> list[Feature]:
    segment = decoded(record, SegmentRecord.decode)
    found: dict[Feature, object] = {
        Feature.REWRITING: segment.compaction,
        Feature.REMOVAL: segment.removed_parents,
        Feature.KAFKA: segment.next_offset,
    }
    ledgers = (*segment.ledgers, *segment.trimmed)
    return [
        *(feature for feature, value in found.items() if value is not None),
        *(Feature.HIDDEN_INDEXES for ledger in ledgers if _is_of_2(ledger)),
    ]


def _is_of_2(ledger: LedgerRecord) -> bool:
    return any(getattr(ledger, field) is not None for field in _LEDGER_OF_2)


def _of_subscription(record: Record) -> list[Feature]:
    return list(features_of(decoded(record, SubscriptionRecord.decode)))


def _of_transaction_key(record: Record) -> list[Feature]:
    return [Feature.KAFKA] if decoded(record, TransactionKey.decode).last_txn_id is not None else []


def _of_operation(record: Record) -> list[Feature]:
    op = decoded(record, decode_op)
    if isinstance(op, AckOp):
        return [Feature.ACK_RUNS] if op.batch_last is not None else []
    return [Feature.KAFKA] if isinstance(op, OffsetOp) else []


def _of_cursor(record: Record) -> list[Feature]:
    return [Feature.DELIVERY_COUNTS] if record.key.endswith(f"/{paths.DELIVERY_COUNTS}") else []


_NEEDS: Mapping[str, Callable[[Record], list[Feature]]] = {
    paths.OPS: _of_operation,
    paths.OFFSETS_INDEX: lambda record: [Feature.KAFKA],
    paths.GROUPS: lambda record: [Feature.KAFKA],
    paths.GROUP_OFFSETS: lambda record: [Feature.KAFKA],
    paths.TRANSACTION_KEYS: _of_transaction_key,
    paths.POLICIES: lambda record: [Feature.POLICIES],
    paths.TOPICS: _of_topic,
    paths.SEGMENTS: _of_segment,
    paths.SUBSCRIPTIONS: _of_subscription,
    paths.CURSORS: _of_cursor,
    paths.DRAINS: lambda record: [Feature.DRAIN],
    paths.EXCLUSIVE_PRODUCERS: lambda record: [Feature.EXCLUSIVE_PRODUCERS],
    paths.READ_HOLDS: lambda record: [Feature.READ_HOLDS],
    paths.PULSAR_SCHEMAS: lambda record: [Feature.PULSAR],
    paths.FIRST_NUMBER: lambda record: [Feature.FORGETTING],
    paths.QUOTAS: lambda record: [Feature.QUOTAS],
    paths.QUOTA_USES: lambda record: [Feature.QUOTAS],
}
