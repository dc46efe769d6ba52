"""Ledgers of both storages, and the recovery of a cluster whose store was restored."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LOCAL = "participants/ledger/local_files.py"
_RECOVERY = "participants/ledger/recovery.py"
_OBJECTS = "participants/ledger/object_storage.py"
_RESTORED = "participants/restored/recovery.py"
_DECISIONS = "participants/restored/transactions.py"
_FOUND = "participants/restored/ledgers.py"
_LEAPS = "participants/restored/sequences.py"
_SEEN = "participants/restored/seen_store.py"

LEDGERS = (
    Mutant(
        "new-ledger-not-in-its-directory",
        "a new ledger is durable with its name",
        _LOCAL,
        "                self.disk.fsync(fd)\n                self.disk.fsync_dir(path.parent)\n",
        "                self.disk.fsync(fd)\n",
        tests=("tests/participants/ledger/test_recovery.py::test_a_new_ledger_is_durable_with_its_directories",),
    ),
    Mutant(
        "recorded-length-not-compared",
        "a sealed ledger has as many entries as were recorded",
        _LOCAL,
        "if len(offsets) - 1 != entries:",
        "if entries < 0:",
        tests=("tests/participants/ledger/test_recovery.py::test_another_length_than_recorded_is_refused",),
    ),
    Mutant(
        "damage-taken-for-a-torn-tail",
        "what was durable is not cut off because it is damaged",
        _RECOVERY,
        "if found.damage is not None and durable_bytes is None:",
        "if found.foreign and durable_bytes is None:",
        tests=("tests/participants/ledger/test_torn_groups.py::test_damage_to_a_group_with_a_later_one_is_corrupt",),
    ),
    Mutant(
        "damage-taken-for-a-torn-tail-of-kafka",
        "a frame of any kind proves what was durable before it",
        _RECOVERY,
        "% (HIGHEST_KIND, POSITION",
        "% (2, POSITION",
        tests=("tests/participants/ledger/test_torn_groups.py::test_a_frame_of_any_kind_is_a_proof",),
    ),
    Mutant(
        "frame-of-a-later-release-is-cut",
        "what a later release has written is not cut off as a torn tail",
        _RECOVERY,
        "        except NewerFrame as error:\n",
        "        except ZeroDivisionError as error:\n",
        tests=(
            "tests/participants/ledger/test_torn_groups.py::test_a_whole_frame_of_a_later_release_is_no_torn_group",
        ),
    ),
    Mutant(
        "frame-of-a-later-release-is-damage",
        "what a later release has written is not called damaged",
        _RECOVERY,
        "            found.newer = True\n",
        "",
        tests=(
            "tests/participants/ledger/test_torn_groups.py::test_a_whole_frame_of_a_later_release_is_no_torn_group",
        ),
    ),
    Mutant(
        "form-of-a-later-release-is-damage",
        "what a later release has written is not called damaged",
        "participants/ledger/reading.py",
        "if isinstance(error, NewerFrame | FormTooNew | IndexTooNew):",
        "if isinstance(error, NewerFrame | IndexTooNew):",
        tests=("tests/participants/ledger/test_forms.py::test_a_file_of_a_later_release_is_left_alone",),
    ),
    Mutant(
        "object-of-a-later-release-is-damage",
        "what a later release has written is not called damaged",
        "participants/ledger/objects.py",
        "if content[: len(_MAGIC)] in _LATER_MAGICS:",
        "if content == _LATER_MAGICS:",
        tests=("tests/participants/ledger/test_objects.py::test_an_object_of_a_later_release_is_not_called_damaged",),
    ),
    Mutant(
        "sqlite-file-of-a-later-release-is-opened",
        "a file of a later release is left alone",
        "metastore/backends/sqlite.py",
        'if _one(connection, "PRAGMA user_version") > FORMAT_VERSION:',
        'if _one(connection, "PRAGMA user_version") < 0:',
        tests=("tests/metastore/sqlite/test_processes.py::test_a_file_of_a_later_release_is_left_alone",),
    ),
    Mutant(
        "sealed-without-writing-again",
        "what a seal answers is on the device although an earlier sync failed",
        _RECOVERY,
        "    _rewrite(disk, fd, max(0, found.end - REWRITE_BYTES), found.end)\n",
        "",
        tests=(
            "tests/participants/ledger/test_faults.py::test_what_a_seal_returns_is_on_the_device_although_a_sync_failed",
        ),
    ),
    Mutant(
        "large-read-holds-the-loop",
        "a large read of an open ledger keeps nobody waiting",
        "participants/ledger/local_ledger.py",
        " or end - begin > AT_ONCE_BYTES",
        "",
        tests=("tests/participants/ledger/test_read_at_once.py::test_a_large_read_keeps_nobody_waiting",),
    ),
    Mutant(
        "closed-descriptor-is-read-at-once",
        "a descriptor that was closed is not read: it may be that of another file",
        "participants/ledger/local_ledger.py",
        "self._fd < 0 or ",
        "",
        tests=(
            "tests/participants/ledger/test_read_at_once.py::test_a_ledger_whose_file_was_closed_is_read_in_a_thread",
        ),
    ),
    Mutant(
        "part-of-a-read-counts",
        "a read from memory answers with all of the bytes or with none",
        "participants/ledger/disk.py",
        " if found == size else None",
        "",
        tests=("tests/participants/ledger/test_read_at_once.py::test_a_short_read_does_not_count",),
    ),
    Mutant(
        "no-space-answered-too-early",
        "no space is answered once what was written of the group is gone",
        "participants/ledger/group_commit.py",
        "        disk.truncate(fd, offset)\n        disk.fsync(fd)\n",
        "        disk.truncate(fd, offset)\n",
        tests=("tests/participants/ledger/test_faults.py::test_no_space_is_answered_after_the_truncation_is_durable",),
    ),
    Mutant(
        "group-unbounded",
        "an unsynced group has a bound: recovery relies on it",
        "participants/ledger/append_queue.py",
        "while self._queue and size < GROUP_BYTES:",
        "while self._queue:",
        tests=("tests/participants/ledger/test_group_commit.py::test_a_group_is_bounded",),
    ),
    Mutant(
        "idle-before-the-last-answer",
        "a ledger is idle once its last appends are answered",
        "participants/ledger/append_queue.py",
        "            self._resolve(group, outcome)\n",
        "            self._idle_if_done()\n            self._loop.call_soon(self._resolve, group, outcome)\n",
        tests=("tests/participants/ledger/test_contract.py::test_who_has_ended_appends_finds_all_of_them_answered",),
    ),
    Mutant(
        "frame-without-its-crc",
        "a flipped bit is noticed",
        "metatxn/wire/frames.py",
        "if crc32(view[start:end]) != crc:",
        "if crc < 0:",
        tests=("tests/participants/ledger/test_frames.py::test_a_flipped_bit_is_noticed",),
    ),
    Mutant(
        "crcs-of-nothing",
        "an area of zero bytes is no frame, although it matches its CRC",
        "metatxn/wire/frames.py",
        "if not least <= length <= most or",
        "if length > most or",
        tests=("tests/participants/ledger/test_frames.py::test_checking_crcs_finds_what_peeking_finds",),
    ),
    Mutant(
        "lost-storage-id-is-made-again",
        "a storage that has lost its id is not a new one: its ledgers would be orphans",
        "participants/ledger/local.py",
        '    if disk.exists(data_dir / "ledgers"):\n        raise storage_id.lost(str(path))\n',
        "",
        tests=("tests/participants/ledger/test_processes.py::test_a_lost_storage_id_is_not_replaced",),
    ),
    Mutant(
        "anothers-object-taken-for-ours",
        "a name that is taken is ours when the token says so",
        "participants/ledger/objects.py",
        "if await token_of(bucket, name) != token:",
        "if await token_of(bucket, name) is None:",
        tests=("tests/participants/ledger/test_objects.py::test_a_former_owner_adds_nothing",),
    ),
    Mutant(
        "lost-object-is-the-end",
        "an object behind a hole tells that one was lost",
        _OBJECTS,
        "if header.token == token and header.durable > index.entries:",
        "if header.durable < 0:",
        tests=("tests/participants/ledger/test_objects.py::test_a_lost_object_is_no_end",),
    ),
    Mutant(
        "deleted-without-a-fence",
        "a former owner that wakes up after the deletion is still fenced off",
        _OBJECTS,
        "if start in sizes and not any(map(_is_fence, sizes, sizes.values())):",
        "if start in sizes and not sizes:",
        tests=(
            "tests/participants/ledger/test_objects.py::test_a_former_owner_that_wakes_up_after_the_ledger_was_deleted_is_still_fenced_off",
        ),
    ),
    Mutant(
        "store-without-conditions",
        "an object store that overwrites what was to be created is refused",
        _OBJECTS,
        '    raise StorageRefused("this object store ignores',
        "    return storage_id.parse(storage_id.FILE_NAME, content)\n"
        '    raise StorageRefused("this object store ignores',
        tests=("tests/participants/ledger/test_objects.py::test_a_store_that_ignores_conditions_is_refused",),
    ),
    Mutant(
        "cached-objects-unbounded",
        "the cache of objects has a bound",
        "participants/ledger/object_ledger.py",
        "while self._bytes > _CACHE_BYTES:",
        "while self._bytes < 0:",
        tests=("tests/participants/ledger/test_objects.py::test_no_more_objects_are_kept_than_memory_allows",),
    ),
    Mutant(
        "damaged-meanwhile-is-sent",
        "a large entry is whole in each of its chunks",
        "participants/api/frames_response.py",
        "if crc32(chunk) != self._sums[number]:",
        "if number < 0:",
        tests=("tests/participants/api/test_frames_response.py::test_what_is_damaged_by_then_is_not_sent",),
    ),
    Mutant(
        "store-away-within-an-answer",
        "an answer that cannot be finished is left unfinished, whatever the reason",
        "participants/api/frames_response.py",
        "(LedgerError, MetastoreError, errors.MetatxnError)",
        "(LedgerError, errors.MetatxnError)",
        tests=(
            "tests/participants/api/test_frames_response.py::test_what_cannot_be_read_to_its_end_is_left_unfinished",
        ),
    ),
    Mutant(
        "recovery-decides-the-prepared",
        "a prepared transaction waits for its external coordinator, through a recovery too",
        _DECISIONS,
        "if records.prepared_record is not None:",
        "if not records.header_record:",
        tests=("tests/participants/restored/test_rules.py::test_what_is_prepared_waits_for_its_external_coordinator",),
    ),
    Mutant(
        "collected-transactions-are-hidden",
        "what was written before the headers' collection was decided before the backup",
        _DECISIONS,
        "if header is None and found.published_ms[txn_id] <= collected_ms:",
        "if header is None and found.published_ms[txn_id] < 0:",
        tests=(
            "tests/participants/restored/test_rules.py::test_what_has_no_header_was_collected_or_began_after_the_backup",
        ),
    ),
    Mutant(
        "undecided-writes-are-shown",
        "what a transaction has written after the backup is hidden when it is aborted",
        _DECISIONS,
        "if (header.state if header else decision) is TxnState.ABORTED:",
        "if header is not None and header.state is TxnState.ABORTED:",
        tests=("tests/participants/restored/test_recovery.py::test_a_restored_cluster",),
    ),
    Mutant(
        "key-holds-what-recovery-decided",
        "a recovery decides under a key as the coordinator does",
        "metastore/txn/operator_decisions.py",
        'update={"txn_id": None, "last_version": last_version}',
        'update={"last_version": last_version}',
        tests=(
            "tests/participants/restored/test_rules.py::test_a_transaction_under_a_key_is_decided_as_the_coordinator_does",
        ),
    ),
    Mutant(
        "lost-ledgers-count-as-trimmed",
        "a segment that has lost ledgers is not served, unless that is accepted",
        _FOUND,
        "return bool(self.missing) and not trimmed",
        "return False",
        tests=("tests/participants/restored/test_rules.py::test_a_trim_takes_the_oldest_ledgers_and_never_all",),
    ),
    Mutant(
        "deleted-segment-comes-back",
        "the rest of a deleted segment is adopted by nobody",
        _FOUND,
        "if not numbers or (named is not None and await was_deleted(store, named)):",
        "if not numbers:",
        tests=("tests/participants/restored/test_rules.py::test_the_rest_of_a_deleted_segment_is_adopted_by_nobody",),
    ),
    Mutant(
        "anothers-storage-is-recovered",
        "the ledgers of another cluster are refused",
        _RESTORED,
        "if not any(segment.stored is not None for segment in known):",
        "if not known:",
        tests=("tests/participants/restored/test_rules.py::test_the_storage_of_another_cluster_is_not_recovered",),
    ),
    Mutant(
        "recovered-under-running-services",
        "nothing is recovered while a service is announced",
        _RESTORED,
        "        await self._until_nobody_is_announced()\n",
        "",
        tests=("tests/participants/restored/test_rules.py::test_nothing_is_recovered_while_a_service_runs",),
    ),
    Mutant(
        "adopted-before-it-is-hidden",
        "what is to be hidden is hidden before the store knows the ledgers",
        _RESTORED,
        "            recovered.hidden += await transactions.hide(found, wishes.undecided)\n"
        "            await ledgers.adopt(segment, sealed)\n",
        "            await ledgers.adopt(segment, sealed)\n"
        "            recovered.hidden += await transactions.hide(found, wishes.undecided)\n",
        tests=("tests/participants/restored/test_rules.py::test_what_is_hidden_is_hidden_before_its_ledger_is_known",),
    ),
    Mutant(
        "epochs-do-not-leap",
        "an epoch that was given out after the backup is not given out again",
        _LEAPS,
        '"epoch": max(key.epoch, now_ms)',
        '"epoch": key.epoch',
        tests=(
            "tests/participants/restored/test_rules.py::test_every_counter_leaps_behind_what_may_have_been_given_out",
        ),
    ),
    Mutant(
        "generations-do-not-leap",
        "a generation that was had after the backup is not had again",
        _LEAPS,
        "generation = max(owner.generation, now_ms)",
        "generation = owner.generation",
        tests=(
            "tests/participants/restored/test_rules.py::test_every_counter_leaps_behind_what_may_have_been_given_out",
        ),
    ),
    Mutant(
        "ids-do-not-leap",
        "an id that was given out after the backup is not given out again",
        _LEAPS,
        "max(int(value), now_ms * IDS_PER_MS)",
        "int(value)",
        tests=(
            "tests/participants/restored/test_rules.py::test_every_counter_leaps_behind_what_may_have_been_given_out",
        ),
    ),
    Mutant(
        "merge-of-the-backup-goes-on",
        "a segment that was sealed for a merge which is given up has a child",
        "participants/restored/merges.py",
        'if record.state == "sealed":',
        'if record.state == "deleted":',
        tests=(
            "tests/participants/restored/test_rules.py::test_who_was_sealed_for_a_merge_that_is_given_up_has_a_child",
        ),
    ),
    Mutant(
        "broker-of-a-restored-store-starts",
        "a broker does not start on a store that is behind what its storage has seen",
        _SEEN,
        "if self._guard.revision < seen.revision:",
        "if seen.revision < 0:",
        tests=(
            "tests/participants/restored/test_rules.py::test_a_broker_starts_on_the_store_that_its_storage_has_seen",
        ),
    ),
    Mutant(
        "store-not-looked-at-again",
        "a store is behind what brokers have seen only if it is after that was read",
        _SEEN,
        "await self._guard.look()  #",
        "#",
        tests=(
            "tests/participants/restored/test_rules.py::test_a_broker_starts_beside_another_one_that_has_just_seen_more",
        ),
    ),
    Mutant(
        "broker-of-another-store-starts",
        "a broker does not start with the ledgers of another store",
        _SEEN,
        "if seen.incarnation != self._guard.id:",
        "if not seen.incarnation:",
        tests=(
            "tests/participants/restored/test_rules.py::test_a_broker_starts_on_the_store_that_its_storage_has_seen",
        ),
    ),
)
