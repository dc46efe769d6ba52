"""Consumers: what they are given, when, how often, and what becomes of what they do not take."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_COUNTS = "participants/subscription/delivery_counts.py"
_DELIVERIES = "participants/subscription/deliveries.py"
_DISPATCH = "participants/subscription/dispatch.py"
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
)
