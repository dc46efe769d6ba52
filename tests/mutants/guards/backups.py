"""Backups: what they have, and how they are restored."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TAKING = "participants/backup/taking.py"
_PLACE = "participants/backup/place.py"
_RESTORING = "participants/backup/restoring.py"
_CUT = "tests/participants/backup/test_cut.py"
_PLACES = "tests/participants/backup/test_places.py"
_RESTORES = "tests/participants/backup/test_restoring.py"

BACKUPS = (
    Mutant(
        "backup-keeps-what-began-later",
        "nothing of a transaction that began after the revision is in a backup",
        "participants/backup/cut.py",
        "        return bool(decided) or (decided is False and (txn_id, segment, frame.writer) in self._writers)\n",
        "        return decided is not False or (txn_id, segment, frame.writer) in self._writers\n",
        tests=(f"{_CUT}::test_readers_see_what_was_committed_up_to_the_revision",),
    ),
    Mutant(
        "backup-keeps-new-writers",
        "what a writer without an intent has written is newer than the backup",
        "participants/backup/cut.py",
        "(decided is False and (txn_id, segment, frame.writer) in self._writers)",
        "decided is False",
        tests=(f"{_CUT}::test_a_transaction_that_stays_open_can_be_committed_later",),
    ),
    Mutant(
        "backup-ignores-collections",
        "a backup is made only if no transaction was collected that was decided meanwhile",
        _TAKING,
        "GcHorizon.decode(horizon.value).revision > before:",
        "GcHorizon.decode(horizon.value).revision < 0:",
        tests=(f"{_CUT}::test_the_backup_begins_again_when_something_was_collected_meanwhile",),
    ),
    Mutant(
        "backup-takes-a-name-again",
        "two backups that begin in the same millisecond have two names",
        _PLACE,
        "        except FileExistsError:\n            return False\n",
        "        except FileExistsError:\n            await self._bucket.put(name, first_page)\n",
        tests=(f"{_PLACES}::test_backups_that_begin_in_the_same_millisecond_have_two_names",),
    ),
    Mutant(
        "backup-judges-every-entry",
        "what was collected before the backup stays visible",
        _TAKING,
        '{"judged_from": before_cut.entries if before_cut is not None else 0}',
        '{"judged_from": 0}',
        tests=(f"{_CUT}::test_what_was_collected_before_stays_visible",),
    ),
    Mutant(
        "backup-judges-sealed-ledgers",
        "what was judged by an earlier backup is not judged again once its ledger is sealed",
        _TAKING,
        'earlier.model_copy(update={"judged_from": record.entries})',
        "earlier",
        tests=(f"{_PLACES}::test_a_ledger_that_was_sealed_since_is_not_judged_any_more",),
    ),
    Mutant(
        "backup-of-replaced-ledgers",
        "a ledger that is replaced while it is copied begins a new backup",
        _TAKING,
        "            if not await self._is_named(segment, record):  # it may have been deleted while it was read\n",
        "            if not segment:\n",
        tests=(f"{_CUT}::test_ledgers_that_are_replaced_each_time_are_an_error",),
    ),
    Mutant(
        "backup-uses-unproven-entries-again",
        "a later backup copies again what a crash may have taken away",
        _TAKING,
        "chunk.end <= earlier.settled]",
        "chunk.end <= earlier.entries]",
        tests=(f"{_PLACES}::test_what_a_crash_may_take_away_is_copied_again",),
    ),
    Mutant(
        "backup-keeps-what-a-crash-took",
        "a copy with entries that a crash has taken away is not the sealed ledger",
        _TAKING,
        "earlier.entries == earlier.settled == record.entries:",
        "earlier.settled == record.entries:",
        tests=(f"{_PLACES}::test_what_a_crash_may_take_away_is_copied_again",),
    ),
    Mutant(
        "backup-forgets-itself",
        "a backup counts although the answer to its last write was lost",
        _PLACE,
        "return await self._bucket.get(name) == content",
        "return False",
        tests=(f"{_PLACES}::test_a_backup_counts_although_the_answer_to_its_last_write_was_lost",),
    ),
    Mutant(
        "backup-takes-another-for-itself",
        "a backup of the same name is not taken for this one",
        _PLACE,
        "return await self._bucket.get(name) == content",
        "return bool(await self._bucket.get(name))",
        tests=(f"{_PLACES}::test_two_backups_of_one_name_are_an_error",),
    ),
    Mutant(
        "backup-copies-flipped-bits",
        "every frame is checked before its copy counts",
        _TAKING,
        "            check_crcs(content)\n",
        "",
        tests=(f"{_PLACES}::test_what_was_damaged_on_its_way_is_read_again",),
    ),
    Mutant(
        "backup-ends-at-damage",
        "damage in an open ledger does not make a backup shorter",
        "participants/ledger/recovery.py",
        "                _refuse_damage_to_durable(disk, fd, ledger, again)\n",
        "",
        tests=(f"{_PLACES}::test_damage_to_an_open_ledger_is_no_shorter_backup",),
    ),
    Mutant(
        "backup-ends-where-it-was-read-wrongly",
        "the end of an open ledger that was read wrongly once does not make a backup shorter",
        "participants/ledger/recovery.py",
        "        again = scan(disk, fd, ledger, found)\n        if again",
        "        again = found\n        if again",
        tests=(f"{_PLACES}::test_the_end_of_an_open_ledger_that_was_read_wrongly_is_read_again",),
    ),
    Mutant(
        "backup-that-a-power-failure-takes",
        "a backup counts once all that it names is on the device",
        "participants/backup/place.py",
        "        await self._bucket.put(name, content)\n        await self._bucket.sync(name)\n",
        "        await self._bucket.put(name, content)\n",
        tests=(f"{_PLACES}::test_in_a_directory_all_that_a_backup_names_is_synced_before_it_counts",),
    ),
    Mutant(
        "decided-headers-are-written-once",
        "a restored decision is a decision to everybody",
        "participants/backup/loading.py",
        "            value = opened[key][0]\n",
        "            del opened[key]\n",
        tests=(f"{_RESTORES}::test_a_decided_header_is_decided",),
    ),
    Mutant(
        "restored-counters-go-on",
        "no number is given out again after a restore",
        _RESTORING,
        "        await leap(self._store, now_ms)\n",
        "",
        tests=(f"{_RESTORES}::test_no_number_is_given_out_again",),
    ),
    Mutant(
        "served-before-it-is-restored",
        "no process serves a store that is not restored completely",
        _RESTORING,
        "            recovering=True,\n            restoring=manifest.id,\n",
        "",
        tests=(f"{_RESTORES}::test_a_restore_that_is_interrupted_begins_again",),
    ),
    Mutant(
        "restored-over-something-else",
        "a restore fills empty places only",
        _RESTORING,
        "        if set(await storage.directories()) - ours:\n",
        "        if not storage:\n",
        tests=(f"{_RESTORES}::test_only_empty_places_are_filled",),
    ),
    Mutant(
        "revisions-of-the-old-store",
        "a snapshot of a revision of before the restore is refused",
        _RESTORING,
        "GcHorizon(revision=revision, finalized_ms=collected_ms)",
        "GcHorizon(revision=0, finalized_ms=collected_ms)",
        tests=(f"{_CUT}::test_what_was_collected_before_stays_visible",),
    ),
)
