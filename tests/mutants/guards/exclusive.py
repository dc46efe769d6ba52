"""Exclusive producers: who may append, and when a claimer is answered."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ADMISSION = "participants/segment/admission.py"
_PUBLISHING = "participants/segment/publishing.py"
_PRODUCERS = "participants/messages/exclusive_producers.py"
_CLAIMS = "participants/topic/claims.py"
_TESTS = "tests/participants/broker/test_exclusive_producers.py"
_SEVERAL = "tests/participants/broker/test_exclusive_claims.py"

EXCLUSIVE = (
    Mutant(
        "judged-before-its-intent-alone",
        "5.23: an entry is judged in the step in which its append begins",
        _PUBLISHING,
        "        self._assert_admitted(entry)\n        ledger, offsets",
        "        ledger, offsets",
        tests=(f"{_TESTS}::test_what_waits_for_its_intent_when_the_topic_is_claimed_is_refused",),
    ),
    Mutant(
        "claimed-over-what-was-begun",
        "5.23: an owner confirms a claim when every append of before has ended",
        _PUBLISHING,
        "if begun := set(self._begun):",
        "if not (begun := set(self._begun)):",
        tests=(f"{_TESTS}::test_a_claim_is_answered_when_nothing_is_under_way_that_was_begun_before",),
    ),
    Mutant(
        "confirmed-with-an-unknown-append",
        "5.23: an owner whose append has an unknown outcome does not confirm a claim",
        _PUBLISHING,
        "            await asyncio.wait(begun)\n        self._segment.assert_serving()",
        "            await asyncio.wait(begun)",
        tests=(f"{_TESTS}::test_an_append_with_an_unknown_outcome_does_not_confirm_a_claim",),
    ),
    Mutant(
        "confirmed-by-a-deposed-owner",
        "5.23: an owner confirms only what it has read while it was the owner",
        _ADMISSION,
        "if not holds(self._segment.ownership.check, found.records[owner_key]):",
        "if owner_key not in found.records:",
        tests=(f"{_SEVERAL}::test_a_deposed_owner_does_not_confirm",),
    ),
    Mutant(
        "opened-without-the-hold",
        "5.23: who opens a segment reads the hold before it serves",
        "participants/segment/recovery.py",
        "        await segment.publisher.admission.learn()  # after the ownership was taken (DESIGN §5.23)\n",
        "",
        tests=(f"{_TESTS}::test_a_segment_that_is_opened_again_knows_who_has_the_topic",),
    ),
    Mutant(
        "hold-taken-back-by-a-late-answer",
        "5.23: a read at a lower revision does not replace one at a higher one",
        _ADMISSION,
        "if found.revision >= self._revision:",
        "if found.revision:",
        tests=(f"{_TESTS}::test_a_read_that_is_overtaken_takes_nothing_back",),
    ),
    Mutant(
        "owners-are-not-told",
        "5.23: a claim is answered when every owner knows it",
        _CLAIMS,
        "        await segment.learn_producer()",
        "        assert segment",
        tests=(f"{_SEVERAL}::test_after_the_answer_no_owner_takes_what_another_one_sends",),
    ),
    Mutant(
        "answered-although-an-owner-has-not-heard",
        "5.23: a claim that an owner has not confirmed is not answered",
        _CLAIMS,
        "if isinstance(result, (MetastoreError, errors.MetatxnError)):",
        "if isinstance(result, MetastoreError):",
        tests=(f"{_SEVERAL}::test_a_claim_of_which_an_owner_has_not_heard_is_not_answered",),
    ),
    Mutant(
        "old-epoch-for-a-session-of-before",
        "5.23: a session that had the topic before gets a new epoch",
        _PRODUCERS,
        "epoch=hold.epoch + 1,",
        "epoch=hold.epoch,",
        tests=(f"{_TESTS}::test_a_late_copy_of_a_claim_does_not_let_its_program_go_on",),
    ),
    Mutant(
        "repeated-claim-fences-itself",
        "5.23: the session that has the topic gets its epoch again",
        _PRODUCERS,
        "        if hold.session == claim.session:",
        "        if hold.session == claim.session and not hold.epoch:",
        tests=(f"{_TESTS}::test_a_late_copy_of_a_claim_does_not_let_its_program_go_on",),
    ),
    Mutant(
        "taken-without-fence",
        "5.23: a claim without `fence` waits for the end of the hold",
        _PRODUCERS,
        "not (claim.fence or hold.is_over(now_ms))",
        "claim.fence",
        tests=(f"{_TESTS}::test_a_hold_ends_when_its_time_is_over_and_somebody_needs_the_topic",),
    ),
    Mutant(
        "keep-alive-of-another-epoch",
        "5.23: a keep-alive prolongs the hold of its own epoch",
        _PRODUCERS,
        "if stored is None or hold is None or not hold.held or hold.epoch != epoch:\n                raise",
        "if stored is None or hold is None or not hold.held:\n                raise",
        tests=(f"{_TESTS}::test_a_hold_ends_when_its_time_is_over_and_somebody_needs_the_topic",),
    ),
    Mutant(
        "release-of-another-epoch",
        "5.23: a release ends the hold of its own epoch",
        _PRODUCERS,
        "if stored is None or hold is None or not hold.held or hold.epoch != epoch:\n                return",
        "if stored is None or hold is None or not hold.held:\n                return",
        tests=(f"{_TESTS}::test_nobody_else_publishes_while_a_program_has_the_topic",),
    ),
    Mutant(
        "ended-before-its-time",
        "5.23: an entry without an epoch ends only a hold that is over",
        _ADMISSION,
        "or entry.epoch is not None or not hold.is_over(self._segment.clock()):",
        "or entry.epoch is not None or not hold.held:",
        tests=(f"{_TESTS}::test_nobody_else_publishes_while_a_program_has_the_topic",),
    ),
    Mutant(
        "held-behind-the-deletion-of-the-topic",
        "5.23: the hold ends in the apply that deletes the topic",
        "participants/topic/deletion.py",
        "        end_hold(batch, name, await self._store.get(paths.exclusive_producer(name)))\n",
        "",
        tests=(f"{_TESTS}::test_the_hold_ends_with_the_topic_and_its_epochs_go_on",),
    ),
    Mutant(
        "epochs-of-a-restored-store",
        "10: no epoch of an exclusive producer is given out again after a restore",
        "participants/restored/sequences.py",
        "    (paths.EXCLUSIVE_PRODUCERS, _exclusive_producer),\n",
        "",
        tests=(f"{_TESTS}::test_a_restored_store_gives_out_no_epoch_again",),
    ),
    Mutant(
        "exclusive-producer-taken-for-a-fenced-one",
        "5.23: a batch that is refused for an exclusive producer says nothing of its transaction",
        "metatxn_gateways/kafka/produce.py",
        "except errors.NotAllowed:  # the topic",
        "except errors.StorageFull:  # the topic",
        tests=(
            "tests/gateways/test_kafka_producers.py::"
            "test_a_topic_that_another_producer_has_for_itself_takes_nothing_of_kafkas_clients",
        ),
    ),
    Mutant(
        "claimed-below-its-version",
        "12: a topic is claimed once every process knows of claims",
        _PRODUCERS,
        "        await require(self._store, self._version, Feature.EXCLUSIVE_PRODUCERS)\n",
        "        assert require and Feature.EXCLUSIVE_PRODUCERS\n",
        tests=("tests/participants/broker/test_versions.py",),
    ),
)
