"""Goal: what is compressed is smaller and reads the same everywhere.

Method: batches in this process, and a real server for everybody who reads them.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Callable

import pyarrow as pa
import pytest

import metatxn
from metatxn.wire.arrow_sizes import compression_of
from metatxn.wire.batches import pack_batch, packed_message, unpack_batch
from metatxn.wire.frames import PayloadKind
from metatxn.wire.record_batches import COMPRESSION, HEADER, Codec
from tests.metatxn.fake_cluster import FakeCluster
from tests.metatxn.waiting import eventually

NewTopic = Callable[..., str]
CODECS: tuple[Codec, ...] = typing.get_args(Codec)
VALUES = [{"number": number, "text": "a text that is always the same"} for number in range(500)]


@pytest.mark.parametrize("codec", CODECS)
def test_messages_of_a_batch_are_compressed_together(codec: Codec) -> None:
    messages = [packed_message(value, f"k{value['number']}", {"p": "q"}) for value in VALUES]
    plain, number = pack_batch(messages)
    compressed, _ = pack_batch(messages, codec)
    assert len(compressed) < len(plain) / 4
    assert unpack_batch(compressed, number) == unpack_batch(plain, number)


@pytest.mark.parametrize("codec", CODECS)
def test_what_would_become_larger_stays_as_it_is(codec: Codec) -> None:
    messages = [packed_message(os.urandom(1_000), None, None)]
    assert pack_batch(messages, codec) == pack_batch(messages)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("sequenced", [False, True])
def test_everybody_reads_what_a_producer_has_compressed(
    client: metatxn.Client, new_topic: NewTopic, codec: Codec, sequenced: bool
) -> None:
    topic = new_topic()
    with client.producer(topic, "p", sequenced=sequenced, linger_ms=1_000, compression=codec) as producer:
        for number, value in enumerate(VALUES):
            producer.send(value, key="k", sequence=number if sequenced else None)
    (segment,) = client.topic(topic).segments
    (frame,) = client.read_frames(segment.segment).frames
    assert frame.kind is PayloadKind.BATCH and frame.count == len(VALUES)
    assert HEADER.unpack_from(frame.payload)[5] & COMPRESSION
    assert [message.value for message in client.reader(topic)] == VALUES
    assert client.read_table(topic).to_pylist() == VALUES
    with client.subscribe(topic, "s", initial="earliest") as consumer:
        assert [message.value for message in consumer.receive_many(len(VALUES))] == VALUES


@pytest.mark.parametrize("codec", CODECS)
def test_a_table_is_compressed_column_by_column(client: metatxn.Client, new_topic: NewTopic, codec: Codec) -> None:
    topic = new_topic()
    table = pa.Table.from_pylist(VALUES)
    with client.transaction() as txn, client.table_writer(topic, txn, compression=codec) as writer:
        writer.write(table)
    eventually(lambda: client.read_table(topic).equals(table), True)
    (segment,) = client.topic(topic).segments
    (frame,) = client.read_frames(segment.segment).frames
    assert compression_of(frame.payload)[0] == codec and len(frame.payload) < table.nbytes / 4
    assert client.read_table(topic, columns=["number"]).equals(table.select(["number"]))


def test_a_codec_that_does_not_exist_is_refused(client: metatxn.Client) -> None:
    wrong: typing.Any = "gzip"
    for make in (client.producer, client.exclusive_producer, client.table_writer):
        with pytest.raises(metatxn.InvalidArgument, match=r"^compression: is 'gzip', not one of lz4, zstd"):
            make("t", compression=wrong)


def test_an_earlier_release_gets_json() -> None:
    cluster = FakeCluster()
    cluster.version = None
    with cluster.client() as client, client.producer("t", compression="zstd", linger_ms=1_000) as producer:
        for value in VALUES:
            producer.send(value)
    assert cluster.visible() == VALUES
