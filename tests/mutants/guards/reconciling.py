"""What a reconcile of many segments reads in parts, and what it takes for known."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_API = "metastore/api.py"
_ENTRIES = "metastore/txn/entries.py"
_POLICIES = "participants/messages/policies.py"
_TEST_READS = "tests/metastore/contract/test_reads.py"
_TEST_ENTRIES = "tests/metastore/txn/test_entries.py"
_TEST_RECONCILING = "tests/participants/broker/test_reconciling.py"

RECONCILING = (
    Mutant(
        "parts-of-each-in-one-turn",
        "5.8: between two parts the event loop does other work, whatever the store is",
        _API,
        "            await asyncio.sleep(0)  # a store in memory has not waited for anything\n",
        "",
        tests=(f"{_TEST_READS}::test_other_work_has_its_turn_while_each_record_is_read",),
    ),
    Mutant(
        "each-reads-before-it-is-asked",
        "3: each record is read after it was asked for",
        _API,
        "        left = iter(wanted)\n        while part := list(islice(left, _KEYS_PER_PART)):\n"
        "            found = (await self.get_many(part)).records\n            for key in part:\n",
        "        part = list(wanted)\n        if part:\n"
        "            found = (await self.get_many(part)).records\n            for key in part:\n",
        tests=(f"{_TEST_READS}::test_each_reads_on_after_what_was_written_meanwhile",),
    ),
    Mutant(
        "page-of-operations-taken-for-the-rest",
        "5.8: all operations of a segment are found, however many a read shows",
        _ENTRIES,
        "if last < len(page) or not more:",
        "if last < len(page) or page or not more:",
        tests=(f"{_TEST_ENTRIES}::test_together_they_are_told_as_alone",),
    ),
    Mutant(
        "operations-of-others-are-read-too",
        "5.8: what others have between two segments of this broker is passed over",
        _ENTRIES,
        'start = max(prefix, page[-1] + "\\0") if page else prefix',
        'start = page[-1] + "\\0" if page else prefix',
        tests=(f"{_TEST_ENTRIES}::test_what_others_have_in_between_is_passed_over",),
    ),
    Mutant(
        "policy-of-the-topic-alone-is-compared",
        "5.8: what applies to a topic is known as long as all records that say so are the same",
        _POLICIES,
        "looked.versions != (record.version, *above_at):",
        "looked.versions[0] != record.version:",
        tests=(f"{_TEST_RECONCILING}::test_what_has_changed_counts_from_the_next_look_on",),
    ),
    Mutant(
        "every-record-is-decoded-again",
        "5.8: a record that was not written since is not decoded again",
        _POLICIES,
        "        self._looked = looked\n",
        "",
        tests=(f"{_TEST_RECONCILING}::test_a_record_that_is_the_same_is_not_decoded_again",),
    ),
    Mutant(
        "own-policy-is-that-of-the-namespace",
        "6: what a topic says itself counts for this topic only",
        _POLICIES,
        "if looked.topic.policy is None:",
        "if looked.topic.policy is not None:",
        tests=(f"{_TEST_RECONCILING}::test_what_has_changed_counts_from_the_next_look_on",),
    ),
    Mutant(
        "claim-that-was-seen-is-passed-over",
        "5.8: a record that leaves something to do is looked at in every round, although it is the same",
        "participants/topic/layout.py",
        "            else:\n                idle[key] = stored.version\n        self._idle",
        "            if stored is not None:\n                idle[key] = stored.version\n        self._idle",
        tests=(
            "tests/participants/broker/test_layout.py::test_a_claim_is_given_up_by_a_reconcile_that_has_seen_it_before",
        ),
    ),
    Mutant(
        "segments-tended-in-one-turn",
        "5.8: of what is begun for each segment only so much is begun in one turn",
        "participants/broker/broker.py",
        "            if number % _TENDED_PER_TURN == 0:\n                await asyncio.sleep(0)\n",
        "",
        tests=(f"{_TEST_RECONCILING}::test_other_work_has_its_turn_all_the_time",),
    ),
    Mutant(
        "one-header-for-each-segment",
        "5.8: the headers of what is undecided on several segments are read together",
        "participants/segment/reconciling.py",
        "if len(waiting) >= HEADERS_PER_READ:",
        "if waiting:",
        tests=(f"{_TEST_RECONCILING}::test_it_asks_the_store_as_often_for_many_segments_as_for_one",),
    ),
)
