"""Mutants of the gateways: orders and guards of Kafka's protocol, each with the test that has to catch it."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

_CALLS = "tests/gateways/test_kafka_calls.py"
_PRODUCE = "metatxn_gateways/kafka/produce.py"
_COMMITS = "tests/gateways/test_kafka_offsets.py"
_GROUPS = "tests/gateways/test_kafka_groups.py"
_OFFSETS = "metatxn_gateways/kafka/offsets.py"
_BROKERS = "tests/gateways/test_kafka_brokers.py"
_PRODUCERS = "tests/gateways/test_kafka_producers.py"
_FOLLOWING = "tests/coordinator/test_following.py"
_KEYS = "coordinator/transaction_keys.py"

GATEWAYS = (
    Mutant(
        "kafka-batches-overtake-each-other",
        "5.20: batches of one connection and partition are appended in the order in which they came",
        _PRODUCE,
        "        async with turns.of(part.topic, part.partition):\n",
        "        async with asyncio.Lock():\n",
        tests=(f"{_CALLS}::test_batches_of_one_connection_are_appended_in_their_order",),
    ),
    Mutant(
        "kafka-sequences-forgotten-at-a-restart",
        "5.20: the sequence that follows is that behind the last durable batch",
        _PRODUCE,
        "            if sequences.following is None and (last := segment.dedup.last_of(entry.producer)) is not None:\n",
        "            if (last := None) is not None:\n",
        tests=(f"{_CALLS}::test_after_a_restart_a_producer_goes_on_where_its_durable_batches_end",),
    ),
    Mutant(
        "producer-after-a-restart-is-two",
        "5.20: requests of one producer that come together after a restart find one transaction",
        "metatxn_gateways/kafka/producers.py",
        "self._transactional.setdefault(producer_id, known)  # another request of it may have been faster\n",
        "known\n",
        others=(
            Edit(
                "coordinator/transactions.py",
                "self.keys.begin(request, request.transaction_key, request.epoch, follows)",
                "self.keys.begin(request, request.transaction_key, request.epoch)",
            ),
        ),
        tests=(f"{_PRODUCERS}::test_requests_at_the_same_time_find_one_producer",),
    ),
    Mutant(
        "lost-transaction-is-replaced",
        "5.22: a transaction that its producer has not ended is not replaced by another one",
        "metatxn_gateways/kafka/producers.py",
        "                if producer.was_lost:\n"
        "                    raise KafkaError(KafkaCode.INVALID_PRODUCER_EPOCH)\n"
        "                try:\n",
        "                try:\n",
        tests=(f"{_PRODUCERS}::test_a_transaction_that_was_lost_is_not_replaced_by_another",),
    ),
    Mutant(
        "late-end-ends-the-next-transaction",
        "5.22: an end counts for the transaction that is coordinated where it arrives",
        "metatxn_gateways/kafka/producers.py",
        "            if txn_id != producer.coordinated:\n",
        "            if False:\n",
        tests=(f"{_BROKERS}::test_a_late_copy_of_an_end_does_not_end_the_next_transaction",),
    ),
    Mutant(
        "late-begin-ends-the-next-transaction",
        "5.22: a begin of a producer names the transaction behind which it is",
        "metatxn_gateways/kafka/producers.py",
        "self._transactions.begin(request, follows=Follows(producer.txn_id))",
        "self._transactions.begin(request)",
        tests=(f"{_BROKERS}::test_a_late_copy_of_a_begin_does_not_end_the_next_transaction",),
    ),
    Mutant(
        "begin-behind-any-transaction",
        "5.22: a begin is refused behind another transaction than the one that it names",
        _KEYS,
        "                    _refuse_other_last(live, follows, key)\n",
        "                    pass\n",
        tests=(f"{_FOLLOWING}::test_a_begin_that_is_late_begins_nothing",),
    ),
    Mutant(
        "open-transaction-is-not-joined",
        "5.22: a begin that names the last transaction returns one that is open",
        _KEYS,
        "                if predecessor and (joins or _is_same(predecessor, request, epoch)):\n",
        "                if predecessor and _is_same(predecessor, request, epoch):\n",
        tests=(f"{_FOLLOWING}::test_an_open_transaction_is_returned_and_not_aborted",),
    ),
    Mutant(
        "everybody-is-the-holder",
        "5.22: a decision by somebody else does not tell the holder",
        "coordinator/decisions.py",
        "        if as_holder:\n",
        "        if True:\n",
        tests=(f"{_FOLLOWING}::test_the_key_tells_who_has_ended_the_last_one",),
    ),
    Mutant(
        "fenced-producer-fences-its-successor",
        "5.22: a client that has a producer id connects at the epoch at which it held the key",
        "metatxn_gateways/kafka/producers.py",
        "            if held is None or session is None or (session.producer_id, EPOCH) != before:\n",
        "            if held is None:\n",
        tests=(f"{_BROKERS}::test_a_producer_that_was_fenced_elsewhere_is_told_so",),
    ),
    Mutant(
        "leader-believes-in-the-last-transaction",
        "5.22: a batch is written in the transaction that the key holds",
        _PRODUCE,
        "            if following == entry.txn_id:\n",
        "            if True:\n",
        tests=(f"{_BROKERS}::test_transactions_follow_each_other_over_all_brokers",),
    ),
    Mutant(
        "sequences-of-another-opening",
        "5.20: what a process remembers of sequences is that of one opening of the segment",
        "metatxn_gateways/kafka/producers.py",
        "(segment.id, segment.ownership.generation, producer_id)",
        "(segment.id, 0, producer_id)",
        tests=(f"{_BROKERS}::test_a_sequence_goes_on_behind_what_another_broker_has_appended",),
    ),
    Mutant(
        "every-broker-coordinates-a-group",
        "5.21: the brokers that do not coordinate a group send its members away",
        "metatxn_gateways/kafka/coordination.py",
        "        if not self._is_ours(name):\n",
        "        if False:\n",
        tests=(f"{_BROKERS}::test_a_group_has_one_coordinator_and_the_others_refuse",),
    ),
    Mutant(
        "group-stays-where-it-was",
        "5.21: a coordinator forgets a group that moves",
        "metatxn_gateways/kafka/coordination.py",
        "            if not self._is_ours(group.name):\n",
        "            if False:\n",
        tests=(f"{_BROKERS}::test_a_join_that_waits_is_sent_on_when_the_group_moves",),
    ),
    Mutant(
        "leader-that-does-not-serve",
        "5.21: a leader is told once it has opened its segment",
        "metatxn_gateways/kafka/cluster.py",
        "            if record is None or not _is_open(SegmentRecord.decode(record.value), owned[segment_id].epoch):\n",
        "            if record is None:\n",
        tests=(f"{_BROKERS}::test_a_leader_is_told_once_it_serves",),
    ),
    Mutant(
        "topic-as-it-was-elsewhere",
        "5.20: a broker hears of topics that others have created and deleted",
        "metatxn_gateways/kafka/cluster.py",
        "        if gone or segment_id not in known.segments:\n",
        "        if False:\n",
        tests=(f"{_BROKERS}::test_a_topic_that_another_broker_has_deleted_is_not_told_any_more",),
    ),
    Mutant(
        "recently-used-without-those-in-use",
        "5.22: two requests never hold two states of one producer",
        "metatxn_gateways/kafka/recently_used.py",
        "        found = self._held.get(key)\n",
        "        found = self._last.get(key)\n",
        tests=("tests/gateways/test_kafka_recently_used.py",),
    ),
    Mutant(
        "offsets-settled-by-an-old-index",
        "5.21: what was decided earlier is not missing when a decision is settled",
        _OFFSETS,
        "            if entries == await self._entries(name) and await self._settled(name, decided):\n",
        "            if await self._settled(name, decided):\n",
        tests=(f"{_COMMITS}::test_a_transaction_that_the_index_did_not_show_yet_is_settled_in_its_turn",),
    ),
    Mutant(
        "offsets-settled-in-the-order-of-ids",
        "5.21: offsets of transactions count in the order of the decisions",
        _OFFSETS,
        "key=lambda each: each.order)",
        "key=lambda each: each.order[2])",
        tests=(f"{_COMMITS}::test_decisions_count_in_their_order_and_not_in_that_of_the_ids",),
    ),
    Mutant(
        "offset-over-unsettled-ones",
        "5.21: an offset outside a transaction is put behind what was decided before",
        _OFFSETS,
        "                await self.settle(name)\n                batch",
        "                batch",
        tests=(f"{_COMMITS}::test_an_offset_outside_stands_over_what_was_decided_before",),
    ),
    Mutant(
        "offset-of-a-former-generation",
        "5.21: every committed offset checks the generation of the group",
        _OFFSETS,
        "                batch = self._store.batch().check(AtVersion(group.key, group.version))\n"
        "                stored",
        "                batch = self._store.batch()\n                stored",
        tests=(f"{_COMMITS}::test_nothing_of_an_earlier_generation_can_be_committed",),
    ),
    Mutant(
        "offset-of-a-former-generation-in-a-transaction",
        "5.21: every offset of a transaction checks the generation of the group",
        _OFFSETS,
        "                batch = self._store.batch().check(AtVersion(group.key, group.version))\n                keys",
        "                batch = self._store.batch()\n                keys",
        tests=(f"{_COMMITS}::test_nothing_of_an_earlier_generation_can_be_committed",),
    ),
    Mutant(
        "offsets-of-aborted-transactions-count",
        "5.21: the offsets of an aborted transaction do not count",
        _OFFSETS,
        "header is None or header.state is TxnState.COMMITTED",
        "True",
        tests=(f"{_COMMITS}::test_an_offset_in_a_transaction_is_ignored_when_it_aborts",),
    ),
    Mutant(
        "offsets-that-may-change-are-stable",
        "5.21: an offset that an open transaction may change is not stable",
        _OFFSETS,
        "                unstable.update(_op(each).segment for each in operations)\n",
        "",
        tests=(f"{_COMMITS}::test_an_offset_in_a_transaction_counts_when_it_commits",),
    ),
    Mutant(
        "offset-joins-a-decided-transaction",
        "5.1: the offset of a group is put only while its transaction takes operations",
        "metastore/txn/store.py",
        "    batch.check(FirstVersion(paths.header(txn_id)), Absent(paths.prepared(txn_id)))\n    if before",
        "    if before",
        tests=(f"{_COMMITS}::test_no_offset_joins_a_transaction_that_is_decided_or_prepared",),
    ),
    Mutant(
        "former-life-of-an-instance-goes-on",
        "5.21: the earlier life of an instance is fenced",
        "metatxn_gateways/kafka/groups.py",
        "            if holder is not None and holder != member_id:\n",
        "            if False:\n",
        tests=(f"{_GROUPS}::test_an_instance_that_comes_again_keeps_its_assignment_and_fences_its_earlier_life",),
    ),
    Mutant(
        "silent-members-stay",
        "5.21: a member whose session is over is none any more",
        "metatxn_gateways/kafka/groups.py",
        "            self.leave(member, now_ms)\n",
        "            pass\n",
        tests=(f"{_GROUPS}::test_a_member_that_is_silent_or_leaves_is_replaced",),
    ),
    Mutant(
        "members-commit-for-an-earlier-generation",
        "5.21: a member commits for its own generation",
        "metatxn_gateways/kafka/groups.py",
        "        self.assert_generation(generation)\n        if self.state is GroupState.COMPLETING:\n",
        "        if self.state is GroupState.COMPLETING:\n",
        tests=(f"{_GROUPS}::test_only_members_of_the_generation_commit",),
    ),
)
