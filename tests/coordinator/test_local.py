"""A process that is no coordinator decides transactions, and its registry shows only what tells of decisions."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from coordinator.local import SHOWN, local_commits
from coordinator.transactions import Transactions
from metastore.api import MetadataStore
from tests.coordinator.conftest import FakeClock


async def test_171_it_commits_what_a_coordinator_has_begun(
    store: MetadataStore, clock: FakeClock, transactions: Transactions
) -> None:
    registry = CollectorRegistry()
    local = local_commits(store, clock, registry)
    txn_id = (await transactions.begin()).txn_id
    assert (await local.commit(txn_id)).state == "COMMITTED"
    assert registry.get_sample_value("metatxn_transactions_ended_total", {"result": "committed"}) == 1
    assert local.counts() == {"transactions_begun": 0, "transactions_committed": 1, "transactions_aborted": 0}
    assert {metric.name for metric in registry.collect()} == SHOWN
    assert b"metatxn_transaction_duration_seconds_bucket" in generate_latest(registry)
