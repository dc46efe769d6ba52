"""The cluster version: which forms of records, of bytes beside ledgers, and of requests between brokers may be written
(DESIGN §12).

    1   release 0.2.0
    2   release 0.3.0: the features below

A release reads every form up to the version that it *speaks*, and writes those of the cluster version: a number in the
store, which an operator raises once every process speaks the next one (see `metastore.upgrade`). So during an upgrade
processes of two releases work beside each other, and the earlier one can be started again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

from metastore.txn.records.subscriptions import SubscriptionRecord

FIRST = 1
"""The version of a cluster without a record of it, and of processes that announce none."""
SPEAKS = 2
"""The version that this release reads and writes."""
RELEASES: Mapping[int, str] = {1: "0.2.0", 2: "0.3.0"}
"""The first release that speaks each version."""


class Feature(StrEnum):
    """A feature that needs a later version than the first, as a refusal names it."""

    HIDDEN_INDEXES = "indexes of hidden entries"
    REWRITING = "rewriting and compaction of ledgers"
    REMOVAL = "removal of trimmed segments"
    POLICIES = "policies of topics"
    SEEK = "moving a subscription"
    KEY_SHARED = "key_shared subscriptions"
    REDELIVERY_TIMES = "ack timeouts and redelivery delays"
    ISOLATION = "subscriptions that read uncommitted messages"
    KAFKA = "topics of the format kafka, and Kafka's clients"
    PULSAR = "topics of the format pulsar, and Pulsar's clients"
    BATCHES = "binary batches of messages"
    ACK_RUNS = "acknowledgements of several messages of an entry at once"
    DELIVERY_COUNTS = "counts of deliveries that outlive a broker"
    SCHEMA_VERSIONS = "versions of schemas"
    DRAIN = "draining a broker"
    SHARES = "bounds of what a consumer holds at several brokers"
    QUOTAS = "quotas of principals"
    EXCLUSIVE_PRODUCERS = "exclusive producers"
    READ_HOLDS = "read holds"
    FORGETTING = "forgotten topics, subscriptions and transaction keys"

    @property
    def since(self) -> int:
        """The lowest cluster version that has it."""
        return 2


def features_of(subscription: SubscriptionRecord) -> Iterator[Feature]:
    """The features that the definition of a subscription needs."""
    if subscription.type == "key_shared":
        yield Feature.KEY_SHARED
    if subscription.ack_timeout_ms is not None or subscription.redelivery_delay_ms is not None:
        yield Feature.REDELIVERY_TIMES
    if subscription.isolation is not None:
        yield Feature.ISOLATION
    if subscription.acked is not None:
        yield Feature.SEEK


class ClusterVersion:
    """The cluster version as this process knows it. It may be out of date, and then too low: so the process writes
    older forms for a moment, which every other one reads."""

    def __init__(self, current: int = SPEAKS) -> None:
        self.current = current

    def learn(self, version: int) -> None:
        """Take over a version that was read in the store. It never goes back, whatever order the answers come in."""
        self.current = max(self.current, version)

    def allows(self, feature: Feature) -> bool:
        """Whether its forms may be written."""
        return feature.since <= self.current


def too_new(version: int, speaks: int = SPEAKS) -> str:
    """Why a process that speaks less must not serve a store of this version."""
    return (
        f"the cluster version is {version}, and this release speaks up to {speaks}, so it cannot read everything that "
        "is in the store. Nothing was changed. Start a later release, the one that the other processes run"
    )
