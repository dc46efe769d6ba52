"""Brokers that are drained: who takes what, one after another, and what lasts."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PLACEMENT = "participants/broker/placement.py"
_PRESENCE = "participants/broker/announcement.py"
_TESTS = "tests/participants/broker/test_draining.py"

DRAINING = (
    Mutant(
        "given-up-all-at-once",
        "a segment moves only when the one before it was taken",
        _PLACEMENT,
        "while self._is_left_alone(segment_id):",
        "while not segment_id:",
        tests=(f"{_TESTS}::test_a_segment_follows_only_when_the_one_before_was_taken",),
    ),
    Mutant(
        "released-counts-as-taken",
        "a segment that its owner has released is taken once another broker owns it",
        _PLACEMENT,
        "is_taken = owner is not None and owner.broker != self._broker",
        "is_taken = True",
        tests=(f"{_TESTS}::test_a_segment_follows_only_when_the_one_before_was_taken",),
    ),
    Mutant(
        "all-drain-and-all-leave",
        "what is owned stays where it is if every broker drains",
        _PLACEMENT,
        "may_move=bool(candidates)",
        "may_move=True",
        tests=(f"{_TESTS}::test_where_every_broker_drains_what_is_owned_stays_and_what_is_free_is_taken",),
    ),
    Mutant(
        "all-drain-and-nobody-takes",
        "what nobody owns is taken also if every broker drains",
        _PLACEMENT,
        "candidates or draining",
        "candidates",
        tests=(f"{_TESTS}::test_what_nobody_takes_holds_back_only_a_few_and_comes_back_when_its_taker_is_gone",),
    ),
    Mutant(
        "drained-and-wanted",
        "a broker that drains is wanted for nothing",
        _PLACEMENT,
        "(draining or not record.draining)",
        "(draining or record.storage)",
        tests=(f"{_TESTS}::test_a_segment_follows_only_when_the_one_before_was_taken",),
    ),
    Mutant(
        "stopped-before-it-was-taken",
        "a broker that stops waits until its segments were taken",
        "participants/broker/broker.py",
        "while (self._keepers and self.can_leave) or self._placement.moving:",
        "while self._keepers and self.can_leave:",
        tests=(f"{_TESTS}::test_a_broker_that_stops_hands_over_while_it_serves",),
    ),
    Mutant(
        "announced-after-a-lost-answer",
        "an announcement whose answer was lost is made again",
        _PRESENCE,
        "before, self._announced = self._record, None",
        "before = self._record",
        tests=(f"{_TESTS}::test_an_announcement_whose_answer_was_lost_is_made_again",),
    ),
    Mutant(
        "drain-forgotten-by-a-restart",
        "a broker with local files takes no new topics after a restart either",
        _PRESENCE,
        "self.draining |= await self._store.get(self._drain_key) is not None",
        "await self._store.get(self._drain_key)",
        tests=(f"{_TESTS}::test_with_local_files_new_topics_go_elsewhere_also_after_a_restart",),
    ),
    Mutant(
        "new-topic-on-a-drained-disk",
        "a broker with local files takes no new topics while it drains",
        "participants/broker/draining.py",
        "if not (broker.announcement.draining and broker.storage.exclusive):",
        "if broker.storage.exclusive:",
        tests=(f"{_TESTS}::test_with_local_files_new_topics_go_elsewhere_also_after_a_restart",),
    ),
)
