"""The store: checks, groups, watches, incarnations, and SQLite."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_INCARNATION = "metastore/incarnation.py"
_JOINING = "metastore/backends/joining.py"
_WATCHES = "metastore/watches.py"
_SQLITE = "metastore/backends/sqlite.py"
_TEST_COMMITS = ("tests/metastore/sqlite/test_commits.py",)

METASTORE = (
    Mutant(
        "slices-by-number-alone",
        "what is cut into slices fits into applies, however long the keys are",
        "metastore/slices.py",
        " or size > store.max_batch_bytes // 2)",
        ")",
        tests=("tests/metastore/test_slices.py",),
    ),
    Mutant(
        "restored-store-is-served",
        "a store that is behind what was seen of it is served no more",
        _INCARNATION,
        "if snapshot.revision < known:",
        "if snapshot.revision < 0:",
        tests=("tests/metastore/test_incarnation.py::test_a_store_that_went_back_is_refused_by_everybody",),
    ),
    Mutant(
        "news-of-the-watch-not-compared",
        "how far a store was seen is also what a watch has told",
        _INCARNATION,
        "known = self.revision\n",
        "known = self._looked_at\n",
        tests=("tests/metastore/test_incarnation.py::test_what_a_watch_has_told_counts_as_seen",),
    ),
    Mutant(
        "restored-store-not-marked",
        "whoever sees that a store went back tells those who cannot",
        _INCARNATION,
        "            await self._mark(how)\n",
        "            pass\n",
        tests=("tests/metastore/test_incarnation.py::test_a_store_that_went_back_is_refused_by_everybody",),
    ),
    Mutant(
        "recovered-under-its-processes",
        "a process that has started before a recovery does not go on after it",
        _INCARNATION,
        "elif incarnation.id != self.id:",
        "elif not incarnation.id:",
        tests=("tests/metastore/test_incarnation.py::test_a_store_that_was_recovered_is_another_one",),
    ),
    Mutant(
        "served-while-it-is-recovered",
        "nobody starts while a store waits for its recovery",
        _INCARNATION,
        "            raise StoreWentBack(waiting)\n",
        "            pass\n",
        tests=("tests/metastore/test_incarnation.py::test_a_store_that_went_back_is_refused_by_everybody",),
    ),
    Mutant(
        "numbers-do-not-leap",
        "after a recovery a counter that the store does not know begins behind all that was given out",
        _INCARNATION,
        "return (recovered_ms or 0) * per_ms",
        "return 0",
        tests=("tests/participants/restored/test_recovery.py::test_ids_and_epochs_are_not_given_out_again",),
    ),
    Mutant(
        "lost-decision-slips-a-lease-in",
        "a decision is refused when a side record has come since it was read",
        "metastore/txn/store.py",
        "                batch.check(Absent(key))\n    return batch\n",
        "                pass\n    return batch\n",
        tests=("tests/metastore/txn/test_transactions.py::test_a_decision_loses_against_what_slipped_in",),
    ),
    Mutant(
        "at-any-version",
        "a check of a version fails once the record was written",
        "metastore/types.py",
        "return found is not None and found.version == check.version",
        "return found is not None",
        tests=(
            "tests/metastore/contract/test_apply.py::test_checks_that_fail_name_themselves_and_the_reco"
            "rd_they_met[memory]",
        ),
    ),
    Mutant(
        "another-life-is-ended",
        "a process ends its own record and not the one that somebody has written since",
        "metastore/api.py",
        "batch = self._store.batch().check(AtVersion(self._key, self._version)).delete(self._key)",
        "batch = self._store.batch().delete(self._key)",
        tests=(
            "tests/metastore/contract/test_ephemeral.py::test_a_later_record_of_the_same_key_is_not_taken_away[memory]",
        ),
    ),
    Mutant(
        "joins-what-is-in-flight",
        "an apply waits for the request in flight that it touches",
        _JOINING,
        "barriers = list(in_flight)",
        "barriers: list[Footprint] = []",
        tests=("tests/metastore/test_joining.py::test_a_write_of_what_a_request_in_flight_checks_waits",),
    ),
    Mutant(
        "overtakes-what-waits",
        "nothing overtakes a waiting apply that it touches",
        _JOINING,
        "                barriers.append(overtaken)",
        "                pass",
        tests=("tests/metastore/test_joining.py::test_nothing_overtakes_a_waiting_one_that_it_touches",),
    ),
    Mutant(
        "ranges-do-not-touch",
        "a range touches the keys in it",
        _JOINING,
        "if not (self.checked_ranges or self.written_ranges or other.written_ranges):",
        "if self.written is not None:",
        tests=("tests/metastore/test_joining.py::test_a_range_meets_the_keys_in_it",),
    ),
    Mutant(
        "request-without-a-size",
        "what travels together fits into a request",
        _JOINING,
        " and size_bytes <= self.max_bytes",
        "",
        tests=("tests/metastore/test_joining.py::test_the_first_travels_whatever_its_size",),
    ),
    Mutant(
        "watch-repeats-what-was-read",
        "a watch tells nothing from before its first revision",
        _WATCHES,
        "if changes.revision < self._from_revision:",
        "if changes.revision < 0:",
        tests=("tests/metastore/test_watches.py::test_a_watch_ahead_of_a_late_feed_repeats_nothing",),
    ),
    Mutant(
        "queue-unbounded",
        "what waits for a slow consumer has a bound",
        _WATCHES,
        "if self._queued_bytes + size > self._max_bytes:",
        "if size < 0:",
        tests=("tests/metastore/test_watches.py::test_a_backlog_that_grows_too_long_becomes_one_resync",),
    ),
    Mutant(
        "watch-from-what-is-gone",
        "a watch from what the log has forgotten begins with a Resync",
        _WATCHES,
        "if from_revision <= self.floor:",
        "if from_revision < 0:",
        tests=("tests/metastore/test_watches.py::test_the_log_forgets_its_oldest_changes_and_says_so",),
    ),
    Mutant(
        "poll-without-resync",
        "what happened before the first look is not passed over",
        "metastore/polling.py",
        'return Resync(look.revision, f"what was applied before',
        'return Changes(look.revision, ()) or Resync(look.revision, f"what was applied before',
        tests=("tests/metastore/test_polling.py::test_what_was_applied_before_its_first_look_is_a_resync",),
    ),
    Mutant(
        "sqlite-acknowledges-what-is-gone",
        "when a commit did not take, nobody is told what it said",
        _SQLITE,
        "        if not taken:\n            _forget(group)\n",
        "        if not taken:\n",
        tests=(
            "tests/metastore/sqlite/test_commits.py::test_a_commit_that_failed_and_did_not_take_is_definite_for_all",
        ),
    ),
    Mutant(
        "sqlite-commit-without-sync",
        "an acknowledged commit is on the disk",
        _SQLITE,
        '"synchronous = FULL"',
        '"synchronous = NORMAL"',
        tests=("tests/metastore/sqlite/test_commits.py::test_every_commit_reaches_the_disk",),
    ),
    Mutant(
        "sqlite-hanging-disk-is-definite",
        "a commit that hangs may take",
        _SQLITE,
        "    if job.begun:\n",
        "    if job is None:\n",
        tests=("tests/metastore/sqlite/test_commits.py::test_a_hanging_disk_ends_calls_by_their_deadline",),
    ),
    Mutant(
        "sqlite-refused-half-written",
        "what the database refuses leaves nothing behind",
        _SQLITE,
        '        connection.execute("ROLLBACK TO job")\n',
        "",
        tests=_TEST_COMMITS,
    ),
    Mutant(
        "sqlite-taken-lock-is-no-fence",
        "a commit that took although it failed is fenced too: its pages may not be on the disk",
        "metastore/backends/sqlite.py",
        "if taken or not _is_full(error):",
        "if not taken and not _is_full(error):",
        tests=(
            "tests/metastore/sqlite/test_commits.py",
            "tests/metastore/sqlite/test_every_step.py",
        ),
    ),
    Mutant(
        "check-steps-overlap",
        "the next step of a check begins behind the last record of the one before",
        "coordinator/store_checks.py",
        'start = f"{after}\\0" if after else EVERYTHING',
        "start = after or EVERYTHING",
        tests=("tests/coordinator/test_store_checks.py::test_the_steps_are_together_the_whole_check",),
    ),
    Mutant(
        "check-shows-no-findings",
        "a step tells what is wrong with its records",
        "coordinator/store_checks.py",
        "checked[key_prefix(each.key)].findings.append(finding)",
        "pass",
        tests=("tests/coordinator/test_store_checks.py::test_the_steps_are_together_the_whole_check",),
    ),
)
