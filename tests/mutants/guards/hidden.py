"""What is hidden in sealed ledgers: how it moves from outcomes into indexes, and who is asked."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

_INDEXING = "participants/segment/indexing.py"
_HIDDEN = "participants/segment/hidden.py"
_TEST = "tests/participants/segment/test_hidden.py"
_PREFIXES = "tests/participants/prefixes/test_prefixes.py::test_every_interrupted_prefix_ends_as_the_whole"

HIDDEN = (
    Mutant(
        "index-after-the-record",
        "5.6: an index is durable before a record names it",
        _INDEXING,
        "    await context.storage.write_hidden(",
        "    segment.spawn(context.storage.write_hidden(",
        others=(
            Edit(
                _INDEXING,
                "HiddenIndex(ledger.id, ledger.entries, transactions))",
                "HiddenIndex(ledger.id, ledger.entries, transactions)))",
            ),
        ),
        tests=(
            "tests/participants/segment/test_hidden.py::test_no_record_names_an_index_before_it_is_written",
            f"{_PREFIXES}[Index-files-answered]",
            f"{_PREFIXES}[Index-objects-unanswered]",
        ),
    ),
    Mutant(
        "index-not-synced",
        "5.6: an index is durable before a record names it",
        "participants/ledger/local_files.py",
        "            replace_file(self.disk, _hidden(path, generation), [content])\n",
        "            fd = self.disk.open(_hidden(path, generation), os.O_RDWR | os.O_CREAT | os.O_TRUNC)\n"
        "            self.disk.write(fd, [content], 0)\n"
        "            self.disk.close(fd)\n",
        tests=("tests/participants/ledger/test_hidden_index.py::test_an_index_is_durable_when_it_is_written",),
    ),
    Mutant(
        "outcome-goes-with-operations-left",
        "5.6: an outcome goes only when its transaction has no operation left on the segment",
        _INDEXING,
        "        if Position.parse(outcome.highest) < end and segment.buffer.get(txn_id) is None\n",
        "        if Position.parse(outcome.highest) < end\n",
        others=(
            Edit(
                _INDEXING,
                "    segment.buffer.drop([txn_id for txn_id in obsolete if segment.buffer.get(txn_id) is None])\n",
                "    segment.buffer.drop(obsolete)\n",
            ),
        ),
        tests=(f"{_TEST}::test_the_outcome_of_a_transaction_with_operations_left_stays",),
    ),
    Mutant(
        "outcome-at-the-end-stays",
        "5.6: an outcome whose last frame ends the indexed ledgers goes, too",
        _INDEXING,
        "    return Position(min(later, default=ledger.id + 1), 0)\n",
        "    return ledger.last or Position(min(later), 0)\n",
        tests=(f"{_TEST}::test_an_outcome_ends_with_the_last_entry_of_the_run",),
    ),
    Mutant(
        "outcome-of-an-undone-append-stays",
        "5.6: an outcome whose last append was undone goes with those before it",
        _INDEXING,
        "    return Position(min(later, default=ledger.id + 1), 0)\n",
        "    return ledger.last.next if ledger.last else Position(min(later), 0)\n",
        tests=(f"{_TEST}::test_the_outcome_of_an_append_that_was_undone_goes_with_those_before_it",),
    ),
    Mutant(
        "not-rolled-for-outcomes-of-a-ledger-that-is-gone",
        "5.6: a ledger is rolled for all outcomes that are not before a closed one",
        _INDEXING,
        "Position.parse(each.highest).ledger > closed for",
        "Position.parse(each.highest).ledger == segment.ledgers.open.id > closed for",
        tests=(f"{_TEST}::test_a_ledger_is_rolled_for_outcomes_of_one_that_is_not_there_any_more",),
    ),
    Mutant(
        "outcome-goes-before-its-last-frame",
        "5.6: the outcome of a transaction with frames behind the indexed ledgers stays",
        _INDEXING,
        "Position.parse(outcome.highest) < end",
        "Position.parse(outcome.highest).ledger",
        tests=(f"{_TEST}::test_the_outcome_of_a_transaction_that_goes_on_in_an_open_ledger_stays",),
    ),
    Mutant(
        "indexed-beyond-the-horizon",
        "5.6: a ledger is indexed once every transaction in it is decided",
        _INDEXING,
        "each.last is not None and each.last <= horizon",
        "each.last is not None and horizon is not None",
        tests=(f"{_TEST}::test_the_outcome_of_a_transaction_that_goes_on_in_an_open_ledger_stays",),
    ),
    Mutant(
        "forgotten-before-the-answer",
        "5.6: memory forgets outcomes once their records are known to be gone",
        _INDEXING,
        "    applied = await delete_outcomes(batch, first, store)\n",
        "    segment.buffer.drop(obsolete)\n    applied = await delete_outcomes(batch, first, store)\n",
        tests=(f"{_TEST}::test_memory_forgets_nothing_while_the_answer_is_unknown",),
    ),
    Mutant(
        "judged-by-outcomes-alone",
        "5.6: readers ask the index of a ledger, not memory alone",
        "participants/segment/reading.py",
        "            return frame.position.entry in index or buffer.hides(frame.txn_id, frame.writer)\n",
        "            return buffer.hides(frame.txn_id, frame.writer)\n",
        tests=(f"{_TEST}::test_outcomes_of_sealed_ledgers_leave_the_store_and_hide_on",),
    ),
    Mutant(
        "missing-index-hides-nothing",
        "5.6: an index that the record names and that is missing makes reads fail",
        _HIDDEN,
        "        index = await self._storage.read_hidden(self._segment, ledger, generation, entries)\n",
        "        try:\n"
        "            index = await self._storage.read_hidden(self._segment, ledger, generation, entries)\n"
        "        except Exception:\n"
        "            index = _NOTHING\n",
        tests=(f"{_TEST}::test_an_index_that_is_missing_is_not_one_that_hides_nothing",),
    ),
    Mutant(
        "index-unlearned",
        "5.6: once an index counts, an older copy of the record does not undo that",
        _HIDDEN,
        "        for ledger in record.ledgers:\n",
        "        self._ledgers.clear()\n        for ledger in record.ledgers:\n",
        tests=(f"{_TEST}::test_an_older_copy_of_the_record_does_not_bring_back_what_was_hidden",),
    ),
    Mutant(
        "opening-forgets-the-indexes",
        "5.6: an opening leaves the indexes of sealed ledgers in the record",
        "participants/segment/recovery.py",
        'recorded.append(ledger.model_copy(update={"entries": found.entries, "bytes": found.size_bytes}))',
        'recorded.append(ledger.model_copy(update={"entries": found.entries, "hidden": None}))',
        tests=(f"{_TEST}::test_an_index_hides_what_it_says_from_every_read",),
    ),
    Mutant(
        "restored-without-the-indexes",
        "10: what is hidden in a ledger that was sealed before the backup stays hidden",
        "participants/restored/ledgers.py",
        "listed = {ledger.id: ledger for ledger in record.ledgers if",
        "listed = {ledger.id: self._listed(ledger.id, ledger.entries) for ledger in record.ledgers if",
        tests=(
            "tests/participants/restored/test_rules.py::test_what_is_hidden_in_a_ledger_of_the_backup_stays_hidden",
        ),
    ),
    Mutant(
        "damaged-ledger-read-each-time",
        "5.6: a damaged ledger is read ever more rarely",
        "participants/segment/damage.py",
        "        return pause is None or now_s >= pause.until_s\n",
        "        return pause is None or now_s >= pause.until_s - pause.next_s\n",
        tests=(f"{_TEST}::test_a_damaged_ledger_is_said_once_and_tried_ever_more_rarely",),
    ),
    Mutant(
        "trimmed-ledger-is-damaged",
        "5.6: a ledger that was trimmed while it was read is not damaged",
        "participants/segment/indexing.py",
        "            if any(each.id == ledger.id for each in segment.ledgers.sealed):\n",
        "            if True:\n",
        tests=(f"{_TEST}::test_a_ledger_that_is_trimmed_while_it_is_indexed_is_not_damaged",),
    ),
)
