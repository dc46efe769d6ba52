"""Brokers and their segments: what is claimed, rolled, trimmed and remembered, and who may ask."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_OPENING = "participants/segment/recovery.py"
_ROLLING = "participants/segment/rolling.py"
_SEGMENT = "participants/segment/segment.py"
_TRIMMING = "participants/segment/trimming.py"
_SNAPSHOT = "participants/segment/dedup_snapshot.py"
_TEST_BY_KEY = "tests/participants/subscription/test_key_shared.py"
_TEST_OWNERSHIP = "tests/participants/broker/test_placement.py"
_TEST_ROLLING = "tests/participants/segment/test_rolling.py"

PARTICIPANTS = (
    Mutant(
        "returned-without-the-later-ones-of-its-key",
        "5.10: a message that returns takes the later ones of its key along",
        "participants/subscription/keyed_dispatch.py",
        "        later = [place for place in self._deliveries.later(asked) if self._pending.holder(place) is None]\n",
        "        later: list[Place] = []\n",
        tests=(f"{_TEST_BY_KEY}::test_what_returns_takes_the_later_ones_of_its_key_along",),
    ),
    Mutant(
        "by-key-before-an-abort-was-heard-of",
        "5.10: what is before it under its key, and was acknowledged in an aborted transaction, returns first",
        "participants/subscription/share.py",
        "                await part.assure_order(request.txn_id, wanted)\n",
        "                pass\n",
        tests=(f"{_TEST_BY_KEY}::test_an_abort_of_which_the_broker_has_not_heard_lets_no_later_message_pass",),
    ),
    Mutant(
        "withdrawn-counts-as-returned",
        "5.10: what returns only because of an earlier message of its key does not become a dead letter for it",
        "participants/subscription/keyed_dispatch.py",
        "        self._deliveries.withdraw(later)\n",
        "",
        tests=(f"{_TEST_BY_KEY}::test_what_returns_takes_the_later_ones_of_its_key_along",),
    ),
    Mutant(
        "acknowledged-inside-although-it-returned",
        "5.10: by key, what has returned is acknowledged inside a transaction only once it was delivered again",
        "participants/subscription/keyed_deliveries.py",
        "        return any(place in self._waiting for place in self._within(span))\n",
        "        return False\n",
        tests=(f"{_TEST_BY_KEY}::test_what_returns_takes_the_later_ones_of_its_key_along",),
    ),
    Mutant(
        "keys-of-open-transactions-are-forgotten",
        "5.10: what a transaction has acknowledged holds its key, also when the segment was opened again",
        "participants/subscription/keyed_dispatch.py",
        "            self._held_before = await self._keys_held_before()\n",
        "            self._held_before = {}\n",
        tests=(
            f"{_TEST_BY_KEY}::test_what_is_acknowledged_in_an_open_transaction_holds_its_key_also_when_the_segment_is_opened_again",
        ),
    ),
    Mutant(
        "by-key-without-a-bound",
        "5.10: so many messages of a segment are read ahead by key",
        "participants/subscription/keyed_deliveries.py",
        "        return len(self._ahead) >= LOOK_AHEAD\n",
        "        return False\n",
        tests=(f"{_TEST_BY_KEY}::test_no_more_is_read_ahead_than_the_bound_allows_and_what_fills_it_is_named",),
    ),
    Mutant(
        "nobody-hears-that-a-key-is-free",
        "5.10: who waits for a key is woken when it is acknowledged",
        "participants/subscription/keyed_dispatch.py",
        "        if len(self._deliveries) < before:\n",
        "        if len(self._deliveries) < 0:\n",
        tests=(f"{_TEST_BY_KEY}::test_a_key_stays_where_it_is_until_its_messages_are_acknowledged",),
    ),
    Mutant(
        "given-up-by-a-deposed-owner",
        "5.2: an owner gives a segment up at its own generation, not at another one's",
        "participants/broker/broker.py",
        "self.store.apply(self.store.batch().check(check).put(check.key, owner.encode()))",
        "self.store.apply(self.store.batch().put(check.key, owner.encode()))",
        tests=(f"{_TEST_OWNERSHIP}::test_what_another_broker_has_taken_is_not_given_up",),
    ),
    Mutant(
        "only-the-newest-ledger-is-read",
        "5.9: sequences are recovered from the first ledger that no snapshot tells of",
        "participants/segment/recovery.py",
        "for ledger in ledgers.sealed if ledger.id > through][:1]",
        "for ledger in ledgers.sealed if ledger.id > through][-1:]",
        tests=(f"{_TEST_ROLLING}::test_an_owner_that_dies_between_two_ledgers_leaves_the_sequences_of_both",),
    ),
    Mutant(
        "unknown-ledger-is-skipped",
        "a segment with a ledger that the store does not know is not served",
        _OPENING,
        "    if unknown:\n",
        "    if unknown is None:\n",
        tests=(
            "tests/participants/segment/test_recovery.py::test_a_ledger_that_the_store_does_not_know_makes_the_segment_unavailable",
        ),
    ),
    Mutant(
        "claimed-with-an-old-generation",
        "a new owner's generation is above every ledger's number",
        _OPENING,
        "max(owner.generation if owner else 0, record.newest_ledger) + 1",
        "(owner.generation if owner else 0) + 1",
        tests=(
            "tests/participants/segment/test_rolling.py::test_ledgers_are_rolled_sealed_and_recorded_and_read_as_one",
        ),
    ),
    Mutant(
        "claimed-in-another-storage",
        "a segment is opened where its ledgers are",
        _OPENING,
        "    if elsewhere:\n",
        "    if elsewhere is None:\n",
        tests=(
            "tests/participants/segment/test_recovery.py::test_only_the_storage_that_holds_the_ledgers_may_claim_the_segment",
        ),
    ),
    Mutant(
        "snapshot-through-what-it-lacks",
        "a snapshot is through a ledger when it holds what that ledger tells",
        _OPENING,
        "if snapshot is not None and not remembers_more:",
        "if snapshot is not None:",
        tests=(
            "tests/participants/segment/test_rolling.py::test_a_snapshot_is_through_a_ledger_when_it_holds_what_that_tells",
        ),
    ),
    Mutant(
        "open-transactions-forget-their-sequences",
        "sequences of an open transaction outlive a takeover",
        _OPENING,
        "(frame.txn_id is None or frame.txn_id in operations):",
        "frame.txn_id is None:",
        tests=("tests/participants/segment/test_recovery.py::test_79_a_transaction_goes_on_with_the_new_owner",),
    ),
    Mutant(
        "used-ledger-deleted-as-planned",
        "a ledger with entries is not deleted because the store says that it was only planned",
        _ROLLING,
        "    if found.entries:\n",
        "    if found is None:\n",
        tests=("tests/participants/segment/test_recovery.py::test_a_planned_ledger_that_was_written_to_is_kept",),
    ),
    Mutant(
        "rolled-before-its-appends-end",
        "appends change over once those that were begun have ended",
        "participants/segment/publishing.py",
        "        while self._begun:\n",
        "        while False:\n",
        tests=(
            "tests/participants/segment/test_rolling.py::test_what_is_acknowledged_while_appends_change_over_is_in_the_snapshot",
        ),
    ),
    Mutant(
        "trimmed-beyond-the-horizon",
        "nothing is trimmed that readers have not been shown",
        _TRIMMING,
        "if (up_to is not None and up_to > horizon) or before",
        "if before",
        tests=("tests/participants/segment/test_trimming.py::test_a_trim_never_passes_what_readers_have_been_shown",),
    ),
    Mutant(
        "lost-trim-still-reads",
        "what a trim of unknown outcome may have taken is not read any more",
        _TRIMMING,
        '        segment.trimmed(segment.record.model_copy(update={"first_position": moved.first_position}))\n'
        "        raise\n",
        "        raise\n",
        tests=(
            "tests/participants/segment/test_trimming.py::test_a_trim_whose_answer_was_lost_may_have_happened_and_is_done_again",
        ),
    ),
    Mutant(
        "trimmed-in-the-middle-of-a-roll",
        "a ledger stays until the sequences of its frames are recorded",
        _TRIMMING,
        "if each.last is not None and up_to is not None and each.last <= up_to]",
        "if up_to is not None and (each.last or Position(each.id, -1)) <= up_to]",
        tests=(
            "tests/participants/segment/test_rolling.py::test_a_full_ledger_is_trimmed_before_its_seal_is_recorded_and_its_sequences_stay",
        ),
    ),
    Mutant(
        "deposed-owner-trims",
        "who was deposed trims nothing",
        _TRIMMING,
        "    batch = store.batch().check(segment.ownership.check, *checks)\n    if moved != record:",
        "    batch = store.batch().check(*checks)\n    if moved != record:",
        tests=("tests/participants/segment/test_trimming.py::test_a_deposed_owner_trims_nothing",),
    ),
    Mutant(
        "part-of-a-snapshot-is-missing",
        "a segment whose snapshot has lost a part is not served",
        _SNAPSHOT,
        '            raise SnapshotMissing(f"segment {segment} cannot recognize retries: {key} is missing")',
        "            continue",
        tests=(
            "tests/participants/segment/test_rolling.py::test_a_segment_that_has_lost_a_part_of_its_snapshot_is_not_served",
        ),
    ),
    Mutant(
        "snapshot-that-counts-is-deleted",
        "only snapshots that count no more are deleted",
        _SNAPSHOT,
        "if kept is None or not record.key.startswith(kept)]",
        "if kept is None or record.key]",
        tests=(
            "tests/participants/segment/test_rolling.py::test_sequences_are_remembered_across_ledgers_and_a_restart_reads_only_the_last",
        ),
    ),
    Mutant(
        "deposed-owner-cleans-up",
        "who was deposed deletes no operations",
        "participants/txn/materializer.py",
        "batch = store.batch().check(ownership)",
        "batch = store.batch()",
        tests=("tests/participants/segment/test_intents.py::test_a_deposed_owner_materializes_nothing",),
    ),
    Mutant(
        "deposed-owner-cleans-up-with-others",
        "who was deposed deletes no operations, together with other segments either",
        "participants/txn/shared_materializing.py",
        "batch = self._store.batch().check(*dict.fromkeys(request.ownership for request in portion))",
        "batch = self._store.batch()",
        tests=("tests/participants/txn/test_shared_materializing.py",),
    ),
    Mutant(
        "outcome-left-out-of-a-shared-apply",
        "what must be hidden is durable before the operations of an apply of many segments go",
        "participants/txn/shared_materializing.py",
        "        if self.outcome is not None:\n            batch.create",
        "        if self.outcome is not None and not self.operations:\n            batch.create",
        tests=("tests/participants/txn/test_shared_materializing.py",),
    ),
    Mutant(
        "writers-beside-deletions",
        "what nearly fills an apply is written by one of its own",
        "participants/txn/materializer.py",
        "deleted = deleted if len(value) <= TOGETHER_BYTES else []",
        "pass",
        tests=("tests/participants/txn/test_materializer.py",),
    ),
    Mutant(
        "unknown-intent-is-forgotten",
        "an operation that may have landed is cleaned up after the decision",
        "participants/segment/publishing.py",
        "self._drop_intent(transaction, intent, maybe_stored=not definite)",
        "self._drop_intent(transaction, intent, maybe_stored=False)",
        tests=(
            "tests/participants/segment/test_intents.py::test_an_unknown_intent_pins_nothing_and_is_cleaned_up_after_the_decision",
        ),
    ),
    Mutant(
        "frozen-owner-shows-its-old-end",
        "on a shared storage an owner looks whether it still is one before it says where the end is",
        "participants/segment/reading.py",
        "if owner is None or owner.version != self._segment.ownership.check.version:",
        "if owner is None:",
        tests=("tests/participants/broker/test_placement.py::test_each_way_in_which_a_frozen_owner_finds_out",),
    ),
    Mutant(
        "decisions-unbounded",
        "so many final headers are remembered and no more",
        "participants/txn/header_mirror.py",
        "if len(self._decided) > KEPT_DECISIONS:",
        "if len(self._decided) < 0:",
        tests=("tests/participants/txn/test_header_mirror.py::test_a_forgotten_decision_is_read_from_the_store",),
    ),
    Mutant(
        "closed-segment-follows-on",
        "a segment that was closed follows nothing: the mirror would keep it for ever",
        "participants/txn/header_mirror.py",
        "        if not self._closed:\n",
        "        if self._mirror:\n",
        tests=("tests/participants/txn/test_header_mirror.py::test_a_segment_that_was_closed_follows_nothing",),
    ),
    Mutant(
        "write-into-anothers-transaction",
        "a transaction takes the writes of its owner",
        "participants/api/rights.py",
        "if not caller.owns(header.owner):",
        "if caller.name is None:",
        tests=("tests/participants/test_security.py::test_b14_a_write_into_a_transaction_of_another_is_refused",),
    ),
    Mutant(
        "foreseen-id-is-written-to",
        "a transaction that nobody has begun takes nothing, whoever foresees its id",
        "participants/api/rights.py",
        "    if header is None:\n        raise refusal(txn_id, None)\n",
        "    if header is None:\n        return\n",
        tests=("tests/participants/test_security.py::test_b14_an_id_that_was_foreseen_is_of_no_use",),
    ),
    Mutant(
        "mark-over-what-another-one-holds",
        "a message below another transaction's cumulative acknowledgement is pending",
        "participants/subscription/memory_pending_acks.py",
        "if cumulative is not None and span.start < cumulative and self._cumulative_holder != txn_id:",
        "if cumulative is not None and self._cumulative_holder is None:",
        tests=(
            "tests/participants/subscription/test_pending_acks.py::test_a_cumulative_ack_over_what_another_transaction_holds_conflicts_and_the_other_way_round",
        ),
    ),
    Mutant(
        "outstanding-unbounded",
        "so many messages are given out and not settled, and no more",
        "participants/subscription/deliveries.py",
        "return len(self._outstanding) >= MAX_OUTSTANDING",
        "return False",
        tests=("tests/participants/subscription/test_delivery.py::test_no_more_is_given_out_than_memory_allows",),
    ),
    Mutant(
        "redelivered-for-ever",
        "a message that was given too often goes to the dead letters",
        "participants/subscription/deliveries.py",
        "if self._max_redeliveries is not None and counted > self._max_redeliveries:",
        "if self._max_redeliveries == -1:",
        tests=(
            "tests/participants/subscription/test_delivery.py::test_what_is_dead_goes_to_the_dead_letter_topic_once_and_is_acknowledged",
        ),
    ),
    Mutant(
        "deposed-cursor-is-written",
        "who was deposed, or whose subscription was dropped, writes no cursor",
        "participants/subscription/cursor_store.py",
        "batch = self._store.batch().check(*self._guards)\n            for key",
        "batch = self._store.batch()\n            for key",
        tests=(
            "tests/participants/subscription/test_individual_acks.py::test_a_deposed_broker_can_acknowledge_nothing",
        ),
    ),
    Mutant(
        "acknowledged-before-it-is-shown",
        "a place is acknowledged up to where readers have been shown something",
        "participants/subscription/segment_subscription.py",
        "if place > self.segment.buffer.max_read_position:",
        "if place > self.segment.buffer.last_durable:",
        tests=(
            "tests/participants/subscription/test_cumulative_acks.py::test_nothing_is_acknowledged_that_readers_were_not_shown",
        ),
    ),
    Mutant(
        "unanswered-owner-is-definite",
        "a write to another broker that has no answer is an unknown outcome",
        "participants/broker/peers.py",
        "    if reads:\n        return _unavailable(what, reason)\n",
        "    if what:\n        return _unavailable(what, reason)\n",
        tests=(
            "tests/participants/subscription/test_spread.py::test_an_acknowledgement_whose_answer_was_lost_between_brokers_is_unknown",
        ),
    ),
    Mutant(
        "sequences-unbounded",
        "so many sequences are remembered of all producers together",
        "participants/segment/dedup.py",
        "while self._remembered > REMEMBERED_IN_ALL:",
        "while self._remembered < 0:",
        tests=(
            "tests/participants/segment/test_deduplication.py::test_outside_of_transactions_the_last_sequences_are_remembered_and_no_more",
        ),
    ),
    Mutant(
        "cumulative-on-a-shared-subscription",
        "nobody acknowledges what other consumers have",
        "participants/subscription/share.py",
        'if part.definition.record.type in ("shared", "key_shared"):',
        'if part.definition.record.type == "none":',
        tests=(
            "tests/participants/subscription/test_cumulative_acks.py::test_a_shared_subscription_refuses_one_that_covers_what_another_consumer_has",
        ),
    ),
    Mutant(
        "no-turns-in-between",
        "a large entry is worked through in turns with everybody else",
        "participants/messages/pieces.py",
        "        await asyncio.sleep(0)\n",
        "",
        tests=("tests/participants/broker/test_large_entries.py",),
    ),
    Mutant(
        "pieces-without-a-bound",
        "a piece of a large entry is bounded by count",
        "participants/messages/pieces.py",
        "if ended or items >= PIECE_ITEMS or end",
        "if ended or end",
        tests=("tests/participants/broker/test_large_entries.py",),
    ),
    Mutant(
        "seek-does-not-ask-for-holders",
        "5.10: a seek takes no acknowledgement from an open transaction unless that is aborted",
        "participants/topic/subscriptions.py",
        "        if not force:\n            refuse(known, holders)\n",
        "",
        tests=(
            "tests/participants/subscription/test_seek.py::test_open_transactions_that_have_acknowledged_are_named_or_aborted",
        ),
    ),
    Mutant(
        "seek-keeps-the-incarnation",
        "5.10: what was acknowledged before a seek belongs to an earlier incarnation",
        "participants/subscription/definitions.py",
        'update={"incarnation": found.record.incarnation + 1, "starts": places or None}',
        'update={"incarnation": found.record.incarnation, "starts": places or None}',
        tests=(
            "tests/participants/subscription/test_seek.py::test_everything_before_the_place_is_acknowledged_and_nothing_after",
        ),
    ),
    Mutant(
        "time-found-in-the-first-ledger",
        "a time is looked for in every ledger",
        "participants/segment/reading.py",
        "if first >= end or await self._published_ms(ledger, end - 1) < at_ms:",
        "if first >= end:",
        tests=(
            "tests/participants/subscription/test_seek.py::test_a_time_begins_with_the_first_entry_that_was_published_then_or_later",
        ),
    ),
    Mutant(
        "ended-incarnation-is-not-found",
        "a request of an incarnation that a seek has ended can be repeated with the next one",
        "participants/subscription/definitions.py",
        "if current is None or current.deleted:",
        "if True:",
        tests=(
            "tests/participants/subscription/test_spread.py::test_brokers_that_have_not_heard_of_a_seek_take_acknowledgements_after_it",
        ),
    ),
    Mutant(
        "home-does-not-look-for-a-later-incarnation",
        "a subscription that has moved is not said to be gone",
        "participants/topic/subscription.py",
        "why = await Definitions(self._broker.store).reason(self.definition, error)",
        "why = error",
        tests=(
            "tests/participants/subscription/test_spread.py::test_a_seek_whose_answer_was_lost_hides_no_subscription",
        ),
    ),
    Mutant(
        "failed-deletion-is-forgotten",
        "5.7: a deletion that fails is finished although nobody repeats the request",
        "participants/topic/layout.py",
        "            await self.deletion.finish_begun()\n",
        "",
        tests=(
            "tests/participants/broker/test_deletion.py::test_a_deletion_that_fails_is_finished_although_nobody_asks_again",
        ),
    ),
    Mutant(
        "force-without-the-right",
        "aborting the transactions of others needs the right admin",
        "participants/api/subscription_routes.py",
        '        if request.force:\n            caller.require("admin", topic)\n',
        "",
        tests=("tests/participants/api/test_subscription_rights.py",),
    ),
)
