"""Ledgers of which nothing is left: which of them go, in which order, and what readers are told."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

_DROPPING = "participants/segment/dropping.py"
_READING = "participants/segment/reading.py"
_FOUND = "participants/restored/ledgers.py"
_LAWS = "metastore/txn/laws/segments.py"
_TRIMMING = "participants/segment/trimming.py"
_TEST = "tests/participants/segment/test_dropping.py"
_RANDOM = "tests/participants/segment/test_random_upkeep.py"
_OFFSETS = "tests/participants/segment/test_offsets.py::test_rewriting_does_not_move_the_first_offset_backwards"
_CHECK = "tests/metastore/test_check.py::test_damage_is_found"
_COMPACTED = "tests/participants/broker/test_compacting.py"
_BY_KAFKA = "tests/gateways/test_kafka_compacted.py"
_PREFIXES = "tests/participants/prefixes/test_prefixes.py::test_every_interrupted_prefix_ends_as_the_whole"
_RESTORED = "tests/participants/restored/test_rules.py"

DROPPING = (
    Mutant(
        "empty-ledgers-stay",
        "5.18: a ledger of which nothing is left leaves the segment",
        _DROPPING,
        "    if segment.lost or not _empty(segment, segment.record):\n",
        "    if True:\n",
        tests=(f"{_TEST}::test_a_ledger_of_which_nothing_is_left_leaves_the_segment",),
    ),
    Mutant(
        "bytes-go-before-the-record",
        "5.18: the bytes go once the record does not list the ledger any more",
        _DROPPING,
        "    if gone:\n",
        "    for each in gone:\n        await context.storage.delete(segment.id, each.id)\n    if gone:\n",
        tests=(f"{_TEST}::test_no_bytes_go_while_the_answer_is_unknown",),
    ),
    Mutant(
        "dropped-bytes-are-forgotten",
        "5.18: the record lists a dropped ledger until its bytes are deleted",
        _DROPPING,
        '"trimmed": (*record.trimmed, *gone)',
        '"trimmed": record.trimmed',
        others=(
            Edit(
                _DROPPING,
                "    segment.recorded(record, version)\n",
                "    segment.recorded(record, version)\n"
                "    for each in gone:\n"
                "        await context.storage.delete(segment.id, each.id)\n",
            ),
        ),
        tests=(f"{_PREFIXES}[DropEmpty-files-answered]", f"{_PREFIXES}[DropEmpty-objects-unanswered]"),
    ),
    Mutant(
        "first-ledger-is-dropped",
        "5.18: the segment begins where it began",
        _DROPPING,
        "for each in record.ledgers[1:] if",
        "for each in record.ledgers if",
        tests=(f"{_TEST}::test_the_first_ledger_stays_because_the_segment_begins_there",),
    ),
    Mutant(
        "told-end-moves-backwards",
        "5.18: the last ledger with entries has the end that readers are told",
        _DROPPING,
        "each.id < horizon.ledger and",
        "each.id < segment.ledgers.last_durable.ledger and",
        tests=(f"{_TEST}::test_the_end_that_readers_are_told_never_moves_backwards",),
    ),
    Mutant(
        "end-behind-an-open-transaction-moves-backwards",
        "5.18: so has the last one before an open transaction",
        _DROPPING,
        "segment.ledgers.shown(segment.buffer.max_read_position)",
        "segment.ledgers.shown(segment.buffer.last_durable)",
        tests=(f"{_TEST}::test_what_an_open_transaction_holds_readers_back_at_is_not_the_new_end",),
    ),
    Mutant(
        "page-of-a-dropped-ledger-is-judged-without-its-index",
        "5.18: a page of a ledger that was dropped is read again",
        _READING,
        "            if not self._is_listed(ledger):\n                return None\n",
        "",
        tests=(f"{_TEST}::test_a_page_of_a_ledger_that_is_dropped_before_it_is_judged_is_read_again",),
    ),
    Mutant(
        "dropped-entry-is-unknown",
        "5.18: an acknowledgement in a gap counts as that of an entry that was left out",
        "participants/ledger/chain.py",
        "return position.entry >= 0 and self.ledgers[0].id < position.ledger < self.ledgers[-1].id",
        "return False",
        tests=(f"{_COMPACTED}::test_what_is_in_a_ledger_that_was_dropped_can_be_acknowledged",),
    ),
    Mutant(
        "dropped-ledgers-count-as-damaged",
        "5.6: a ledger that was dropped while it was to be indexed is not damaged",
        "participants/segment/indexing.py",
        "            if any(each.id == ledger.id for each in segment.ledgers.sealed):\n",
        "            if ledger.id >= segment.ledgers.ledgers[0].id:\n",
        tests=(f"{_TEST}::test_a_ledger_that_is_dropped_while_it_is_indexed_is_not_damaged",),
    ),
    Mutant(
        "dropped-ledgers-count-as-lost",
        "a restore does not miss ledgers of which nothing was visible",
        _FOUND,
        "(ledger.bytes is not None and ledger.bytes == (ledger.hidden_bytes or 0))",
        "False",
        tests=(f"{_RESTORED}::test_a_ledger_that_was_dropped_because_nothing_was_left_of_it_is_not_lost",),
    ),
    Mutant(
        "lost-ledgers-count-as-dropped",
        "a ledger of which something was visible may be lost",
        _FOUND,
        "ledger.bytes == (ledger.hidden_bytes or 0))",
        "bool(ledger.hidden))",
        tests=(f"{_RESTORED}::test_a_ledger_that_was_dropped_because_nothing_was_left_of_it_is_not_lost",),
    ),
    Mutant(
        "restore-trims-up-to-what-was-dropped",
        "a restore trims no further than was trimmed",
        _FOUND,
        "        first = _first_position(record, ledgers, trimmed)\n",
        "        first = _first_position(record, ledgers, segment.missing[-1:])\n",
        tests=(f"{_RESTORED}::test_a_ledger_that_was_dropped_because_nothing_was_left_of_it_is_not_lost",),
    ),
    Mutant(
        "batch-that-is-gone-is-looked-for-without-an-end",
        "5.18: a batch that is gone and is sent again is answered from the table of sequences",
        "metatxn_gateways/kafka/produce.py",
        "            return _Result(KafkaCode.DUPLICATE_SEQUENCE_NUMBER)\n",
        "            return _Result(KafkaCode.NONE, 0)\n",
        tests=(f"{_BY_KAFKA}::test_a_batch_that_is_gone_and_sent_again_is_answered_from_the_table_of_sequences",),
    ),
    Mutant(
        "last-visible-entry-was-left-out",
        "7: the last visible entry is one that is there",
        _READING,
        "while (found := await self._find_last_visible()) and self._segment.ledgers.is_left_out(found):",
        "while (found := await self._find_last_visible()) and False:",
        tests=(
            f"{_COMPACTED}::test_the_last_visible_entry_is_one_that_is_there",
            "tests/gateways/pulsar/test_consuming.py"
            "::test_the_last_message_is_one_that_can_be_read_after_compaction_too",
        ),
    ),
    Mutant(
        "last-visible-entry-is-searched-from-the-last-search-on",
        "7: if the last visible entry is gone, the search begins anew",
        _READING,
        "self._last_visible, self._looked_up_to = None, Position(0, -1)",
        "self._last_visible = None",
        tests=(f"{_COMPACTED}::test_the_last_visible_entry_is_one_that_is_there",),
    ),
    Mutant(
        "bytes-go-before-readers-know",
        "5.18: readers pass over a ledger before its bytes are deleted, no matter who deletes them",
        _TRIMMING,
        "    segment.recorded(record, stored.version)  # the answer to what put them there may be on its way: readers "
        "come first\n",
        "",
        tests=(f"{_TEST}::test_other_upkeep_that_deletes_the_bytes_tells_readers_first",),
    ),
    Mutant(
        "deleted-ledgers-are-remembered-in-memory",
        "5.18: memory has the record as the store has it",
        _TRIMMING,
        "    segment.recorded(record, (await store.apply(batch)).revision)\n",
        "    await store.apply(batch)\n",
        tests=(f"{_RANDOM}::test_readers_see_what_is_kept_whatever_upkeep_does[0-files-messages]",),
    ),
    Mutant(
        "ledger-may-be-listed-and-deleted",
        "5.18: no ledger is listed that is to be deleted",
        _LAWS,
        "if deleted := sorted({ledger.id for ledger in segment.trimmed} & set(numbers)):",
        "if deleted := sorted({ledger.id for ledger in segment.trimmed} & set(())):",
        tests=(f"{_CHECK}[ledger to be deleted]",),
    ),
    Mutant(
        "ledgers-without-gaps",
        "5.18: a ledger may have left from between others",
        _LAWS,
        "if any(later <= earlier for earlier, later in pairwise(numbers)):",
        "if any(later != earlier + 1 for earlier, later in pairwise(numbers)):",
        tests=("tests/metastore/test_check.py::test_ledgers_that_were_dropped_from_between_others_are_no_damage",),
    ),
    Mutant(
        "hidden-bytes-need-no-index",
        "5.6: what is hidden in a ledger is in its index",
        _LAWS,
        "if hidden is not None and not ledger.hidden:",
        "if hidden is not None and ledger.hidden is None:",
        tests=(f"{_CHECK}[hidden where nothing is]",),
    ),
    Mutant(
        "more-bytes-are-hidden-than-there-are",
        "5.6: no more bytes of a ledger are hidden than it has",
        _LAWS,
        "if hidden is not None and size is not None and hidden > size:",
        "if hidden is not None and size is not None and hidden > size + 1:",
        tests=(f"{_CHECK}[more hidden than there]",),
    ),
    Mutant(
        "first-offset-is-left-out",
        "5.20: no form of a ledger leaves out the entry that tells the first offset",
        "participants/segment/rewriting.py",
        "if entry not in hidden or entry == told]",
        "if entry not in hidden]",
        others=(
            Edit(
                "participants/segment/rewriting.py",
                "        if told is not None and not rewritten.bytes_of(told, told):\n            raise CheckLost",
                "        if told is not None and not rewritten.bytes_of(told, told):\n            pass",
            ),
        ),
        tests=(f"{_OFFSETS}[local-False]",),
    ),
    Mutant(
        "form-without-the-first-offset-is-named",
        "5.20: a form that was begun before a trim is not named without the entry that tells the first offset",
        "participants/segment/rewriting.py",
        "        if told is not None and not rewritten.bytes_of(told, told):\n            raise CheckLost",
        "        if told is not None and not rewritten.bytes_of(told, told):\n            pass",
        tests=(f"{_OFFSETS}[local-True]",),
    ),
)
