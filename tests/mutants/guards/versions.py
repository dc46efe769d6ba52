"""The cluster version: what processes of two releases may write beside each other."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_UPGRADE = "metastore/upgrade.py"
_INCARNATION = "metastore/incarnation.py"
_STORE_TESTS = "tests/metastore/test_versions.py"
_BROKER_TESTS = "tests/participants/broker/test_versions.py"

VERSIONS = (
    Mutant(
        "start-does-not-touch-the-version",
        "whoever raises the version sees every process that has started",
        _INCARNATION,
        "            batch.replace(stored, stored.value)\n",
        "            pass\n",
        tests=(f"{_STORE_TESTS}::test_whoever_starts_while_the_version_is_raised_speaks_it_or_stops_that",),
    ),
    Mutant(
        "announced-after-it-has-joined",
        "a process is announced before it reads the version",
        "participants/service.py",
        "        await self._membership.announce(self.broker.id, self.url)\n        await self._guard.start()\n",
        "        await self._guard.start()\n        await self._membership.announce(self.broker.id, self.url)\n",
        tests=("tests/participants/api/test_service.py::test_it_is_announced_before_it_reads_the_cluster_version",),
    ),
    Mutant(
        "unknown-version-is-served",
        "a process does not serve a store whose version it does not speak",
        _INCARNATION,
        "            raise StoreTooNew(too_new(version, self._speaks))\n",
        "            pass\n",
        tests=(f"{_STORE_TESTS}::test_a_process_that_does_not_speak_the_version_changes_nothing",),
    ),
    Mutant(
        "raised-under-a-process",
        "a process that runs refuses a store whose version was raised above its own",
        _INCARNATION,
        "        elif version > self._speaks:\n",
        "        elif not version:\n",
        tests=(f"{_STORE_TESTS}::test_one_that_runs_refuses_the_store_once_it_has_looked",),
    ),
    Mutant(
        "old-store-passes-for-a-new-one",
        "a store that an earlier release has served keeps its version",
        _INCARNATION,
        "        if incarnation is not None:\n            return FIRST\n",
        "",
        tests=(f"{_STORE_TESTS}::test_a_store_of_release_0_2_0_keeps_its_version",),
    ),
    Mutant(
        "no-barrier",
        "release 0.2.0 serves no store above version 1",
        _UPGRADE,
        "with_barrier(known, upgrade.target).encode()",
        "known.encode()",
        tests=(f"{_STORE_TESTS}::test_the_version_is_raised_once_and_processes_learn_it",),
    ),
    Mutant(
        "barrier-lost-by-a-recovery",
        "the barrier outlives the recovery of a restored store",
        "participants/restored/recovery.py",
        "            await version_of(self._store),\n",
        "            1,\n",
        tests=("tests/participants/restored/test_rules.py::test_release_0_2_0_is_kept_out_of_a_recovered_store",),
    ),
    Mutant(
        "barrier-taken-for-a-restore",
        "the barrier is not meant for this release",
        "metastore/txn/records/processes.py",
        "return None if self.barrier else self.went_back",
        "return self.went_back",
        tests=(f"{_STORE_TESTS}::test_a_new_store_begins_with_the_version_of_its_first_process",),
    ),
    Mutant(
        "old-processes-are-overlooked",
        "a process without a record of its release speaks version 1",
        _UPGRADE,
        "            if process_id not in known:\n",
        "            if not known:\n",
        tests=(f"{_STORE_TESTS}::test_processes_of_earlier_releases_stand_in_the_way",),
    ),
    Mutant(
        "frozen-owners-are-overlooked",
        "an owner that does not run stands in the way of an upgrade",
        _UPGRADE,
        "        return [*self._old_processes(), *self._absent_owners()]\n",
        "        return self._old_processes()\n",
        tests=(f"{_STORE_TESTS}::test_the_owners_of_segments_have_to_run",),
    ),
    Mutant(
        "segment-taken-at-any-version",
        "a segment is taken only at the cluster version that was read with its record",
        "participants/segment/recovery.py",
        ").check(version)\n",
        ")\n",
        tests=(f"{_BROKER_TESTS}::test_a_segment_is_taken_only_at_the_version_that_was_read_with_it",),
    ),
    Mutant(
        "indexes-before-the-upgrade",
        "an earlier release finds what is hidden in the store",
        "participants/segment/recovery.py",
        "        if context.version.allows(Feature.HIDDEN_INDEXES):\n",
        "        if context.version.current:\n",
        tests=(f"{_BROKER_TESTS}::test_hidden_entries_stay_in_the_store",),
    ),
    Mutant(
        "removal-before-the-upgrade",
        "no segment leaves a topic that an earlier release may read",
        "participants/topic/removal.py",
        "        if not self._broker.version.allows(Feature.REMOVAL):\n            return\n",
        "",
        tests=(f"{_BROKER_TESTS}::test_trimmed_segments_stay_in_their_topic",),
    ),
    Mutant(
        "drained-before-the-upgrade",
        "a broker gives its segments up early only to brokers that know of it",
        "participants/service.py",
        "if self.broker is None or not self.broker.version.allows(Feature.DRAIN):",
        "if self.broker is None:",
        tests=("tests/participants/broker/test_draining.py::test_a_stop_drains_in_time",),
    ),
    Mutant(
        "deliveries-counted-before-the-upgrade",
        "an earlier release can open a subscription with a dead-letter topic",
        "participants/subscription/segment_subscription.py",
        " and version.allows(Feature.DELIVERY_COUNTS)",
        "",
        tests=(f"{_BROKER_TESTS}::test_a_broker_is_drained_and_deliveries_are_counted_once_every_release_knows_it",),
    ),
    Mutant(
        "schema-versions-before-the-upgrade",
        "an earlier release would drop the versions of a schema",
        "participants/messages/schema_versions.py",
        "        if not self._version.allows(Feature.SCHEMA_VERSIONS):\n",
        "        if not self._version:\n",
        tests=(f"{_BROKER_TESTS}::test_a_schema_that_producers_extend_has_no_versions_yet",),
    ),
    Mutant(
        "members-that-0.2.0-refuses",
        "a broker of an earlier release understands what others ask it",
        "participants/topic/remote_share.py",
        "        return None if self._version.allows(Feature.SHARES) else new\n",
        "        return None\n",
        tests=(f"{_BROKER_TESTS}::test_brokers_ask_each_other_as_the_earlier_release_does",),
    ),
    Mutant(
        "refused-after-the-upgrade",
        "nobody is refused once the upgrade is finalized",
        "participants/common/versions.py",
        "        version.learn(await version_of(store))\n",
        "        pass\n",
        tests=(f"{_BROKER_TESTS}::test_what_an_earlier_release_does_not_know_is_refused_until_the_version_is_raised",),
    ),
)
