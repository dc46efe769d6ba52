"""Mutants of the gateways: orders and guards of Kafka's protocol, each with the test that has to catch it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CALLS = "tests/gateways/test_kafka_calls.py"
_PRODUCE = "metatxn_gateways/kafka/produce.py"
_COMMITS = "tests/gateways/test_kafka_offsets.py"
_GROUPS = "tests/gateways/test_kafka_groups.py"
_OFFSETS = "metatxn_gateways/kafka/offsets.py"

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
        "            known = self._transactional.get(producer_id)  # another request of it may have been faster\n",
        "",
        tests=("tests/gateways/test_kafka_producers.py",),
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
