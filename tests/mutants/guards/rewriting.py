"""Forms of ledgers: what is written, what counts, and what goes."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

_REWRITING = "participants/segment/rewriting.py"
_INDEXING = "participants/segment/indexing.py"
_TEST = "tests/participants/segment/test_rewriting.py"
_COMPACTING = "participants/segment/compacting.py"
_COMPACTED = "tests/participants/broker/test_compacting.py"
_BY_KAFKA = "tests/gateways/test_kafka_compacted.py"
_FORMS = "tests/participants/ledger/test_forms.py"
_PREFIXES = "tests/participants/prefixes/test_prefixes.py::test_every_interrupted_prefix_ends_as_the_whole"

REWRITING = (
    Mutant(
        "backlogs-keep-aborted-messages-that-are-gone",
        "5.18: the backlog of a subscription that delivers all messages has none that a rewriting has left out",
        _REWRITING,
        "segment.attached.left_out(committed=False)",
        "pass",
        tests=("tests/participants/broker/test_compacting.py::test_aborted_messages_that_are_gone_are_in_no_backlog",),
    ),
    Mutant(
        "trims-are-warned-of",
        "5.18: that a ledger was trimmed before it was rewritten is no reason for a warning",
        _REWRITING,
        "isinstance(error, CheckLost) or sealed_ledger(segment, record.id) is None",
        "isinstance(error, CheckLost)",
        tests=(f"{_TEST}::test_only_what_nobody_has_trimmed_deserves_a_warning",),
    ),
    Mutant(
        "trimmed-ledgers-count-as-rewritten",
        "metrics: a ledger that was trimmed before its new form was named does not count as rewritten",
        _REWRITING,
        "if segment.lost or sealed_ledger(segment, ledger.id) is None:",
        "if segment.lost:",
        tests=(f"{_TEST}::test_a_ledger_that_is_trimmed_meanwhile_is_not_written_again",),
    ),
    Mutant(
        "form-deleted-before-it-is-named",
        "5.18: the former form goes only once the record names the new one",
        _REWRITING,
        '    await until_done(segment, once, "name the new form',
        "    await context.storage.delete_forms_before(segment.id, ledger.id, form)\n"
        '    await until_done(segment, once, "name the new form',
        tests=(f"{_TEST}::test_nothing_is_deleted_while_the_answer_is_unknown",),
    ),
    Mutant(
        "late-naming-does-not-count",
        "5.18: a form that a late request has named is the one that counts",
        _REWRITING,
        "            if not _names(record, rewritten):\n",
        "            if True:\n",
        tests=(f"{_COMPACTED}::test_a_form_that_was_named_by_a_late_request_is_the_one_that_is_read",),
    ),
    Mutant(
        "index-goes-with-what-it-hides",
        "5.18: a page that was read before is judged by the index",
        _REWRITING,
        '"bytes": rewritten.size_bytes, "hidden_bytes": None}',
        '"bytes": rewritten.size_bytes, "hidden_bytes": None, "hidden": 0}',
        tests=(f"{_TEST}::test_a_page_that_was_read_before_is_judged_by_the_index_all_the_same",),
    ),
    Mutant(
        "every-other-form-goes",
        "5.18: a deposed owner deletes lower forms only",
        "participants/ledger/local_files.py",
        "                if each < form:\n",
        "                if each != form:\n",
        tests=(f"{_FORMS}::test_a_form_of_a_form_and_deleting_what_was_before",),
    ),
    Mutant(
        "form-not-synced",
        "5.18: a form has its name once it is durable",
        "participants/ledger/local_files.py",
        "                write_all(self.disk, fd, [header], 0)\n                self.disk.fsync(fd)\n",
        "                write_all(self.disk, fd, [header], 0)\n",
        tests=(f"{_FORMS}::test_a_form_is_durable_before_it_has_its_name",),
    ),
    Mutant(
        "former-is-forgotten-first",
        "5.18: the record remembers the former form until it is deleted",
        _REWRITING,
        '{"form": tuple(rewritten.form), "former": True,',
        '{"form": tuple(rewritten.form), "former": None,',
        others=(
            Edit(
                _REWRITING,
                "    segment.ledger_recorded(record, version, rewritten)\n",
                "    segment.ledger_recorded(record, version, rewritten)\n"
                "    await context.storage.delete_forms_before(segment.id, rewritten.id, rewritten.form)\n",
            ),
        ),
        tests=(f"{_PREFIXES}[Index-files-answered]", f"{_PREFIXES}[Index-objects-unanswered]"),
    ),
    Mutant(
        "read-of-a-deleted-form-fails",
        "5.18: a read of a form that is gone is repeated",
        "participants/segment/reading.py",
        "            if self._segment.ledgers is not ledgers:\n",
        "            if False:\n",
        tests=(f"{_TEST}::test_a_read_of_the_earlier_form_that_is_gone_reads_the_new_one",),
    ),
    Mutant(
        "compacted-beyond-the-horizon",
        "5.19: what a transaction may still replace stays",
        "participants/segment/indexing.py",
        "each.last is not None and each.last <= horizon",
        "each.last is not None",
        tests=(f"{_COMPACTED}::test_what_a_transaction_may_still_replace_stays",),
    ),
    Mutant(
        "replaced-by-an-earlier-pass",
        "5.19: an entry goes once all of its messages are replaced, by whatever pass",
        _COMPACTING,
        "        self._latest |= found\n",
        "",
        tests=(f"{_COMPACTED}::test_an_entry_goes_once_all_of_its_messages_are_replaced_by_whatever_pass",),
    ),
    Mutant(
        "keys-that-look-alike",
        "5.19: keys of Kafka's clients are compared by their bytes",
        "metatxn/wire/record_batches.py",
        'self.key.decode(errors="surrogateescape")',
        'self.key.decode(errors="backslashreplace")',
        tests=(f"{_BY_KAFKA}::test_the_latest_record_of_each_key_stays_with_its_offset",),
    ),
    Mutant(
        "empty-value-deletes-for-kafka",
        "5.19: for clients of Kafka only a null value deletes its key",
        "participants/messages/payloads.py",
        "each.value is None) for",
        "not each.value) for",
        tests=(f"{_BY_KAFKA}::test_a_null_value_deletes_its_key_and_an_empty_one_does_not",),
    ),
    Mutant(
        "deletion-goes-before-what-it-deletes",
        "5.19: a deletion stays while a value of its key is there",
        _COMPACTING,
        "and not self._keeps_deletions and key not in self._left)",
        "and not self._keeps_deletions)",
        tests=(f"{_COMPACTED}::test_a_deletion_stays_while_a_value_of_its_key_is_in_an_entry_that_stays",),
    ),
    Mutant(
        "ledger-that-stays-is-not-remembered",
        "5.19: what stays because little would be freed counts for deletions",
        _COMPACTING,
        "            for key in of_gone:\n                self._left.add(key)\n            return\n",
        "            return\n",
        tests=(f"{_COMPACTED}::test_a_ledger_is_not_rewritten_for_next_to_nothing",),
    ),
    Mutant(
        "deletion-of-a-child-goes",
        "5.19: a deletion stays while a parent is there",
        _COMPACTING,
        "        self._keeps_deletions = await self._parents_have_entries()\n",
        "        self._keeps_deletions = False\n",
        tests=(f"{_COMPACTED}::test_a_deletion_in_a_child_stays_while_its_parent_is_there",),
    ),
    Mutant(
        "snapshot-below-the-compaction",
        "5.19: a snapshot before the compaction is refused",
        "participants/segment/reading.py",
        "        if revision < self._segment.compacted_at:\n",
        "        if False:\n",
        tests=(f"{_COMPACTED}::test_a_snapshot_before_the_compaction_is_refused",),
    ),
    Mutant(
        "hidden-in-memory-is-left-out",
        "5.19: what no index hides yet stays",
        _COMPACTING,
        "        if indexed:\n",
        "        if True:\n",
        tests=(f"{_COMPACTED}::test_what_is_hidden_only_by_memory_is_not_left_out",),
    ),
    Mutant(
        "policy-of-a-compaction-is-not-checked",
        "6: a policy that changes meanwhile counts",
        _COMPACTING,
        "naming = Naming(self._leaves_out, self._cleanup.checks)",
        "naming = Naming(self._leaves_out)",
        tests=(f"{_COMPACTED}::test_a_policy_that_changes_meanwhile_counts",),
    ),
    Mutant(
        "view-takes-what-is-there-for-what-is-gone",
        "a view under way passes over what was compacted",
        "participants/topic/compaction.py",
        "                    number = bisect_left(wanted, (position, 0), number)  # the rest was compacted\n",
        "",
        tests=(f"{_COMPACTED}::test_a_view_goes_on_while_its_ledgers_are_compacted",),
    ),
)
