"""Whole behaviours of topics and subscriptions, which the stories on every store tell."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_KEEPING = "tests/participants/every_store/test_keeping.py"
_COMPACTING = "tests/participants/every_store/test_compacting.py"
_DELIVERING = "tests/participants/every_store/test_delivering.py"
_SEEKING = "tests/participants/every_store/test_seeking.py"
_QUOTAS = "tests/participants/every_store/test_quotas.py"
_COMPACTED = f"{_COMPACTING}::test_the_latest_committed_value_of_each_key_stays_and_a_deletion_for_its_time"

STORIES = (
    Mutant(
        "dropped-an-hour-too-early",
        "6: messages are kept at least as long as the policy says",
        "participants/segment/retention.py",
        "each.age_ms + kept_ms < now_ms",
        "each.age_ms + kept_ms <= now_ms + 3_600_000",
        tests=(f"{_KEEPING}::test_messages_are_kept_as_long_as_time_or_a_subscription_or_a_reader_needs_them",),
    ),
    Mutant(
        "earliest-value-of-a-key-stays",
        "5.19: the latest visible message of each key stays",
        "participants/segment/compacting.py",
        "(frame.position.ledger, frame.position.entry, index) < latest",
        "(frame.position.ledger, frame.position.entry, index) > latest",
        tests=(_COMPACTED,),
    ),
    Mutant(
        "deletion-goes-at-once",
        "5.19: a message that deletes a key stays for its time",
        "participants/segment/compacting.py",
        "return not (deletes and frame.publish_ms < self._old_ms and",
        "return not (deletes and",
        tests=(_COMPACTED,),
    ),
    Mutant(
        "deletion-stays-for-ever",
        "5.19: a message that deletes a key goes once it is old and nothing of the key is before it",
        "participants/segment/compacting.py",
        "return not (deletes and frame",
        "return not (False and frame",
        tests=(_COMPACTED,),
    ),
    Mutant(
        "retried-without-a-pause",
        "5.10: a message that is put off is delivered when its time has come",
        "metatxn/retry_later.py",
        "properties | {RETRIES: str(made + 1)}, due)",
        "properties | {RETRIES: str(made + 1)}, None)",
        tests=(f"{_DELIVERING}::test_delivery_times_and_dead_letters_are_those_of_the_transaction",),
    ),
    Mutant(
        "dead-letter-without-its-key",
        "5.10: a dead letter is the message, with where it comes from",
        "participants/subscription/dead_letters.py",
        '"key": found.key, **body',
        '"key": None, **body',
        tests=(f"{_DELIVERING}::test_delivery_times_and_dead_letters_are_those_of_the_transaction",),
    ),
    Mutant(
        "returns-as-soon-each-time",
        "5.10: the delay of a message that returns doubles with each return",
        "participants/subscription/redelivery.py",
        "self.delay_s * 2.0 ** min(max(returns - 1, 0), 64)",
        "self.delay_s",
        tests=(f"{_DELIVERING}::test_what_is_not_acknowledged_in_time_returns_and_waits_longer_each_time",),
    ),
    Mutant(
        "topics-acknowledged-outside-the-transaction",
        "5.10: what a consumer of several topics acknowledges in a transaction counts with it",
        "metatxn/topics_consumer.py",
        "            await consumer.acknowledge(messages, txn, writer)",
        "            await consumer.acknowledge(messages, None, writer)",
        tests=(f"{_DELIVERING}::test_one_consumer_has_all_topics_of_a_pattern_and_acknowledges_them_together",),
    ),
    Mutant(
        "seek-over-pending-acknowledgements",
        "5.10: a seek names the open transactions that have acknowledged messages, and changes nothing",
        "participants/topic/seeking.py",
        "    if holders:\n        named",
        "    if False:\n        named",
        tests=(
            f"{_SEEKING}::test_a_subscription_moves_to_a_time_or_positions_and_pending_acknowledgements_are_not_lost",
        ),
    ),
    Mutant(
        "seek-to-a-revision-passes-again",
        "5.10: behind a revision no transaction of its snapshot is delivered again",
        "participants/topic/cut.py",
        "return Start(spans[0].end, tuple(spans[1:]))",
        "return Start(spans[0].end, ())",
        tests=(f"{_SEEKING}::test_behind_a_revision_each_transaction_comes_once_and_none_of_the_snapshot",),
    ),
    Mutant(
        "quota-of-somebody-else",
        "each principal has a quota of its own",
        "metatxn/service/quotas/quotas.py",
        "        meters = self._meters_of(principal or NOBODY).by_name\n        if not",
        '        meters = self._meters_of("bob").by_name\n        if not',
        tests=(f"{_QUOTAS}::test_a_principal_gets_its_quota_and_the_others_theirs",),
    ),
)
