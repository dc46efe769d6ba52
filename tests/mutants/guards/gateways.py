"""Mutants of the gateways: orders and guards of Kafka's protocol, each with the test that has to catch it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CALLS = "tests/gateways/test_kafka_calls.py"
_PRODUCE = "metatxn_gateways/kafka/produce.py"

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
)
