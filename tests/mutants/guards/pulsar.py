"""Consumers that are attached to the owners of segments, and the gateway for Pulsar's clients."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ATTACHED = "participants/subscription/attached.py"
_DISPATCH = "participants/subscription/dispatch.py"
_TEST_ATTACHED = "tests/participants/subscription/test_attached.py"

PULSAR = (
    Mutant(
        "home-takes-from-attached",
        "5.10: a home takes back nothing of what an attached consumer holds",
        _DISPATCH,
        "if consumer < FIRST_ATTACHED and (succeeded or",
        "if (succeeded or",
        tests=(f"{_TEST_ATTACHED}::test_another_home_takes_nothing_from_it",),
    ),
    Mutant(
        "home-delivers-beside-attached",
        "5.10: where one consumer at a time has a segment, nobody else gets anything beside the attached one",
        _ATTACHED,
        "        return not (self._names and self._one_at_a_time)\n",
        "        return True\n",
        tests=(f"{_TEST_ATTACHED}::test_one_at_a_time_it_has_the_segment_alone",),
    ),
    Mutant(
        "two-attached",
        "5.10: where one consumer at a time has a segment, a second one is not attached",
        _ATTACHED,
        "            if self._one_at_a_time and self._names:\n",
        "            if False:\n",
        tests=(f"{_TEST_ATTACHED}::test_one_at_a_time_it_has_the_segment_alone",),
    ),
    Mutant(
        "attached-while-delivering",
        "5.10: what is being delivered to a consumer of the home returns when another one is attached",
        _ATTACHED,
        "        async with self._dispatch.reading:  # what is being delivered meanwhile is held by then\n",
        "        if True:\n",
        tests=(f"{_TEST_ATTACHED}::test_what_is_under_way_to_a_consumer_of_the_home_returns_when_it_is_attached",),
    ),
    Mutant(
        "detached-while-delivering",
        "5.10: what is being delivered to an attached consumer returns when it goes",
        _ATTACHED,
        "        async with self._dispatch.reading:  # a delivery to it may be under way\n",
        "        if True:\n",
        tests=(f"{_TEST_ATTACHED}::test_what_is_under_way_to_one_that_goes_returns",),
    ),
    Mutant(
        "delivered-to-nobody",
        "5.10: nothing is delivered to a consumer that is gone",
        _ATTACHED,
        "            return consumer in self._names\n",
        "            return True\n",
        tests=(f"{_TEST_ATTACHED}::test_it_gets_entries_whole_and_what_returns_first",),
    ),
    Mutant(
        "gives-back-what-others-hold",
        "5.10: an attached consumer gives back what it holds itself",
        _DISPATCH,
        "            places = [place for place in places if place in held]\n",
        "            pass\n",
        tests=(f"{_TEST_ATTACHED}::test_only_its_own_messages_are_given_back",),
    ),
)
