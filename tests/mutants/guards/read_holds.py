"""Read holds: what is kept while one is in force, and which ones are refused."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_HOLDS = "participants/messages/read_holds.py"
_RETENTION = "participants/topic/retention.py"
_GC = "coordinator/gc_sweep.py"
_TESTS = "tests/participants/broker/test_read_holds.py"
_OF_GC = "tests/coordinator/test_gc_sweep.py"

READ_HOLDS = (
    Mutant(
        "holds-unseen-by-what-is-under-way",
        "5.24: anyone who takes a hold writes the topic's record again",
        _HOLDS,
        "batch.create(hold_key, hold.encode()).replace(topic, topic.value)",
        "batch.create(hold_key, hold.encode())",
        tests=(f"{_TESTS}::test_a_hold_that_is_taken_in_the_middle_of_a_pass_keeps_everything",),
    ),
    Mutant(
        "holds-unseen-by-collection-under-way",
        "5.24: anyone who takes a hold writes `/gc/horizon` again",
        _HOLDS,
        "batch.replace(horizon, horizon.value)",
        "batch.check()",
        tests=(f"{_OF_GC}::test_a_hold_that_is_taken_while_the_horizon_moves_keeps_it_where_it_is",),
    ),
    Mutant(
        "horizon-not-made-for-a-hold",
        "5.24: anyone who takes a hold creates `/gc/horizon` if there is none",
        _HOLDS,
        "batch.create(paths.GC_HORIZON, GcHorizon(revision=0, finalized_ms=0).encode())",
        "batch.check()",
        tests=(f"{_OF_GC}::test_a_hold_that_is_taken_while_the_horizon_moves_keeps_it_where_it_is",),
    ),
    Mutant(
        "holds-read-before-the-topic",
        "5.24: who drops reads the holds behind the record that the trim checks",
        _RETENTION,
        """        in_force = await self._broker.policies.in_force(topic)
        if in_force is None:
            return
        now_ms = self._broker.clock()
        # Behind the read of the topic, which anyone who takes a hold writes again (DESIGN §5.24).
        held = bool(await holds_in_force(self._broker.store, paths.read_holds(topic), now_ms))
""",
        """        now_ms = self._broker.clock()
        held = bool(await holds_in_force(self._broker.store, paths.read_holds(topic), now_ms))
        in_force = await self._broker.policies.in_force(topic)
        if in_force is None:
            return
""",
        tests=(f"{_TESTS}::test_a_hold_that_is_taken_in_the_middle_of_a_pass_keeps_everything",),
    ),
    Mutant(
        "holds-read-before-the-horizon",
        "5.24: collection reads the holds behind the horizon that it replaces",
        _GC,
        """        record = await self._store.get(paths.GC_HORIZON)
        for _ in range(_MOST_RIVALS):
            # Behind the read of the horizon, which anyone who takes a hold writes again.
            lowest = await lowest_held(self._store, self._clock())
""",
        """        lowest = await lowest_held(self._store, self._clock())
        record = await self._store.get(paths.GC_HORIZON)
        for _ in range(_MOST_RIVALS):
""",
        tests=(f"{_OF_GC}::test_a_hold_that_is_taken_just_before_the_horizon_is_read_is_seen",),
    ),
    Mutant(
        "dropped-although-held",
        "5.24: no policy drops anything of a topic that is held",
        _RETENTION,
        "due = {} if held else droppable(",
        "due = droppable(",
        tests=(f"{_TESTS}::test_nothing_is_dropped_until_the_last_hold_has_ended",),
    ),
    Mutant(
        "compacted-although-held",
        "5.24: a topic that is held is not compacted",
        _RETENTION,
        "_set_cleanup(segments, None if held else in_force)",
        "_set_cleanup(segments, in_force)",
        tests=(f"{_TESTS}::test_a_held_topic_is_not_compacted",),
    ),
    Mutant(
        "removed-although-held",
        "5.24: a segment that a reader may have listed stays in the layout",
        "participants/topic/removal.py",
        "if not by_hand and await self._is_held(family.topic.topic.name):",
        "if not by_hand and not family.topic.topic.name:",
        tests=(f"{_TESTS}::test_a_segment_that_a_reader_may_have_listed_stays_in_the_layout",),
    ),
    Mutant(
        "collected-although-held",
        "5.24: only headers that were decided at or below the lowest held revision are deleted",
        _GC,
        "if lowest is None or each[1].version <= lowest]",
        "if lowest is None or each[1].version]",
        tests=(f"{_OF_GC}::test_headers_of_decisions_behind_a_held_revision_stay_until_the_hold_has_ended",),
    ),
    Mutant(
        "held-below-the-horizon",
        "5.24: a revision below the horizon of collected decisions cannot be held",
        _HOLDS,
        "if collected > revision:",
        "if collected > current:",
        tests=(f"{_TESTS}::test_a_collected_revision_cannot_be_held_also_if_it_is_collected_meanwhile",),
    ),
    Mutant(
        "held-before-a-compaction",
        "5.24: a hold looks for compactions when it is stored, and is taken back",
        _HOLDS,
        "if compaction is not None and compaction.revision > revision:",
        "if compaction is not None and compaction.revision > revision + 1_000:",
        tests=(f"{_TESTS}::test_a_compaction_that_lands_before_the_hold_refuses_an_earlier_revision",),
    ),
    Mutant(
        "over-and-not-removed",
        "5.24: who goes on because a hold is over has removed it",
        "metastore/txn/read_holds.py",
        "            left = await _removed(store, left)",
        "            left = None",
        tests=(f"{_TESTS}::test_a_hold_that_is_prolonged_while_it_is_removed_counts",),
    ),
    Mutant(
        "held-below-its-version",
        "12: a topic is held once every process knows of holds",
        _HOLDS,
        "        await require(self._store, self._version, Feature.READ_HOLDS)\n",
        "        assert require and Feature.READ_HOLDS\n",
        tests=("tests/participants/broker/test_versions.py",),
    ),
    Mutant(
        "snapshot-of-what-is-being-trimmed",
        "5.24: no snapshot begins with what a trim drops that has no answer yet",
        "participants/segment/reading.py",
        "if (up_to := max(self._segment.trims_in_flight, default=after)) > after:",
        "if (up_to := after) > after:",
        tests=(
            "tests/participants/broker/test_read_holds.py"
            "::test_nobody_begins_to_read_what_a_trim_before_the_hold_has_dropped",
        ),
    ),
)
