"""A program that publishes under a producer and sequences of its own may repeat all of it. Issue 20, §4.

Method: a cluster in one process, and a second client in place of the restarted program.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import metatxn
from metatxn.wire.broker import hash_of_key
from metatxn.wire.names import SegmentParts
from tests.metatxn.dev_server import DevServer


def test_a_restarted_program_publishes_nothing_twice(
    client: metatxn.Client, new_topic: Callable[..., str], dev: DevServer
) -> None:
    topic = new_topic(2)
    keys = [str(number) if number % 3 else None for number in range(12)]

    def program(client: metatxn.Client, up_to: int) -> list[str]:
        return [
            client.publish(topic, {"row": row}, keys[row], {"by": "hand"}, producer="importer", sequence=row)
            for row in range(up_to)
        ]

    first = program(client, 8)
    client.split_segment(client.topic(topic).segments[0].segment)
    with metatxn.connect(dev.broker_url) as restarted:
        assert program(restarted, 12)[:8] == first
    found = list(client.reader(topic))
    assert sorted(message.value["row"] for message in found) == list(range(12))
    assert {message.key for message in found} == set(keys)
    assert found[0].properties == {"by": "hand"}
    client.publish(topic, b"another", producer="other", sequence=0)
    assert len(list(client.reader(topic))) == 13, "sequences are those of a producer"


def test_127_a_restarted_program_sends_again_in_other_batches(
    client: metatxn.Client, new_topic: Callable[..., str], dev: DevServer
) -> None:
    topic = new_topic(2)
    keys = [str(number % 7) if number % 3 else None for number in range(60)]

    def program(client: metatxn.Client, first: int, end: int, size: int) -> list[str]:
        with client.producer(topic, "importer", size, sequenced=True) as producer:
            sent = [producer.send(number, keys[number], sequence=number) for number in range(first, end)]
        return [each.result() for each in sent]

    first = program(client, 0, 30, 7)
    client.split_segment(client.topic(topic).segments[0].segment)
    with metatxn.connect(dev.broker_url) as restarted:
        again = program(restarted, 10, 50, 4)
    assert again[:20] == first[10:]
    middle = client.topic(topic).segments
    client.merge_segments(*[each.segment for each in middle if each.state == "active"][-2:])
    assert program(client, 5, 60, 1_000)[:25] == first[5:]
    found = [message.value for message in client.reader(topic)]
    assert sorted(found) == list(range(60))
    for key in set(keys) - {None}:
        assert (of_key := [each for each in found if keys[each] == key]) == sorted(of_key)


def test_127_what_moves_to_the_child_of_a_merge_is_sent_in_the_order_of_its_sequences() -> None:
    """Otherwise what is sent behind a higher one would count as there. Each lane is in its order before."""
    producer = metatxn.connect_async("http://127.0.0.1:1").producer("t", "p", sequenced=True)
    left, right = (
        [producer.outgoing(0, "k", None, Future(), None, n, inside=False) for n in of] for of in ((1, 4), (2, 3))
    )
    moved = producer.delivery._in_order([(each, None) for each in (*left, *right)])
    assert [each.sequence for each, _ in moved] == [1, 2, 3, 4]


def test_127_a_message_in_a_part_of_a_merge_that_was_further_on_is_found_where_it_is(
    client: metatxn.Client, new_topic: Callable[..., str]
) -> None:
    """Found by the simulation: the child of the merge has an entry with a sequence in between, of the other part."""
    topic = new_topic(2)
    left, right = client.topic(topic).segments
    numbers = iter(range(1_000))
    left_key, right_key = (
        next(key for key in map(str, numbers) if low <= hash_of_key(key) <= high)
        for low, high in (SegmentParts.parse(each.segment).range for each in (left, right))
    )

    def program(*sequences: int) -> list[str]:
        with client.producer(topic, "importer", linger_ms=60_000, sequenced=True) as producer:
            keys = {3: right_key, 9: right_key}
            sent = [producer.send(each, keys.get(each, left_key), sequence=each) for each in sequences]
        return [each.result() for each in sent]

    client.publish(topic, 0, right_key, producer="other", sequence=0)  # or the positions are the same
    (three, nine), (two,) = program(3, 9), program(2)
    assert three == nine, "they share an entry"
    client.merge_segments(left.segment, right.segment)
    (eight,) = program(8)
    assert program(2, 3, 8, 9) == [two, three, eight, nine]
    (child,) = [each for each in client.topic(topic).segments if each.state == "active"]
    client.split_segment(child.segment)
    assert program(2, 3, 8, 9) == [two, three, eight, nine], "through a child of that child, too"
    assert sorted(message.value for message in client.reader(topic)) == [0, 2, 3, 8, 9]


def test_128_what_two_threads_have_sent_out_of_order_fails(
    client: metatxn.Client, new_topic: Callable[..., str], dev: DevServer
) -> None:
    topic, program = new_topic(1), metatxn.connect(dev.broker_url)
    producer = program.producer(topic, "importer", 1, sequenced=True)
    assert producer.send(1, sequence=5).result()
    producer._core.last_sequence = 3  # as another thread found it
    assert isinstance(producer.send(2, sequence=4).exception(), metatxn.InvalidArgument)
    for again in (lambda: producer.send(3, sequence=6), producer.flush, producer.close, program.close):
        with pytest.raises(metatxn.InvalidArgument, match="4 was sent after 5"):
            again()
    with client.producer(topic, "importer", sequenced=True) as other:
        other.send(1, sequence=5)
        other.send(3, sequence=6)
    assert [message.value for message in client.reader(topic)] == [1, 3]


def test_128_a_message_that_is_refused_is_not_passed_over(
    client: metatxn.Client, new_topic: Callable[..., str], dev: DevServer
) -> None:
    topic = new_topic(1)
    client.set_schema(topic, pa.schema([("n", pa.int64())]))
    program = metatxn.connect(dev.broker_url)
    producer = program.producer(topic, "importer", 1, sequenced=True)
    sent = [producer.send({"n": value}, sequence=number) for number, value in enumerate((1, "two", 3))]
    with pytest.raises(metatxn.SchemaMismatch):
        program.close()
    assert sent[0].result() and isinstance(sent[2].exception(), metatxn.SchemaMismatch)
    with client.producer(topic, "importer", sequenced=True) as producer:
        for number in range(3):
            producer.send({"n": number + 1}, sequence=number)
    assert [message.value for message in client.reader(topic)] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_sequences_that_make_no_sense_are_refused(client: metatxn.Client, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    with pytest.raises(metatxn.InvalidArgument, match="name"):
        client.producer(topic, sequenced=True)
    with pytest.raises(metatxn.InvalidArgument, match="not sequenced"):
        client.producer(topic).send(1, sequence=1)
    producer = client.producer(topic, "p", sequenced=True)
    for sequence in (None, -1, 2**53):
        with pytest.raises(metatxn.InvalidArgument, match="sequence"):
            producer.send(1, sequence=sequence)
    assert producer.send(1, sequence=5).result()
    with pytest.raises(metatxn.InvalidArgument, match="5 is not above 5"):
        producer.send(1, sequence=5)
    with client.begin() as txn, pytest.raises(metatxn.InvalidArgument, match="outside transactions"):
        producer.send(1, sequence=6, txn=txn)
    assert len(list(client.reader(topic))) == 1


def test_a_message_is_delivered_later(client: metatxn.Client, new_topic: Callable[..., str]) -> None:
    topic, hour = new_topic(1), timedelta(hours=1)
    client.publish(topic, "later", producer="p", sequence=0, deliver_after=hour)
    client.publish(topic, "at", producer="p", sequence=1, deliver_at=datetime.now(UTC) + hour)
    client.publish(topic, "now", producer="p", sequence=2, deliver_at=datetime.now(UTC) - hour)
    for message, hours in zip(client.reader(topic), (1, 1, -1), strict=True):
        assert message.deliver_at_ms is not None
        assert abs(message.deliver_at_ms - message.publish_ms - hours * 3_600_000) < 600_000
    with client.subscribe(topic, "s", type="shared", initial="earliest") as consumer:
        assert [message.value for message in consumer.receive_many(10)] == ["now"]
        assert consumer.receive(timeout_s=0) is None and consumer.others_hold is False


def test_what_cannot_be_published_changes_nothing(client: metatxn.Client, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    with pytest.raises(TypeError):
        client.publish(topic, {1, 2}, producer="p", sequence=0)
    with pytest.raises(metatxn.InvalidArgument, match="sequence"):
        client.publish(topic, "x", producer="p", sequence=-1)
    with pytest.raises(metatxn.InvalidArgument, match="producer"):
        client.publish(topic, "x", producer="", sequence=0)
    with pytest.raises(metatxn.NotFound):
        client.publish("nowhere", "x", producer="p", sequence=0)
    hour = timedelta(hours=1)
    for wrong, field in (
        ({"deliver_after": -hour}, "deliver_after_ms"),
        ({"deliver_after": hour, "deliver_at": datetime.now(UTC)}, "deliver_at_ms"),
        ({"deliver_at": datetime.now(UTC).replace(tzinfo=None)}, "deliver_at"),
    ):
        with pytest.raises(metatxn.InvalidArgument, match=field):
            client.publish(topic, "x", producer="p", sequence=0, **wrong)
    assert list(client.reader(topic)) == []
