"""Forms of ledgers: what is written, what counts, and what goes."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

_REWRITING = "participants/segment/rewriting.py"
_INDEXING = "participants/segment/indexing.py"
_TEST = "tests/participants/segment/test_rewriting.py"
_FORMS = "tests/participants/ledger/test_forms.py"
_PREFIXES = "tests/participants/prefixes/test_prefixes.py::test_every_interrupted_prefix_ends_as_the_whole"

REWRITING = (
    Mutant(
        "form-deleted-before-it-is-named",
        "5.18: the former form goes only once the record names the new one",
        _REWRITING,
        '    await until_done(segment, lambda: _name(segment, context, rewritten), "name',
        "    await context.storage.delete_forms_before(segment.id, ledger.id, form)\n"
        '    await until_done(segment, lambda: _name(segment, context, rewritten), "name',
        tests=(f"{_TEST}::test_nothing_is_deleted_while_the_answer_is_unknown",),
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
                "    segment.ledger_sealed(record, rewritten)\n",
                "    segment.ledger_sealed(record, rewritten)\n"
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
)
