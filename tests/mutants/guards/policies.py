"""Policies of topics: what they keep."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

_RETENTION = "participants/segment/retention.py"
_TESTS = "tests/participants/broker/test_retention.py"
_BACKLOG = "participants/topic/backlog.py"
_BACKLOGS = "tests/participants/broker/test_backlog.py"
_TTL = "tests/participants/broker/test_ttl.py"
_UNACKED = "tests/participants/subscription/test_max_unacked.py"
_WATERMARK = "tests/participants/segment/test_watermark.py"

POLICIES = (
    Mutant(
        "dropped-beyond-the-horizon",
        "6: no ledger goes that an open transaction may still show",
        _RETENTION,
        "end is None or end > horizon:",
        "end is None:",
        tests=(f"{_TESTS}::test_nothing_goes_beyond_the_first_entry_of_an_open_transaction",),
    ),
    Mutant(
        "dropped-before-it-is-acknowledged",
        "6: nothing goes that a subscription has not acknowledged",
        _RETENTION,
        "acknowledged = None if hard or segment.attached is None else",
        "acknowledged = None if not hard or segment.attached is None else",
        tests=(f"{_TESTS}::test_what_a_subscription_has_not_acknowledged_stays_unless_retention_is_hard",),
    ),
    Mutant(
        "dropped-by-an-earlier-policy",
        "6: a trim checks the records that the policy was read from",
        "participants/segment/trimming.py",
        ".check(segment.ownership.check, *checks)",
        ".check(segment.ownership.check)",
        tests=(f"{_TESTS}::test_what_begins_to_keep_messages_in_the_middle_of_a_pass_keeps_them",),
    ),
    Mutant(
        "subscribed-unnoticed",
        "6: creating a subscription writes the topic's record, so that a trim notices it",
        "participants/subscription/definitions.py",
        """            batch = self._store.batch().replace(topic_record, topic_record.value)
            if known is not None and before""",
        """            batch = self._store.batch().check(AtVersion(topic_record.key, topic_record.version))
            if known is not None and before""",
        tests=(f"{_TESTS}::test_what_begins_to_keep_messages_in_the_middle_of_a_pass_keeps_them",),
    ),
    Mutant(
        "subscription-that-is-not-open-does-not-count",
        "6: what subscriptions have acknowledged is read from the store",
        "participants/subscription/segment_subscriptions.py",
        "            if not each.record.deleted\n        }",
        "            if not each.record.deleted and each.name in self._open\n        }",
        tests=(f"{_TESTS}::test_a_subscription_that_is_not_open_here_yet_counts",),
    ),
    Mutant(
        "one-ledger-too-many",
        "6: at least `retention_bytes` are kept",
        _RETENTION,
        "        if left < kept_bytes:\n            return\n        yield each",
        "        yield each\n        if left < kept_bytes:\n            return",
        tests=(f"{_TESTS}::test_the_oldest_ledgers_of_all_segments_go_first",),
    ),
    Mutant(
        "holds-more-than-it-may",
        "6: a consumer holds no more messages of a broker than it may",
        "participants/subscription/share.py",
        "        limit = min(wanted.limit, may_hold)\n",
        "        limit = wanted.limit\n",
        tests=(f"{_UNACKED}::test_a_consumer_gets_no_more_than_it_may_hold_and_is_shown",),
    ),
    Mutant(
        "holds-as-many-of-each-broker",
        "6: what a consumer holds at other brokers counts",
        "participants/topic/subscription.py",
        "most_held - self._held_beside(session, share, shares),",
        "most_held,",
        tests=(f"{_UNACKED}::test_it_holds_over_all_brokers_of_a_topic",),
    ),
    Mutant(
        "expires-what-an-open-transaction-has",
        "6: what an open transaction has acknowledged does not expire",
        "participants/subscription/segment_subscription.py",
        "        end = min([end, *(span.start for each in self.pending for span in each.spans())])\n",
        "",
        tests=(f"{_TTL}::test_what_an_open_transaction_has_acknowledged_does_not_expire",),
    ),
    Mutant(
        "expired-in-memory-only",
        "6: what has expired is durable",
        "participants/subscription/segment_subscription.py",
        "        await self.acknowledge(())\n",
        "",
        tests=(f"{_TTL}::test_retention_drops_what_has_expired",),
    ),
    Mutant(
        "expires-what-is-not-visible-yet",
        "6: nothing expires that readers could not see",
        "participants/subscription/segment_subscriptions.py",
        "await subscription.expire(min(Place.at(first), end))",
        "await subscription.expire(Place.at(first))",
        tests=(f"{_TTL}::test_nothing_expires_that_is_after_an_open_transaction",),
    ),
    Mutant(
        "held-after-the-intent",
        "6: a message for a topic with too large a backlog is refused before its intent",
        "participants/segment/publishing.py",
        "        if self.hold is not None:\n",
        "        if self.hold is not None and entry.txn_id is None:\n",
        tests=(f"{_BACKLOGS}::test_a_producer_is_held_before_it_writes_anything_until_consumers_have_caught_up",),
    ),
    Mutant(
        "held-for-ever",
        "6: a hold ends with the policy",
        _BACKLOG,
        "    for segment in segments:\n        segment.publisher.hold = None\n",
        "    for segment in segments[:0]:\n        segment.publisher.hold = None\n",
        tests=(f"{_BACKLOGS}::test_a_hold_is_found_again_and_ends_with_its_policy_or_its_subscription",),
    ),
    Mutant(
        "backlog-of-one-segment",
        "6: a backlog is that of the whole topic",
        _BACKLOG,
        "            segment.publisher.hold = held\n",
        "            segment.publisher.hold = held if segment is segments[0] else None\n",
        tests=(f"{_BACKLOGS}::test_a_backlog_in_one_segment_holds_all_of_the_topic",),
    ),
    Mutant(
        "hidden-backlog-is-never-passed",
        "6: what a consumer has passed over is no backlog",
        _BACKLOG,
        "                await segment.attached.settle()\n",
        "                pass\n",
        tests=(f"{_BACKLOGS}::test_what_is_too_old_holds_producers_up_and_what_is_aborted_does_not",),
    ),
    Mutant(
        "evicts-more-than-it-has-to",
        "6: only so much is evicted that the rest is within the bound",
        _BACKLOG,
        "        left -= each.size_bytes\n",
        "        pass\n",
        tests=(f"{_BACKLOGS}::test_who_evicts_takes_the_oldest_ledgers_of_the_whole_topic",),
    ),
    Mutant(
        "age-of-a-crashed-ledger-unknown",
        "6: the age of what is waiting is learned of ledgers that a crash has sealed",
        "participants/topic/retention.py",
        "                await learn_facts(segment, self._broker.store)\n            if serving:\n",
        "                pass\n            if serving:\n",
        tests=(f"{_BACKLOGS}::test_the_age_of_a_ledger_that_a_crash_has_sealed_counts",),
    ),
    Mutant(
        "refused-above-the-watermark-after-the-intent",
        "6: a message that the disk has no room for is refused before its intent",
        "participants/segment/publishing.py",
        "        self._assert_room(entry)\n        publish =",
        "        publish =",
        others=(
            Edit(
                "participants/segment/publishing.py",
                "            if previous is not None:\n                await asyncio.shield(previous)\n",
                "            self._assert_room(entry)\n",
            ),
        ),
        tests=(f"{_WATERMARK}::test_a_refused_publish_of_a_transaction_leaves_no_intent",),
    ),
    Mutant(
        "what-was-admitted-does-not-count",
        "6: what was published since the disk was measured counts as written",
        "participants/ledger/watermark.py",
        "        self._admitted += size\n",
        "",
        tests=(f"{_WATERMARK}::test_what_was_admitted_since_the_last_measurement_counts",),
    ),
    Mutant(
        "retry-refused-above-the-watermark",
        "6: a retry of what was appended is answered, however full the disk",
        "participants/segment/publishing.py",
        "        scope = Scope(entry.txn_id, entry.writer, entry.producer)\n        if entry.behind is not None:\n",
        "        scope = Scope(entry.txn_id, entry.writer, entry.producer)\n        self._assert_room(entry)\n"
        "        if entry.behind is not None:\n",
        tests=(f"{_WATERMARK}::test_a_retry_of_what_was_appended_is_answered",),
    ),
)
