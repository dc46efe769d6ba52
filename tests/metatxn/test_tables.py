"""Arrow tables in and out, on a real server."""

from __future__ import annotations

import asyncio
import datetime
import re
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import metatxn
from metatxn.tables import METADATA_SCHEMA
from metatxn.topics import Layout, LayoutCache
from metatxn.wire.frames import PayloadKind
from metatxn.wire.rows import KEY_COLUMN
from tests.metatxn.dev_server import DevServer
from tests.metatxn.waiting import eventually

NewTopic = Callable[..., str]
_FIELDS: list[pa.Field[Any]] = [
    pa.field("id", pa.int64()),
    pa.field("name", pa.string()),
    pa.field("at", pa.timestamp("us")),
]
SCHEMA = pa.schema(_FIELDS)


def rows(start: int, count: int) -> pa.Table:
    at = datetime.datetime(2026, 1, 1)  # noqa: DTZ001  the column has no time zone
    return pa.table(
        {
            "id": range(start, start + count),
            "name": [f"n{number % 7}" for number in range(start, start + count)],
            "at": [at] * count,
        },
        schema=SCHEMA,
    )


@pytest.fixture
def table_topic(client: metatxn.Client) -> str:
    return client.create_topic(f"t-{uuid.uuid4().hex[:12]}", 3, SCHEMA).name


def test_schema_comes_back(client: metatxn.Client, table_topic: str) -> None:
    assert client.topic_schema(table_topic) == SCHEMA
    assert client.read_table(table_topic).equals(SCHEMA.empty_table())


def test_what_is_no_schema_is_refused_before_anything_is_sent(client: metatxn.Client) -> None:
    with pytest.raises(TypeError, match=r"schema is a pyarrow.Schema, such as .* not \{'id': 'int64'\}"):
        client.create_topic("no-schema", schema={"id": "int64"})  # type: ignore[arg-type]
    assert "no-schema" not in [each.name for each in client.topics()]


@pytest.mark.parametrize("key_column", [None, "id", "name"])
def test_rows_come_back_once(client: metatxn.Client, table_topic: str, key_column: str | None) -> None:
    with client.transaction() as txn, client.table_writer(table_topic, txn, key_column=key_column) as writer:
        for start in range(0, 10_000, 1000):
            writer.write(rows(start, 1000))
    assert writer.rows == 10_000
    eventually(lambda: client.read_table(table_topic).num_rows, 10_000)
    found = client.read_table(table_topic)
    assert found.schema == SCHEMA
    assert found.sort_by("id").equals(rows(0, 10_000))


def test_keys_stay_together_and_in_order(client: metatxn.Client, table_topic: str) -> None:
    with client.transaction() as txn, client.table_writer(table_topic, txn, key_column="name") as writer:
        for start in range(0, 3000, 100):
            writer.write(rows(start, 100))
    eventually(lambda: client.read_table(table_topic).num_rows, 3000)
    found = client.read_table(table_topic, include_metadata=True)
    homes = {(row["name"], row["__segment"]) for row in found.to_pylist()}
    assert Counter(name for name, _ in homes) == Counter({f"n{number}": 1 for number in range(7)})
    assert all(row["__key"] == row["name"] for row in found.to_pylist())
    for number in range(7):
        ids = [row["id"] for row in found.to_pylist() if row["name"] == f"n{number}"]
        assert ids == sorted(ids)


def test_null_keys_are_kept(client: metatxn.Client, table_topic: str) -> None:
    table = pa.table({"id": [1, None, 3], "name": ["a", None, "c"], "at": [None] * 3}, schema=SCHEMA)
    with client.transaction() as txn, client.table_writer(table_topic, txn, key_column="id") as writer:
        writer.write(table)
    eventually(lambda: client.read_table(table_topic).num_rows, 3)
    assert set(client.read_table(table_topic)["name"].to_pylist()) == {"a", None, "c"}


def test_only_listed_writers_count(client: metatxn.Client, table_topic: str) -> None:
    """DESIGN §5.12: the rows of a failed attempt are void."""
    txn = client.begin()
    for name, start in (("attempt-0", 0), ("attempt-1", 100)):
        with client.table_writer(table_topic, txn.id, writer=name) as writer:
            writer.write(rows(start, 10))
    txn.commit(writers=["attempt-1"])
    eventually(lambda: sorted(client.read_table(table_topic)["id"].to_pylist()), list(range(100, 110)))


def test_small_entries(client: metatxn.Client, table_topic: str) -> None:
    """Rows are cut into entries of about the size asked for, each a stream with one schema message."""
    with client.transaction() as txn, client.table_writer(table_topic, txn, "w", "id", max_entry_bytes=2000) as writer:
        writer.write(rows(0, 1000))
    eventually(lambda: client.read_table(table_topic).num_rows, 1000)
    segment = client.topic(table_topic).segments[0].segment
    page = client.read_frames(segment)
    assert page.end and len(page.frames) > 3
    for frame in page.frames:
        assert frame.kind is PayloadKind.ARROW and frame.writer == "w" and str(frame.txn_id) == txn.id
        stream = pa.ipc.open_stream(pa.py_buffer(frame.payload))
        assert (stream.schema.metadata or {})[KEY_COLUMN] == b"id"
        assert client.decode_entry(frame, SCHEMA).num_rows == frame.count
        assert len(frame.payload) < 4000


def test_rows_without_a_key_take_turns(client: metatxn.Client, table_topic: str) -> None:
    """Goal: a large write fills all segments with entries of about the size asked for; a small one makes one entry,
    and the small ones of many writers do not all go to one segment. Method: one writer of many small batches, sent as
    they come; then twenty writers of a row each."""
    with client.transaction() as txn, client.table_writer(table_topic, txn, "w", max_entry_bytes=8000) as writer:
        for start in range(0, 3000, 10):
            writer.write(rows(start, 10))
    eventually(lambda: client.read_table(table_topic).num_rows, 3000)
    pages = [client.read_frames(each.segment).frames for each in client.topic(table_topic).segments]
    assert all(len(frames) > 3 for frames in pages)
    assert sum(map(len, pages)) <= -(-writer.bytes // 4000), "half full is full enough, and less is not"

    with client.transaction() as txn:
        for number in range(20):
            with client.table_writer(table_topic, txn, f"small {number}") as writer:
                writer.write(rows(number, 1))
    eventually(lambda: client.read_table(table_topic).num_rows, 3020)
    now = [client.read_frames(each.segment).frames for each in client.topic(table_topic).segments]
    assert all(len(frames) > len(before) for frames, before in zip(now, pages, strict=True))


@pytest.mark.parametrize(("count", "batches"), [(6000, [6000, 6000]), (10, [20])])
def test_large_batches_are_not_copied_together(
    client: metatxn.Client, table_topic: str, count: int, batches: list[int]
) -> None:
    """Goal: an entry holds large batches as they were written, and small ones as one. Method: look into the stream."""
    with client.transaction() as txn, client.table_writer(table_topic, txn, key_column="at") as writer:
        writer.write(rows(0, count))
        writer.write(rows(count, count))
    eventually(lambda: client.read_table(table_topic).num_rows, 2 * count)
    segments = client.topic(table_topic).segments
    (frame,) = [frame for each in segments for frame in client.read_frames(each.segment).frames]
    assert [batch.num_rows for batch in pa.ipc.open_stream(pa.py_buffer(frame.payload))] == batches


def test_pages_of_a_segment(client: metatxn.Client, table_topic: str) -> None:
    with client.transaction() as txn, client.table_writer(table_topic, txn, max_entry_bytes=2000) as writer:
        writer.write(rows(0, 1000))
    eventually(lambda: client.read_table(table_topic).num_rows, 1000)
    segment, after, count = client.topic(table_topic).segments[0].segment, None, 0
    while not (page := client.read_frames(segment, after=after, max_bytes=1)).end:
        count += len(page.frames)
        after = page.next
    assert count + len(page.frames) == len(client.read_frames(segment).frames)


def test_mismatch_takes_no_row(client: metatxn.Client, table_topic: str) -> None:
    with (
        pytest.raises(metatxn.SchemaMismatch, match="other"),
        client.transaction() as txn,
        client.table_writer(table_topic, txn) as writer,
    ):
        writer.write(pa.table({"id": [1], "other": ["x"]}))
    assert txn.refresh().state == "ABORTED"
    assert client.read_table(table_topic, isolation="read_uncommitted").num_rows == 0


def test_exception_in_the_writer_sends_nothing_more(client: metatxn.Client, table_topic: str) -> None:
    txn = client.begin()
    with pytest.raises(ZeroDivisionError), client.table_writer(table_topic, txn) as writer:  # noqa: PT012
        writer.write(rows(0, 10))
        raise ZeroDivisionError
    txn.commit()
    assert client.read_table(table_topic, isolation="snapshot").num_rows == 0


def test_wrong_use_of_a_writer(client: metatxn.Client, table_topic: str) -> None:
    txn = client.begin()
    with pytest.raises(metatxn.InvalidArgument, match="max_entry_bytes"):
        client.table_writer(table_topic, txn, max_entry_bytes=0)
    writer = client.table_writer(table_topic, txn, key_column="nothing")
    with pytest.raises(metatxn.InvalidArgument, match="nothing"):
        writer.write(rows(0, 1))
    writer = client.table_writer(table_topic, txn)
    writer.write(rows(0, 1))
    with pytest.raises(metatxn.InvalidArgument, match="differ"):
        writer.write(pa.table({"id": [1]}))


def test_snapshot_is_one_cut(client: metatxn.Client, new_topic: NewTopic) -> None:
    """What is decided after the revision is not in it, on any topic."""
    topics = [new_topic(), new_topic()]

    def both(value: int) -> None:
        with client.transaction() as txn:
            for topic in topics:
                client.producer(topic).send({"v": value}, txn=txn)

    both(1)
    revision = client.cluster().revision
    both(2)
    then = client.read_table(topics, isolation="snapshot", revision=revision)
    now = client.read_table(topics, isolation="snapshot")
    assert [then[topic]["v"].to_pylist() for topic in topics] == [[1], [1]]
    assert [now[topic]["v"].to_pylist() for topic in topics] == [[1, 2], [1, 2]]


def send(client: metatxn.Client, topic: str, *values: object) -> None:
    with client.producer(topic) as producer:
        for value in values:
            producer.send(value)


def write(client: metatxn.Client, topic: str, table: pa.Table) -> None:
    with client.transaction() as txn, client.table_writer(topic, txn) as writer:
        writer.write(table)


def test_json_topic_as_table(client: metatxn.Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    assert client.read_table(topic).num_rows == 0
    send(client, topic, {"a": 1}, {"a": 2.5, "b": "x"}, {"b": "y", "c": [1]}, {"c": None})
    assert client.read_table(topic).to_pylist() == [
        {"a": 1.0, "b": None, "c": None},
        {"a": 2.5, "b": "x", "c": None},
        {"a": None, "b": "y", "c": [1]},
        {"a": None, "b": None, "c": None},
    ]


@pytest.mark.parametrize("sent", [[1, 2], ["a", None], [b"a", b"b"], [True, None]])
def test_scalars_become_one_column(client: metatxn.Client, new_topic: NewTopic, sent: list[object]) -> None:
    topic = new_topic()
    send(client, topic, *sent)
    table = client.read_table(topic)
    assert table.column_names == ["value"]
    assert table["value"].to_pylist() == sent


def test_a_message_that_does_not_fit_is_named(client: metatxn.Client, new_topic: NewTopic) -> None:
    """Nothing is turned into texts because of one message; who has sent what is found by its position and column."""
    topic = new_topic()
    send(client, topic, {"id": 1})
    send(client, topic, {"id": 2}, {"id": "three"}, {"id": 4})
    (segment,) = client.topic(topic).segments
    *_, last = client.read_frames(segment.segment).frames
    where = rf"message \d at {last.position} of {segment.segment}"
    with pytest.raises(metatxn.SchemaMismatch, match=rf"{where} does not fit: column id: 'three' is of another") as no:
        client.read_table(topic)
    assert no.value.members["position"] == str(last.position) and no.value.members["columns"] == ["id"]

    send(client, topic, 5)
    write(client, topic, pa.table({"id": [6]}))
    with pytest.raises(metatxn.SchemaMismatch, match=rf"{where} does not fit: column id: 'three' is not of type int64"):
        client.read_table(topic)
    with pytest.raises(metatxn.InvalidArgument, match="on_error: is 'ignore', not one of raise, null, skip"):
        client.read_table(topic, on_error="ignore")  # type: ignore[call-overload]


def test_one_message_does_not_keep_the_others_from_being_read(
    client: metatxn.Client, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """Null in its place, or the whole message left out; the log counts them. A message that deletes a key is no such
    one."""
    topic = new_topic()
    send(client, topic, {"id": 1, "name": "a"}, {"id": "two", "name": "b"}, 3)
    with client.producer(topic) as producer:
        producer.send(None, key="deleted")
    left = [{"id": 1, "name": "a"}, {"id": None, "name": "b"}, {"id": None, "name": None}, {"id": None, "name": None}]
    assert client.read_table(topic, on_error="null").to_pylist() == left
    told = re.compile(r"2 of 4 messages do not fit; the first: message 1 at 1:0 of .*: column id: 'two' is of another")
    assert told.search(caplog.text)
    found = client.read_table(topic, on_error="skip", include_metadata=True)
    assert found.select(["__key", "id"]).to_pylist() == [{"__key": None, "id": 1}, {"__key": "deleted", "id": None}]

    write(client, topic, pa.table({"id": [4], "name": ["d"]}))
    left = [*left, {"id": 4, "name": "d"}]
    assert client.read_table([topic], on_error="null")[topic].to_pylist() == left
    assert client.read_table(topic, on_error="skip").to_pylist() == [left[0], left[3], left[4]]


def test_columns_that_a_topic_gets_while_it_is_read(
    dev: DevServer, client: metatxn.Client, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first table comes between the look at the topic and the read of its entries."""
    topic = new_topic()
    send(client, topic, {"id": 1})
    refresh = LayoutCache.refresh

    async def then_write(self: LayoutCache, name: str) -> Layout:
        layout = await refresh(self, name)
        monkeypatch.setattr(LayoutCache, "refresh", refresh)
        await asyncio.to_thread(write_a_table)
        return layout

    def write_a_table() -> None:
        with metatxn.connect(dev.coordinator_url) as other:
            write(other, topic, pa.table({"id": pa.array([2], pa.int16())}))

    monkeypatch.setattr(LayoutCache, "refresh", then_write)
    found = client.read_table(topic)
    assert found.schema.types == [pa.int16()] and set(found["id"].to_pylist()) == {1, 2}


def test_messages_in_a_topic_with_columns(client: metatxn.Client, table_topic: str) -> None:
    """Objects sent by hand become rows; what they leave out is null."""
    with client.producer(table_topic) as producer:
        producer.send({"id": 1, "name": "a"}, key="k")
        producer.send({"id": 2}, key="k")
    found = client.read_table(table_topic, include_metadata=True)
    assert found.schema.names[:6] == ["__topic", "__segment", "__position", "__key", "__publish_ms", "__txn_id"]
    assert found.select(SCHEMA.names).to_pylist() == [
        {"id": 1, "name": "a", "at": None},
        {"id": 2, "name": None, "at": None},
    ]
    assert found["__key"].to_pylist() == ["k", "k"]


@pytest.mark.parametrize("key_column", [None, "at"])
def test_columns_that_are_asked_for(client: metatxn.Client, table_topic: str, key_column: str | None) -> None:
    """In tables, in messages, and in a message that is an object with some of them; what is not asked for is not sent,
    and does not have to fit."""
    with client.table_writer(table_topic, key_column=key_column) as writer:
        writer.write(rows(0, 3000))
    with client.producer(table_topic) as producer:
        producer.send({"id": 3000})
    found = client.read_table(table_topic, columns=["name", "id"])
    assert found.schema == pa.schema([SCHEMA.field("name"), SCHEMA.field("id")])
    assert Counter(found["id"].to_pylist()) == Counter(range(3001))
    assert Counter(found["name"].to_pylist()) == Counter([*rows(0, 3000)["name"].to_pylist(), None])

    segments = [each.segment for each in client.topic(table_topic).segments]
    sent = [frame for segment in segments for frame in client.read_frames(segment, columns=["id"]).frames]
    tables = [pa.ipc.open_stream(pa.py_buffer(frame.payload)) for frame in sent if frame.kind is PayloadKind.ARROW]
    expected = {"id"} if key_column is None else {"id", key_column}
    assert all(set(table.schema.names) == expected for table in tables)

    described = client.read_table(table_topic, include_metadata=True, columns=["id"])
    assert described.column_names == [*METADATA_SCHEMA.names, "id"]
    assert len(set(described["__key"].to_pylist())) == (1 if key_column is None else 2)


def test_columns_that_do_not_exist(client: metatxn.Client, table_topic: str, new_topic: NewTopic) -> None:
    with pytest.raises(metatxn.SchemaMismatch, match="does not have the columns no, not; its columns are id, name, at"):
        client.read_table(table_topic, columns=["id", "no", "not"])
    for wrong in ([], ["id", "id"], "id"):
        with pytest.raises(metatxn.InvalidArgument, match=r"^columns: must be a list of different"):
            client.read_table(table_topic, columns=wrong)
    free = new_topic()
    send(client, free, {"id": 1}, {"id": 2})
    assert client.read_table(free, columns=["no", "id"]).to_pylist() == [{"no": None, "id": 1}, {"no": None, "id": 2}]
    assert client.read_table(new_topic(), columns=["id"]).to_pylist() == []


def test_only_what_is_asked_for_has_to_fit(client: metatxn.Client, new_topic: NewTopic) -> None:
    """The topic's columns have changed since the messages were written. A value that is not an object is in the column
    `value`, which is another one."""
    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64()), pa.field("value", pa.string())]
    topic = new_topic(schema=pa.schema(fields))
    send(client, topic, {"id": 1, "value": "a"}, "b")
    assert client.read_table(topic, columns=["id"]).to_pylist() == [{"id": 1}, {"id": None}]


def test_very_many_columns_are_read_together(client: metatxn.Client, new_topic: NewTopic) -> None:
    """Their names do not fit into a URL."""
    names = [f"{'é' * 60}{number}" for number in range(200)]
    topic = new_topic(schema=pa.schema([pa.field(name, pa.int64()) for name in names]))
    write(client, topic, pa.table({name: [1] for name in names}))
    for wanted in (names[:99], names[:199]):
        assert client.read_table(topic, columns=wanted).to_pylist() == [dict.fromkeys(wanted, 1)]
