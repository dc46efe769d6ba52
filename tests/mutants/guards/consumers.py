"""Consumers: what they are given, when, how often, and what becomes of what they do not take."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_COUNTS = "participants/subscription/delivery_counts.py"
_DELIVERIES = "participants/subscription/deliveries.py"
_DISPATCH = "participants/subscription/dispatch.py"
_TEST_GIVING_UP = "tests/participants/subscription/test_giving_up.py"
_TEST_RIGHTS = "tests/participants/api/test_subscription_rights.py"
_TEST_COUNTS = "tests/participants/subscription/test_delivery_counts.py"

CONSUMERS = (
    Mutant(
        "delivered-before-it-is-counted",
        "5.10: a delivery is stored before it takes place",
        _DISPATCH,
        "            try:\n                await self._until_stored()\n",
        "            try:\n                pass\n",
        tests=(f"{_TEST_COUNTS}::test_what_cannot_be_counted_is_not_delivered",),
    ),
    Mutant(
        "delivered-before-it-is-announced",
        "5.10: a first delivery is behind a `through` that is stored, not only in memory",
        _COUNTS,
        "        return Place.behind(position) <= self.stored_through\n",
        "        return Place.behind(position) <= self.through\n",
        tests=(f"{_TEST_COUNTS}::test_what_cannot_be_counted_is_not_delivered",),
    ),
    Mutant(
        "announced-counts-as-delivered",
        "5.10: what was announced and perhaps delivered is not given up for it",
        _COUNTS,
        "        return self._earlier[at].times if at >= 0 and place < self._earlier[at].end else 0\n",
        "        return self._earlier[at].times if at >= 0 and place < self._earlier[at].end else 1\n",
        tests=(f"{_TEST_COUNTS}::test_nothing_is_given_up_that_was_never_delivered",),
    ),
    Mutant(
        "counts-of-earlier-owners-are-forgotten",
        "5.10: what was not read again yet keeps its count",
        _COUNTS,
        "for each in [*counts, *left] if each.times]\n",
        "for each in counts if each.times]\n",
        tests=(f"{_TEST_COUNTS}::test_the_highest_counts_are_kept_and_what_was_not_read_again_yet",),
    ),
    Mutant(
        "perhaps-delivered-is-not-counted",
        "5.10: each delivery of what an earlier owner has perhaps delivered is counted, the first one too",
        _DISPATCH,
        "self._stored_counts is not None and self._stored_counts.perhaps_given(place.position)\n",
        "False\n",
        tests=(f"{_TEST_COUNTS}::test_121_a_message_that_kills_every_broker_is_given_up",),
    ),
    Mutant(
        "withdrawn-still-counts-after-a-crash",
        "5.10: that a return does not count is stored, too",
        "participants/subscription/keyed_dispatch.py",
        "        if later:\n            self.recount()\n",
        "",
        tests=(f"{_TEST_COUNTS}::test_what_was_counted_and_then_withdrawn_does_not_count_after_a_crash",),
    ),
    Mutant(
        "count-without-an-answer-counts",
        "5.10: a delivery that did not take place, because its count had no answer, does not count",
        _DISPATCH,
        "                self.recount()  # the write may have taken effect, or may yet\n",
        "",
        tests=(f"{_TEST_COUNTS}::test_a_lost_answer_to_a_count_delays_the_delivery_and_counts_it_once",),
    ),
    Mutant(
        "delivered-although-it-left-while-it-was-counted",
        "5.10: behind the write of a count the owner looks again what still waits",
        _DISPATCH,
        "            self._give(frame, [index for index in due if index in indexes], taking)\n",
        "            self._give(frame, indexes, taking)\n",
        tests=(f"{_TEST_COUNTS}::test_what_is_acknowledged_while_it_is_counted_is_not_delivered",),
    ),
    Mutant(
        "dead-is-delivered-once-more-after-a-restart",
        "5.10: what was delivered too often is given up when it is read again",
        _DELIVERIES,
        "        return bool(self.returned([place]))\n",
        "        self._hold(place, self._outstanding[place], None, waiting=True)\n        return False\n",
        tests=(f"{_TEST_COUNTS}::test_121_a_message_that_kills_every_broker_is_given_up",),
    ),
    Mutant(
        "next-segment-before-what-was-read-back",
        "5.10: failover delivers a child once everything in its parents was delivered by this owner",
        _DISPATCH,
        "        return not self._deliveries.undelivered and self._segment.ended_at(",
        "        return self._segment.ended_at(",
        tests=(f"{_TEST_COUNTS}::test_the_order_stays_over_a_split_when_what_was_perhaps_delivered_comes_again",),
    ),
    Mutant(
        "acknowledged-before-its-dead-letter-counts",
        "5.10: a message that is given up is acknowledged only if its dead letter is visible",
        "participants/subscription/dead_letters.py",
        "            await part.give_up(txn_id, list(letters))\n",
        "            await part.forget_unreadable(list(letters))\n",
        tests=(f"{_TEST_GIVING_UP}::test_123_a_broker_dies_while_it_gives_a_message_up",),
    ),
    Mutant(
        "acknowledgement-fails-beside-giving-up",
        "5.10: an acknowledgement outside transactions waits while its message is given up",
        "participants/subscription/share.py",
        "                if await refused.part.until_given_up(refused.holder):\n                    continue\n",
        "",
        tests=(f"{_TEST_GIVING_UP}::test_an_acknowledgement_waits_while_the_message_is_given_up",),
    ),
    Mutant(
        "acknowledged-inside-while-it-is-given-up",
        "5.10: no transaction of a consumer acknowledges what was delivered too often",
        "participants/subscription/segment_subscription.py",
        "not ack.cumulative and not dying and self.deliveries.has_dead(ack.span)",
        "False",
        tests=(f"{_TEST_GIVING_UP}::test_what_is_acknowledged_before_its_turn_has_no_letter",),
    ),
    Mutant(
        "one-dead-letter-holds-back-the-others",
        "5.10: messages that cannot be given up together are given up one by one",
        "participants/subscription/dead_letters.py",
        "            await asyncio.gather(*(self._until_one_is(part, place) for place in places))\n",
        "            await until_it_succeeds(lambda: self._give_up(part, places), _FAILURES)\n",
        tests=(f"{_TEST_GIVING_UP}::test_one_letter_that_cannot_be_published_does_not_hold_back_the_others",),
    ),
    Mutant(
        "transaction-of-a-broker-belongs-to-all",
        "5.10: the transaction in which a message is given up is ended by nobody else",
        "participants/service.py",
        "            principal=self._own_principal(),\n",
        "",
        tests=(f"{_TEST_RIGHTS}::test_a_dead_letter_goes_to_another_broker_in_the_name_of_the_broker_that_sends_it",),
    ),
    Mutant(
        "run-recovered-as-one-message",
        "what was acknowledged together is found together by a recovery and by a commit",
        "participants/subscription/segment_subscription.py",
        "op.writer, op.batch_last)\n",
        "op.writer)\n",
        tests=("tests/participants/subscription/test_individual_acks.py",),
    ),
    Mutant(
        "run-over-a-gap",
        "only messages that follow each other are acknowledged together",
        "participants/subscription/segment_subscription.py",
        "indexes[at] != indexes[at - 1] + 1 or",
        "indexes[at] < indexes[at - 1] or",
        tests=("tests/participants/subscription/test_individual_acks.py",),
    ),
    Mutant(
        "parts-of-a-run-not-delivered",
        "after a recovery a transaction may acknowledge a part of a run again",
        "participants/subscription/segment_subscription.py",
        " or known.ranges.covers(ack.span)):\n",
        "):\n",
        tests=("tests/participants/subscription/test_individual_acks.py",),
    ),
    Mutant(
        "acknowledged-again-conflicts",
        "outside transactions what is acknowledged never conflicts, whatever is acknowledged with it",
        "participants/subscription/segment_subscription.py",
        "        if self.cursor.overlaps(ack.span):\n            return [",
        "        if not self.cursor.overlaps(ack.span):\n            return [",
        tests=("tests/participants/subscription/test_individual_acks.py",),
    ),
)
