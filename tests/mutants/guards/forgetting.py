"""What is forgotten: when it may be, and where its counter continues."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_RECORDS = "metastore/txn/forgetting.py"
_BROKER = "participants/topic/forgetting.py"
_SWEEP = "coordinator/key_sweep.py"
_TOPICS = "participants/messages/topics.py"
_DEFINITIONS = "participants/subscription/definitions.py"
_KEYS = "coordinator/transaction_keys.py"
_OF_RECORDS = "tests/metastore/txn/test_forgetting.py"
_OF_BROKER = "tests/participants/broker/test_forgetting.py"
_OF_SWEEP = "tests/coordinator/test_key_sweep.py"

FORGETTING = (
    Mutant(
        "deleted-without-its-broker-having-heard-of-it",
        "5.26: a broker with local files looks for its deleted segments, also for those of which it never heard",
        _BROKER,
        "            if self._broker.storage.exclusive:\n",
        "            if self._looked_ms is None:\n",
        tests=("tests/participants/broker/test_deletion.py",),
    ),
    Mutant(
        "forgotten-without-a-number",
        "5.26: what is forgotten raises the number from which its counter continues",
        _RECORDS,
        "    elif _number(stored) < above.number:",
        "    elif False:",
        tests=(f"{_OF_RECORDS}::test_counters_go_on_above_everything_that_was_forgotten",),
    ),
    Mutant(
        "first-number-goes-back",
        "5.26: the first number never goes back",
        _RECORDS,
        "    elif _number(stored) < above.number:",
        "    else:",
        tests=(f"{_OF_RECORDS}::test_counters_go_on_above_everything_that_was_forgotten",),
    ),
    Mutant(
        "forgotten-number-is-given-out-again",
        "5.26: a counter continues above the last number that was given out",
        _RECORDS,
        "max(counter.last for counter in counters) + 1",
        "max(counter.last for counter in counters)",
        tests=(f"{_OF_RECORDS}::test_counters_go_on_above_everything_that_was_forgotten",),
    ),
    Mutant(
        "topic-begins-without-looking",
        "5.26: who creates a topic checks the first number as it was read",
        _TOPICS,
        "                batch.check(unchanged)\n",
        "",
        tests=(f"{_OF_BROKER}::test_a_topic_is_created_above_what_was_forgotten_meanwhile",),
    ),
    Mutant(
        "key-begins-without-looking",
        "5.26: who connects under a new key checks the first number as it was read",
        _KEYS,
        "                    batch.check(first.check)",
        "                    batch.check()",
        tests=(f"{_OF_SWEEP}::test_a_connection_is_above_what_was_forgotten_meanwhile",),
    ),
    Mutant(
        "subscription-forgotten-with-its-cursor",
        "5.26: a subscription is kept while a cursor of it is left",
        _BROKER,
        "        if await self._is_any_below(paths.cursors(segment, subscription)):",
        "        if False:",
        tests=(f"{_OF_BROKER}::test_a_subscription_is_kept_while_anything_of_it_is_left",),
    ),
    Mutant(
        "subscription-forgotten-with-an-acknowledgement",
        "5.26: a subscription is kept while an acknowledgement of it is left",
        _BROKER,
        'return bool(await self._store.query_index("acks-by-segment-subscription", acks, prefix_end(acks), limit=1))',
        "return False",
        tests=(f"{_OF_BROKER}::test_a_subscription_is_kept_while_anything_of_it_is_left",),
    ),
    Mutant(
        "topic-forgotten-with-a-segment",
        "5.26: a topic is kept while a segment of it is left, whose bytes another broker has",
        _BROKER,
        "of_segments = paths.segments_of_topic, paths.owners_of_topic",
        "of_segments = ()",
        tests=(f"{_OF_BROKER}::test_a_topic_is_kept_until_its_bytes_are_gone",),
    ),
    Mutant(
        "tombstone-forgotten-at-once",
        "5.26: tombstones stay as long as a request may be repeated",
        _BROKER,
        "(topic.deleted_ms or 0) <= until_ms",
        "True",
        tests=(f"{_OF_BROKER}::test_tombstones_stay_as_long_as_requests_may_be_repeated",),
    ),
    Mutant(
        "forgotten-before-everybody-knows",
        "5.26: nothing is forgotten before the cluster version allows it",
        _BROKER,
        " and self._broker.version.allows(Feature.FORGETTING):",
        ":",
        tests=(f"{_OF_BROKER}::test_nothing_is_forgotten_while_there_are_earlier_releases",),
    ),
    Mutant(
        "forgotten-subscription-stays-open",
        "5.26: a broker that finds a subscription missing treats it as dropped",
        "participants/subscription/segment_subscriptions.py",
        "current = known.as_dropped if stored is None else definition_of(known.topic, stored)",
        "current = known if stored is None else definition_of(known.topic, stored)",
        tests=(f"{_OF_BROKER}::test_a_broker_that_never_heard_of_a_drop_finds_the_subscription_missing",),
    ),
    Mutant(
        "key-forgotten-with-its-transaction",
        "5.26: a key that holds a transaction is kept",
        _SWEEP,
        "value is None or value.txn_id is not None or",
        "value is None or",
        tests=(f"{_OF_SWEEP}::test_a_key_that_holds_a_transaction_stays",),
    ),
    Mutant(
        "key-forgotten-with-its-version",
        "5.26: a key that remembers a committed version is kept",
        _SWEEP,
        " or value.last_version is not None:",
        ":",
        tests=(f"{_OF_SWEEP}::test_a_committed_version_is_never_forgotten",),
    ),
    Mutant(
        "key-forgotten-while-it-is-used",
        "5.26: a key is kept until its retention is over",
        _SWEEP,
        "return value.updated_ms <= until_ms",
        "return True",
        tests=(f"{_OF_SWEEP}::test_an_unused_key_goes_after_its_retention_and_its_epochs_go_on",),
    ),
    Mutant(
        "keys-forgotten-before-everybody-knows",
        "5.26: no key is forgotten before the cluster version allows it",
        _SWEEP,
        "if not self._version.allows(Feature.FORGETTING):",
        "if False:",
        tests=(f"{_OF_SWEEP}::test_nothing_is_forgotten_while_there_are_earlier_releases",),
    ),
    Mutant(
        "owner-forgotten-before-everybody-knows",
        "5.26: owners end as tombstones while there are processes that do not know the first number",
        "participants/topic/deletion.py",
        "if self._broker.version.allows(Feature.FORGETTING) or await",
        "if True or await",
        tests=(
            "tests/participants/broker/test_deletion.py::"
            "test_an_owner_ends_with_its_segment_and_as_a_tombstone_while_there_are_earlier_releases",
        ),
    ),
    Mutant(
        "lost-topic-taken-for-a-forgotten-one",
        "5.26: bytes of a segment above the first number belong to a topic that the store has lost",
        _RECORDS,
        "    return parts.number < (_first_of(topic) if topic is not None else _number(records[paths.FIRST_NUMBER]))",
        "    return topic is None or parts.number < _first_of(topic)",
        tests=(f"{_OF_RECORDS}::test_bytes_that_are_left_over_are_told_from_bytes_of_a_topic_that_was_lost",),
    ),
)
