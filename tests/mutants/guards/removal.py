"""Mutants of what removes segments from their topics (DESIGN §5.14)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

REMOVAL = "participants/topic/removal.py"
TESTS = "tests/participants/broker/test_removal.py"
PREFIXES = "tests/participants/prefixes/test_prefixes.py"
_REMOVED_CHILD = f"{TESTS}::test_a_reader_that_had_finished_misses_a_child_that_was_removed"

REMOVALS = (
    Mutant(
        "removed-before-its-parents",
        "a segment goes after its parents, so that the layout has no gap",
        REMOVAL,
        "        parents = sorted(record.existing_parents)\n",
        "        parents: list[str] = []\n",
        tests=(f"{TESTS}::test_delete_is_refused_for_segments_that_are_in_the_way",),
    ),
    Mutant(
        "removed-before-it-is-inherited",
        "children have recorded what they inherited before their parent goes",
        REMOVAL,
        "    return family.children[child][1].dedup is not None\n",
        "    return True\n",
        tests=(f"{TESTS}::test_a_child_that_has_not_recorded_what_it_inherited_keeps_its_parents",),
    ),
    Mutant(
        "inherits-without-a-record",
        "a child records what it inherited when it is opened",
        "participants/segment/recovery.py",
        "        if record.parents:  # which can be removed from now on\n",
        "        if not record.parents:\n",
        tests=(f"{TESTS}::test_a_segment_that_is_trimmed_and_drained_goes_with_every_trace",),
    ),
    Mutant(
        "children-not-heard-of",
        "who has not heard of the children of a segment that could be removed reads its record again",
        REMOVAL,
        "        await self._learn_children()\n        bare",
        "        bare",
        tests=(f"{TESTS}::test_who_has_not_heard_of_the_children_reads_the_record_again",),
    ),
    Mutant(
        "merged-segment-goes-alone",
        "parents of one child go when both are trimmed",
        REMOVAL,
        "if not other.is_bare]",
        "if False]",
        tests=(f"{TESTS}::test_parents_of_a_merge_go_once_both_are_bare_and_layers_go_from_the_first",),
    ),
    Mutant(
        "deleted-under-a-subscription",
        "a segment is not deleted while a subscription has not acknowledged all of it",
        REMOVAL,
        "if before <= end]",
        "if before < before]",
        tests=(f"{TESTS}::test_delete_names_what_still_needs_the_segment_and_then_drops_what_is_left",),
    ),
    Mutant(
        "deleted-under-a-new-subscription",
        "what is left is dropped only if no subscription was created meanwhile",
        REMOVAL,
        "        await trim(segment, self._store, self._broker.storage, end, [unchanged])\n",
        "        assert unchanged\n        await trim(segment, self._store, self._broker.storage, end)\n",
        tests=(f"{TESTS}::test_a_subscription_that_is_created_while_a_segment_is_deleted_gets_its_messages",),
    ),
    Mutant(
        "end-of-a-removed-segment-forgotten",
        "children know where a removed parent ended",
        REMOVAL,
        "            ends = {**(child.removed_parents or {}), segment.id: end}\n",
        '            ends = {**(child.removed_parents or {}), segment.id: "0:-1"}\n            assert end\n',
        tests=(f"{TESTS}::test_readers_go_on_in_the_children_or_are_told_what_they_missed",),
    ),
    Mutant(
        "reader-skips-what-was-removed",
        "who has missed something of a removed segment is told",
        "participants/topic/messages.py",
        "            if not passed:\n                raise removed.trimmed()\n",
        "            if not passed and passed:\n                raise removed.trimmed()\n",
        tests=(f"{TESTS}::test_readers_go_on_in_the_children_or_are_told_what_they_missed",),
    ),
    Mutant(
        "removed-child-is-passed-over",
        "a reader that follows a topic is told of a child that was removed before it came there",
        "participants/topic/messages.py",
        '            if missed and isolation != "snapshot":\n',
        '            if missed and isolation == "snapshot":\n',
        tests=(_REMOVED_CHILD,),
    ),
    Mutant(
        "snapshot-misses-what-came-later",
        "a snapshot belongs to segments that were there when it began",
        "participants/topic/messages.py",
        '            if missed and isolation != "snapshot":\n',
        "            if missed:\n",
        tests=(_REMOVED_CHILD,),
    ),
    Mutant(
        "child-waits-for-a-removed-parent",
        "a child is delivered when its existing parents have been",
        "participants/topic/subscription.py",
        "ended.issuperset(existing.intersection(parents.get(name, ())))",
        "ended.issuperset(parents.get(name, ()) if existing else ())",
        tests=(f"{TESTS}::test_a_segment_that_is_trimmed_and_drained_goes_with_every_trace",),
    ),
    Mutant(
        "home-by-generation-alone",
        "the home is fenced by the number of its segment, too",
        "participants/topic/subscription.py",
        "    return Home(number_of_segment(segment.id), segment.ownership.generation)\n",
        "    assert number_of_segment(segment.id) >= 0\n    return Home(0, segment.ownership.generation)\n",
        tests=(f"{TESTS}::test_the_owner_of_the_next_segment_becomes_the_home",),
    ),
    Mutant(
        "tombstone-of-a-removed-segment-stays",
        "nothing remains of a removed segment",
        "participants/topic/deletion.py",
        "            batch.check(owner).delete(owner.key)\n",
        "            batch.check(owner)\n",
        tests=(f"{TESTS}::test_a_segment_that_is_trimmed_and_drained_goes_with_every_trace",),
    ),
    Mutant(
        "traces-of-a-removed-segment-stay",
        "the record goes last, so that a crash leaves nothing that nobody finds",
        "participants/topic/deletion.py",
        "._delete_traces(segment_id, owner)\n                await self._delete_bytes(segment_id, owner)\n",
        "._delete_bytes(segment_id, owner)\n                await self._delete_traces(segment_id, owner)\n",
        tests=(f"{TESTS}::test_whoever_dies_between_two_writes_leaves_what_the_next_one_finishes", PREFIXES),
    ),
    Mutant(
        "last-ledger-of-a-sealed-segment-kept",
        "a policy drops the last ledger of a sealed segment",
        "participants/segment/retention.py",
        '    ledgers = record.ledgers if record.state == "sealed" else record.ledgers[:-1]\n',
        "    ledgers = record.ledgers[:-1]\n",
        tests=(f"{TESTS}::test_a_policy_drops_the_last_ledger_of_a_sealed_segment_and_then_the_segment",),
    ),
    Mutant(
        "removed-segment-serves-on",
        "a segment that was removed serves nothing more, whatever comes behind it",
        "participants/topic/removal.py",
        '        segment.leave("it was removed from its topic")\n',
        "",
        tests=(f"{TESTS}::test_what_is_removed_in_the_background_serves_nobody_from_then_on",),
    ),
    Mutant(
        "what-is-gone-is-opened-again",
        "a segment without a record is not opened again and again",
        "participants/segment/recovery.py",
        '        raise SegmentDeleted(f"segment {segment_id} was deleted, and nothing is left of it")',
        '        raise SegmentUnavailable(f"segment {segment_id} was deleted, and nothing is left of it")',
        tests=(f"{TESTS}::test_a_broker_that_is_about_to_take_what_is_gone_by_now_keeps_it_no_longer",),
    ),
)
