"""The stores of etcd and ZooKeeper: lost replies, history, members, what ends with a process."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ETCD = "metastore/backends/etcd_group_commit.py"
_ETCD_MEMBERS = "metastore/backends/etcd_members.py"
_ZOOKEEPER = "metastore/backends/zookeeper_group_commit.py"
_ZOOKEEPER_CONNECTION = "metastore/backends/zookeeper_connection.py"
_ZOOKEEPER_LOG = "metastore/backends/zookeeper_log.py"
_ZOOKEEPER_HISTORY = "metastore/backends/zookeeper_history.py"
_ZOOKEEPER_EPHEMERALS = "metastore/backends/zookeeper_ephemerals.py"

CLUSTERS = (
    Mutant(
        "etcd-sent-again-without-a-fence",
        "a request whose reply was lost is fenced off before it is sent again",
        _ETCD,
        "return await self._fence(slot, members, name)",
        "return members",
        tests=("tests/metastore/etcd/test_lost_replies.py::test_every_member_gets_its_true_answer",),
    ),
    Mutant(
        "etcd-judged-as-of-its-own-revision",
        "a lost request is judged by what was there before it",
        _ETCD,
        "condition.add_read(request.success, revision - 1)",
        "condition.add_read(request.success, revision)",
        tests=("tests/metastore/etcd/test_lost_replies.py::test_every_member_gets_its_true_answer",),
    ),
    Mutant(
        "etcd-lone-refusal-of-an-older-revision",
        "an apply that travels alone and is refused writes nothing, so its checks failed at the revision of the answer",
        _ETCD,
        "answer.responses[1:], answer.header.revision)",
        "answer.responses[1:], answer.header.revision - 1)",
        tests=("tests/metastore/etcd/test_group_commit.py::test_a_lone_apply_that_is_refused_writes_nothing",),
    ),
    Mutant(
        "etcd-lone-apply-is-nested",
        "an apply that travels alone is not nested",
        _ETCD,
        "slot.flat = slot.flat or len(slot.members) == 1",
        "slot.flat = slot.flat or len(slot.members) == 0",
        tests=("tests/metastore/etcd/test_group_commit.py::test_a_lone_apply_that_is_refused_writes_nothing",),
    ),
    Mutant(
        "etcd-no-space-is-believed",
        "the request that crosses the quota is applied, whatever the answer says",
        _ETCD,
        "        if found and found[0].value == name:\n"
        "            return await self._settle(slot, members, found, name, fence=None)\n        for",
        "        for",
        tests=("tests/metastore/etcd/test_lost_replies.py::test_no_space_is_believed_only_after_a_look_at_the_marker",),
    ),
    Mutant(
        "etcd-deadline-is-definite",
        "a write that was sent and not answered is an unknown outcome",
        "metastore/backends/pending.py",
        'pending.fail(OutcomeUnknown(f"no answer from {self._server}"))',
        'pending.fail(self._unavailable("no answer"))',
        tests=(
            "tests/metastore/etcd/test_lost_replies.py::test_an_answer_that_never_comes_is_unknown_and_settled_later",
        ),
    ),
    Mutant(
        "closed-before-the-answers",
        "closing a store finishes what was called before",
        "metastore/backends/pending.py",
        "            await asyncio.wait(waiting)\n",
        "            break\n",
        tests=("tests/metastore/contract/test_apply.py::test_closing_finishes_what_was_called_before",),
    ),
    Mutant(
        "etcd-another-cluster",
        "a member is taken up when it is of the cluster that named it",
        _ETCD_MEMBERS,
        "if (header.cluster_id, header.member_id) != (cluster_id, member_id):",
        "if header.member_id != member_id:",
        tests=("tests/metastore/etcd/test_members.py::test_another_member_or_a_member_of_another_cluster_is_not",),
    ),
    Mutant(
        "etcd-member-without-tls",
        "no member is asked less safely than the ones that were given",
        _ETCD_MEMBERS,
        'return url.startswith("https://") == secure and',
        "return secure is not None and",
        tests=("tests/metastore/etcd/test_members.py::test_nobody_is_taken_up_who_is_less_safe_than_what_was_given",),
    ),
    Mutant(
        "zookeeper-sent-again-without-a-fence",
        "a request whose reply was lost is fenced off before it is sent again",
        _ZOOKEEPER,
        "            return await self._fence(request)",
        "            self._put_back(request)\n            return False",
        tests=("tests/metastore/zookeeper/test_lost_replies.py::test_every_member_gets_its_true_answer",),
    ),
    Mutant(
        "zookeeper-loss-is-not-noticed",
        "the version of a log that is lower than it was shows that the ensemble has lost writes",
        _ZOOKEEPER,
        "        if home is None or self._lost(self._log, home.stat.version):",
        "        if home is None:",
        tests=(
            "tests/metastore/zookeeper/test_lost_replies.py::test_an_ensemble_that_forgets_what_it_acknowledged_is_told",
        ),
    ),
    Mutant(
        "zookeeper-group-as-large-as-it-gets",
        "a group that turns out too large for a request is divided",
        _ZOOKEEPER,
        "        while request.size_bytes > MAX_REQUEST_BYTES and len(prepared) > 1:",
        "        while False:",
        tests=(
            "tests/metastore/zookeeper/test_group_commit.py"
            "::test_a_group_that_turns_out_too_large_for_a_request_is_divided",
        ),
    ),
    Mutant(
        "zookeeper-batch-as-large-as-it-gets",
        "a batch that turns out too large for a request is refused, and nothing else waits for it",
        _ZOOKEEPER,
        "        if request.size_bytes > MAX_REQUEST_BYTES:\n",
        "        if False:\n",
        tests=(
            "tests/metastore/zookeeper/test_group_commit.py"
            "::test_a_batch_that_turns_out_too_large_for_a_request_is_refused",
        ),
    ),
    Mutant(
        "zookeeper-requests-numbered-again",
        "requests are numbered on from one connection to the next",
        _ZOOKEEPER_CONNECTION,
        "        if number:\n            self._last_number",
        "        if number is not None:\n            self._last_number",
        tests=("tests/metastore/zookeeper/test_failover.py",),
    ),
    Mutant(
        "zookeeper-thread-ends",
        "an answer that kazoo does not expect costs the connection, not the thread",
        _ZOOKEEPER_CONNECTION,
        "        except Exception:  # noqa: BLE001  kazoo",
        "        except AssertionError:  # kazoo",
        tests=("tests/metastore/zookeeper/test_faults.py::test_an_answer_out_of_order_costs_the_connection_only",),
    ),
    Mutant(
        "zookeeper-restored-server-is-taken",
        "a new connection is compared with what was seen before it is used",
        _ZOOKEEPER_CONNECTION,
        "        if how is not None:\n",
        "        if how is not None and change == 0:\n",
        tests=(
            "tests/metastore/zookeeper/test_restored.py::test_nothing_is_read_from_or_written_into_a_restored_server",
        ),
    ),
    Mutant(
        "zookeeper-applies-not-counted",
        "zxids of a restored ensemble are above those that were seen: the number of applies tells",
        _ZOOKEEPER_CONNECTION,
        "    if applies < 0:\n",
        "    if applies < 0 and tip.mzxid < seen.mzxid:\n",
        tests=("tests/metastore/zookeeper/test_restored.py",),
    ),
    Mutant(
        "zookeeper-waiting-is-served",
        "what has waited for a connection is not sent to a store that went back",
        _ZOOKEEPER_CONNECTION,
        "        if self._behind is not None and not is_telling():\n",
        "        if self._behind is not None and not self._changes:\n",
        tests=(
            "tests/metastore/zookeeper/test_restored.py::test_nothing_is_read_from_or_written_into_a_restored_server",
        ),
    ),
    Mutant(
        "zookeeper-fence-in-the-past",
        "a request is not sent again if the ensemble may still reach the version that it demands",
        _ZOOKEEPER,
        "        if self._lost(log, fenced.version - 1):",
        "        if self._lost(log, fenced.version - 1) and not request.members:",
        tests=(
            "tests/metastore/zookeeper/test_lost_replies.py::test_an_ensemble_that_forgets_what_it_acknowledged_is_told",
        ),
    ),
    Mutant(
        "lost-writes-are-not-told",
        "a store that has lost what it acknowledged is refused by every process",
        "metastore/incarnation.py",
        "        if self._store.lost_writes is not None:",
        "        if self._store.lost_writes is not None and not self.id:",
        tests=(
            "tests/metastore/test_incarnation.py::"
            "test_a_store_that_lost_what_it_had_acknowledged_is_refused_by_everybody",
        ),
    ),
    Mutant(
        "zookeeper-fence-lowers-the-floor",
        "the floor of a log says what may be gone, also after a fence",
        _ZOOKEEPER,
        'set_data(home, b"%d" % request.floor)',
        'set_data(home, b"0")',
        tests=("tests/metastore/zookeeper/test_old_history.py::test_a_fence_never_lowers_the_floor_of_a_log",),
    ),
    Mutant(
        "zookeeper-gap-not-told",
        "a log that does not reach back far enough is a Resync",
        _ZOOKEEPER_LOG,
        "if floor_of(holder) > self.revision:",
        "if floor_of(holder) < 0:",
        tests=("tests/metastore/zookeeper/test_faults.py::test_a_log_trimmed_behind_a_lost_session_is_a_resync",),
    ),
    Mutant(
        "zookeeper-hole-is-the-end",
        "a number without an entry is not the end of a log",
        _ZOOKEEPER_LOG,
        "if end > self._next[writer]:",
        "if end < 0:",
        tests=(
            "tests/metastore/zookeeper/test_lost_replies.py::test_a_number_that_was_fenced_off_hides_nothing_behind_it",
        ),
    ),
    Mutant(
        "zookeeper-recreated-is-the-same",
        "a record that was deleted and created again is another one",
        "metastore/backends/zookeeper_plan.py",
        "self._check_guard(part, key, belief)\n            case FirstVersion",
        "pass\n            case FirstVersion",
        tests=(
            "tests/metastore/zookeeper/test_group_commit.py::test_a_record_that_was_deleted_and_created_again_is_another",
        ),
    ),
    Mutant(
        "zookeeper-log-of-the-waking",
        "a log is removed unless its writer has written since it was looked at",
        _ZOOKEEPER_HISTORY,
        "        if await self._delete(entries[:-1], unchanged):\n"
        "            last = [*map(delete_op, entries[-1:]), delete_op(home)]\n"
        "            await self._connection.ask(Multi([unchanged, *last]), self._deadline())",
        "        if await self._delete(entries):\n"
        "            await self._connection.ask(Multi([delete_op(home)]), self._deadline())",
        tests=("tests/metastore/zookeeper/test_old_history.py::test_a_log_whose_writer_wakes_up_stays",),
    ),
    Mutant(
        "zookeeper-takes-the-name-back",
        "a record that somebody else has put in a new session's meantime is theirs",
        _ZOOKEEPER_EPHEMERALS,
        "            if version is not None and not is_ours:\n                self._held.remove(held)\n"
        "                return\n",
        "",
        tests=("tests/metastore/zookeeper/test_ephemerals.py::test_somebody_elses_record_is_left_alone",),
    ),
    Mutant(
        "zookeeper-own-record-is-anothers",
        "a record that was put without an answer is known again as ours",
        _ZOOKEEPER_EPHEMERALS,
        "        held.holders.append(holder)\n",
        "        held.holders = [holder]\n",
        tests=(
            "tests/metastore/zookeeper/test_ephemerals.py::test_a_record_that_nobody_has_cleaned_up_is_known_as_ours",
        ),
    ),
    Mutant(
        "etcd-member-that-cannot-serve-is-kept",
        "a member that says that it cannot serve is left",
        "metastore/backends/etcd_connection.py",
        "                self.members.leave(member, silent=False)\n",
        "                pass\n",
        tests=("tests/metastore/etcd/test_failover.py::test_a_member_that_says_that_it_cannot_serve_is_left_at_once",),
    ),
    Mutant(
        "etcd-unread-answer-ends-nobodys-waiting",
        "an answer that cannot be read leaves nobody waiting",
        _ETCD,
        "                if not member.answer.done() and member not in again:\n",
        "                if member is None:\n",
        tests=("tests/metastore/etcd/test_lost_replies.py::test_an_answer_that_cannot_be_read_leaves_nobody_waiting",),
    ),
    Mutant(
        "zookeeper-torn-range",
        "a range is as of one revision, however many requests it took",
        "metastore/backends/zookeeper_reads.py",
        "if self.first.stat.mzxid == self.last.stat.mzxid:",
        "if self.first is not None:",
        tests=(
            "tests/metastore/contract/test_reads.py::test_a_read_sees_one_state[zookeeper-few]",
            "tests/metastore/zookeeper/test_listings.py",
        ),
    ),
    Mutant(
        "zookeeper-torn-records",
        "many records are as of one revision, however many requests it took",
        "metastore/backends/zookeeper_reads.py",
        "found.update((event.key, event.record) for event in changed if event.key in found)",
        "assert changed is not None",
        tests=(
            "tests/metastore/zookeeper/test_reads.py::test_records_are_of_one_revision_whatever_is_written_between_two_requests",
        ),
    ),
    Mutant(
        "zookeeper-large-read-has-one-deadline",
        "a read of very many records has the time of a request for each group of its requests",
        "metastore/backends/zookeeper_reads.py",
        "self._deadline = self._time() + self._patience_s",
        "self._deadline += 0",
        tests=("tests/metastore/zookeeper/test_reads.py",),
    ),
    Mutant(
        "zookeeper-large-read-does-not-follow-the-log",
        "a read of very many records takes changes from the log before they are trimmed",
        "metastore/backends/zookeeper_reads.py",
        """                await self._follow()
                self._deadline""",
        """                self._deadline""",
        tests=("tests/metastore/zookeeper/test_reads.py",),
    ),
    Mutant(
        "zookeeper-large-read-forgets-changes",
        "a read of very many records lays over it what changed while any of them were read",
        "metastore/backends/zookeeper_reads.py",
        "self._changed += [",
        "self._changed = [",
        tests=("tests/metastore/zookeeper/test_reads.py",),
    ),
    Mutant(
        "etcd-torn-records",
        "many records are as of one revision, however many requests it took",
        "metastore/backends/etcd.py",
        "RangeRequest(key=self._wire.key(key), revision=revision)",
        "RangeRequest(key=self._wire.key(key))",
        tests=("tests/metastore/contract/test_reads.py::test_a_read_sees_one_state[etcd-many]",),
    ),
    Mutant(
        "etcd-compacted-between-two-parts",
        "many records are read again when their revision is compacted away between two parts",
        "metastore/backends/etcd.py",
        "                continue  # from the first key on, at a newer revision",
        "                later = ()",
        tests=(
            "tests/metastore/etcd/test_group_reads.py::test_what_is_compacted_away_between_two_parts_is_read_again",
        ),
    ),
    Mutant(
        "etcd-late-put-takes-the-record",
        "a put that arrives late takes nothing from somebody else",
        "metastore/backends/etcd_leases.py",
        "request = TxnRequest(compare=[unchanged], success=",
        "request = TxnRequest(success=",
        tests=("tests/metastore/etcd/test_leases.py::test_a_put_that_arrives_late_takes_nothing_from_somebody_else",),
    ),
    Mutant(
        "etcd-call-without-an-end",
        "a call ends soon after its deadline, whatever gRPC does",
        "metastore/backends/etcd_connection.py",
        "async with EndedAt(sent_at + timeout_s + HUNG_S):",
        "async with EndedAt(sent_at + 1e9):",
        tests=("tests/metastore/etcd/test_streams.py::test_a_lease_is_renewed_whenever_its_channel_was_closed",),
    ),
    Mutant(
        "etcd-watch-is-begun-for-ever",
        "a watch that the server does not create in time is begun again",
        "metastore/backends/etcd_watches.py",
        "async with EndedAt(asyncio.get_running_loop().time() + CREATED_WITHIN_S):",
        "async with EndedAt(asyncio.get_running_loop().time() + 1e9):",
        tests=("tests/metastore/etcd/test_streams.py::test_a_watch_goes_on_whenever_its_channel_was_closed",),
    ),
    Mutant(
        "etcd-record-not-put-again",
        "each round puts the record when it is not there, whatever failed in the one before",
        "metastore/backends/etcd_leases.py",
        "            await self._grant()\n        await self._place()\n",
        "            await self._grant()\n            await self._place()\n",
        tests=("tests/metastore/etcd/test_leases.py::test_whatever_step_fails_the_next_whole_round_brings_it_back",),
    ),
    Mutant(
        "etcd-marker-of-a-lost-request-removed",
        "the marker of a request that was lost stays: it fences that request off",
        "metastore/backends/etcd_group_commit.py",
        "if slot.version and not slot.ever_lost",
        "if slot.version",
        tests=(
            "tests/metastore/etcd/test_lost_replies.py::test_a_request_that_lost_against_the_fence_never_lands_after_its_store_was_closed",
        ),
    ),
    Mutant(
        "etcd-sent-again-behind-the-others",
        "what is sent again goes before what waits",
        "metastore/backends/etcd_group_commit.py",
        "self._queue.extendleft(member for member in reversed(again) if not member.answer.done())",
        "self._queue.extend(member for member in again if not member.answer.done())",
        tests=("tests/metastore/etcd/test_lost_replies.py::test_what_is_sent_again_goes_before_what_waits",),
    ),
    Mutant(
        "etcd-repeated-events-are-told",
        "what a server repeats is told once",
        "metastore/backends/etcd_watches.py",
        "if revision < self._next_revision:",
        "if revision < 0:",
        tests=("tests/metastore/etcd/test_watches.py::test_what_a_server_repeats_is_told_once",),
    ),
    Mutant(
        "etcd-fragment-is-taken-for-all",
        "a revision that comes in fragments is told whole",
        "metastore/backends/etcd_watches.py",
        "if events and not response.fragment:",
        "if events:",
        tests=("tests/metastore/etcd/test_watches.py::test_a_large_revision_arrives_whole",),
    ),
)
