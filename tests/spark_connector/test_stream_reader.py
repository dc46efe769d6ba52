"""Goal: a streaming query reads every committed row once, in the order of its key, whatever becomes of the segments.

Method: real Spark queries beside a real service; what is only the driver's planning is asked of the reader itself, as
Spark's driver asks it, which is cheaper and shows every offset.
"""

from __future__ import annotations

import json
import pickle
import shutil
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery

import metatxn
from metatxn.horizons import HorizonsAnswer
from spark_connector.errors import DataLossError
from spark_connector.horizons import MAX_MOVES
from spark_connector.options import OptionError, read_options
from spark_connector.reader import dataframe_schema
from spark_connector.stream_reader import StreamReader
from spark_connector.watch import NewsWatch
from tests.spark_connector.conftest import TopicFactory
from tests.spark_connector.helpers import PATIENCE_S, wait_until


def write(client: metatxn.Client, topic: str, ids: list[int], txn: metatxn.Transaction | None = None) -> None:
    """One entry per segment that the keys fall into; a key is the name, one of ten."""
    transaction = txn or client.begin()
    with client.table_writer(topic, transaction, key_column="name") as writer:
        writer.write(pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{number % 10}" for number in ids]}))
    if txn is None:
        transaction.commit()


class Read:
    """What a query has read, batch by batch; a batch that runs again must read the same."""

    def __init__(self, spark: SparkSession, url: str, checkpoint: Path, **options: str) -> None:
        self.batches: dict[int, list[tuple[int, str]]] = {}
        self._stream = spark.readStream.format("metatxn").options(url=url, **options)
        self._checkpoint = str(checkpoint)

    def start(self, *, available_now: bool = False) -> StreamingQuery:
        writer = self._stream.load().writeStream.foreachBatch(self._take).option("checkpointLocation", self._checkpoint)
        trigger = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
        return writer.trigger(**trigger).start()

    def run(self) -> Read:
        query = self.start(available_now=True)
        assert query.awaitTermination(int(PATIENCE_S)), "the query does not end"
        return self

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        rows = [(row["id"], row["name"]) for row in batch.collect()]
        assert self.batches.get(batch_id, rows) == rows, "a batch that runs again reads the same"
        self.batches[batch_id] = rows

    @property
    def ids(self) -> list[int]:
        return sorted(number for rows in self.batches.values() for number, _ in rows)

    @property
    def in_order(self) -> bool:
        """Of every key, over the batches: ids were written in ascending order."""
        last: defaultdict[str, int] = defaultdict(lambda: -1)
        for _, rows in sorted(self.batches.items()):
            for number, name in sorted(rows):
                if number < last[name]:
                    return False
                last[name] = number
        return True


def test_committed_rows_once_over_restarts(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, tmp_path: Path
) -> None:
    a, b = topic("a", segments=2), topic("b", segments=1)
    write(client, a, list(range(100)))
    write(client, b, list(range(100, 150)))
    pending = client.begin()
    write(client, a, list(range(150, 200)), pending)
    write(client, a, list(range(200, 250)))
    read = Read(spark, url, tmp_path / "checkpoint", subscribe=f"{a},{b}").run()
    assert set(range(150)) <= set(read.ids) <= set(range(150)) | set(range(200, 250))
    aborted = client.begin()
    write(client, b, [1000], aborted)
    aborted.abort()
    pending.commit()
    wait_until(lambda: client.read_table(a).num_rows == 200, "the commit is visible")
    assert read.run().ids == list(range(250)), "each once, and none of an aborted transaction"
    batches = len(read.batches)
    assert read.run().ids == list(range(250))
    assert sum(map(bool, read.batches.values())) <= batches, "there was nothing more to read"


def test_segments_split_and_merge_under_a_running_query(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, tmp_path: Path
) -> None:
    name, written = topic(segments=1), iter(range(0, 10_000, 100))

    def write_more(rounds: int = 2) -> None:
        for _ in range(rounds):
            start = next(written)
            write(client, name, list(range(start, start + 100)))

    write_more()
    read = Read(spark, url, tmp_path / "checkpoint", subscribe=name)
    query = read.start()
    write_more()
    (first,) = [each.segment for each in client.topic(name).segments]
    low, high = client.split_segment(first)
    write_more()
    client.split_segment(high)
    write_more()
    query.stop()
    active = [each.segment for each in client.topic(name).segments if each.state == "active"]
    client.merge_segments(*[each for each in active if each != low])
    write_more()
    query = read.start()
    write_more()
    end = next(written)
    wait_until(lambda: read.ids == list(range(end)), "everything is read, once")
    assert read.in_order
    query.stop()
    left = {each.segment for each in client.topic(name).segments if each.state == "active"}
    assert _places(tmp_path / "checkpoint") == left, "segments that were read to their end are forgotten"


def _places(checkpoint: Path) -> set[str]:
    """Of the last batch that Spark has planned."""
    last = max((each for each in (checkpoint / "offsets").iterdir() if each.name.isdigit()), key=lambda e: int(e.name))
    return set(json.loads(last.read_text().splitlines()[-1])["read_up_to"])


def test_the_first_batch_that_runs_again_begins_where_it_began(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, tmp_path: Path
) -> None:
    """Spark asks for `latest` anew when it died in its first batch, and has read on since then."""
    name = topic(segments=1)
    write(client, name, [1, 2, 3])
    read = Read(spark, url, tmp_path / "checkpoint", subscribe=name, startingOffsets="latest")
    query = read.start()
    wait_until(lambda: bool(read.batches), "the first batch is done")
    write(client, name, [4, 5])
    wait_until(lambda: read.ids == [4, 5], "what came later is read")
    query.stop()
    # As if the driver had died after it planned the first batch with these rows in it, before it noted the commit.
    offsets, commits = tmp_path / "checkpoint" / "offsets", tmp_path / "checkpoint" / "commits"
    planned = max(int(each.name) for each in offsets.iterdir() if each.name.isdigit() and _rows_of(read, each.name))
    begun = (offsets / "0").read_text().splitlines()[-1]
    end = (offsets / str(planned)).read_text()
    shutil.rmtree(commits)
    for each in list(offsets.iterdir()):
        each.unlink()
    line = json.loads(end.splitlines()[-1])
    line["since"] = json.loads(begun)["since"]
    (offsets / "0").write_text("\n".join([*end.splitlines()[:-1], json.dumps(line)]))
    again = Read(spark, url, tmp_path / "checkpoint", subscribe=name, startingOffsets="latest")
    assert again.run().ids == [4, 5]


def _rows_of(read: Read, batch: str) -> list[tuple[int, str]]:
    return read.batches.get(int(batch), [])


def test_some_of_the_columns_and_metadata(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, tmp_path: Path
) -> None:
    name, found = topic(), []
    write(client, name, [1, 2])
    stream = spark.readStream.schema("__key string, id long").format("metatxn")
    rows = stream.options(url=url, subscribe=name, includeMetadata="true").load()
    query = rows.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect())).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path)).start().awaitTermination(int(PATIENCE_S))
    assert sorted((row["id"], row["__key"]) for row in found) == [(1, "n1"), (2, "n2")]


def test_a_query_on_trimmed_data_fails_or_goes_on(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(segments=1)
    (segment,) = [each.segment for each in client.topic(name).segments]
    write(client, name, [1])
    strict = Read(spark, url, tmp_path / "strict", subscribe=name).run()
    lax = Read(spark, url, tmp_path / "lax", subscribe=name, failOnDataLoss="false").run()
    write(client, name, [2])
    write(client, name, [3])
    wait_until(lambda: client.read_table(name).num_rows == 3, "all of it is visible")
    client.trim_segment(segment, client.segment(segment).max_read_position)
    with pytest.raises(StreamingQueryException, match=r"DATA_LOSS: .* were trimmed.* failOnDataLoss=false"):
        strict.run()
    assert lax.run().ids == [1, 3]


# -- the driver's planning ---------------------------------------------------------------------------------------


@pytest.fixture
def reader(url: str) -> Iterator[Callable[..., StreamReader]]:
    """Makes a reader as Spark's driver does."""
    made: list[StreamReader] = []

    def make(**options: str) -> StreamReader:
        given = {"url": url, **options}
        made.append(StreamReader(read_options(given, "streaming"), dataframe_schema(read_options(given, None))))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def next_batch(reader: StreamReader, start: dict[str, Any], limit: int | None = None) -> dict[str, Any]:
    """The offset of the next batch that has something in it."""
    end = start

    def found() -> bool:
        nonlocal end
        end = reader.latestOffset(start, ReadAllAvailable() if limit is None else ReadMaxRows(limit))
        return end != start

    wait_until(found, "there is something to read")
    return end


def ids_between(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    partitions: list[InputPartition] = list(reader.partitions(start, end))
    found: list[Any] = [n for each in partitions for batch in reader.read(each) for n in batch.column("id").to_pylist()]
    return sorted(found)


def test_an_idle_query_costs_next_to_nothing(
    client: metatxn.Client, topic: TopicFactory, reader: Callable[..., StreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks every 10 ms: 300 times here, which must be answered from memory, and yet news are found."""
    name = topic(segments=4)
    write(client, name, list(range(50)))
    idle = reader(subscribe=name)
    start = idle.initialOffset()
    end = next_batch(idle, start)
    while (later := idle.latestOffset(end, ReadAllAvailable())) != end:
        end = later
    requests: Counter[str] = Counter()
    for asked in ("horizons", "topic", "topics", "segment"):
        original = getattr(metatxn.Client, asked)

        def counted(self: Any, *given: Any, asked: str = asked, original: Any = original, **named: Any) -> Any:
            requests[asked] += 1
            return original(self, *given, **named)

        monkeypatch.setattr(metatxn.Client, asked, counted)
    for _ in range(300):
        assert idle.latestOffset(end, ReadAllAvailable()) is end
        threading.Event().wait(0.01)
    assert requests.total() <= 1, f"one long poll at most is under way: {requests}"
    write(client, name, [50])
    assert ids_between(idle, end, next_batch(idle, end)) == [50]


def test_a_limit_is_kept_but_for_one_entry(
    client: metatxn.Client, topic: TopicFactory, reader: Callable[..., StreamReader]
) -> None:
    name = topic(segments=3)
    for start in range(0, 300, 10):
        write(client, name, list(range(start, start + 10)))
    limited = reader(subscribe=name, maxOffsetsPerTrigger="25")
    assert limited.getDefaultReadLimit() == ReadMaxRows(25)
    offset = limited.initialOffset()
    read: list[int] = []
    sizes: list[int] = []
    while len(read) < 300:
        end = next_batch(limited, offset, 25)
        ids = ids_between(limited, offset, end)
        sizes.append(len(ids))
        read += ids
        offset = end
    assert sorted(read) == list(range(300))
    assert max(sizes) <= 25
    assert len(sizes) <= 30, "batches are not much smaller than they may be"
    assert ids_between(limited, limited.initialOffset(), next_batch(limited, limited.initialOffset(), 1)), "one entry"


def test_available_now_ends_at_what_was_there(
    client: metatxn.Client, topic: TopicFactory, reader: Callable[..., StreamReader]
) -> None:
    """Although rows keep coming and the segment splits."""
    name = topic(segments=1)
    write(client, name, list(range(10)))
    once = reader(subscribe=name)
    once.prepareForTriggerAvailableNow()
    write(client, name, list(range(10, 20)))
    client.split_segment(client.topic(name).segments[0].segment)
    write(client, name, list(range(20, 30)))
    start = once.initialOffset()
    end = once.latestOffset(start, ReadAllAvailable())
    assert ids_between(once, start, end) == list(range(10))
    assert once.latestOffset(end, ReadAllAvailable()) == end


def test_starting_offsets_by_topic_and_by_segment(
    client: metatxn.Client, topic: TopicFactory, reader: Callable[..., StreamReader]
) -> None:
    a, b, c = topic("a", segments=1), topic("b", segments=1), topic("c", segments=1)
    for name in (a, b, c):
        write(client, name, [1])
        write(client, name, [2])
    (segment,) = [each.segment for each in client.topic(c).segments]
    first = client.read_frames(segment).frames[0].position
    chosen = reader(subscribe=f"{a},{b},{c}", startingOffsets=json.dumps({a: "latest", segment: str(first)}))
    start = chosen.initialOffset()
    assert ids_between(chosen, start, next_batch(chosen, start)) == [1, 2, 2], (
        "b from its beginning, c behind its first"
    )
    with pytest.raises(
        OptionError, match="startingOffsets names public/default/nowhere, which is neither a subscribed topic"
    ):
        reader(subscribe=a, startingOffsets='{"nowhere": "latest"}').initialOffset()
    with pytest.raises(OptionError, match=r"startingOffsets has 99:0 for .* which can be read up to"):
        reader(subscribe=c, startingOffsets=json.dumps({segment: "99:0"})).initialOffset()


def test_topics_that_appear_and_disappear(
    client: metatxn.Client,
    topic: TopicFactory,
    reader: Callable[..., StreamReader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_connector.stream_reader.NEW_TOPICS_S", 0.1)
    a = topic("one")
    write(client, a, [1])
    strict, lax = (reader(subscribePattern=f"{a}.*", failOnDataLoss=each) for each in ("true", "false"))
    offsets = {each: next_batch(each, each.initialOffset()) for each in (strict, lax)}
    client.create_topic(f"{a}-two")
    write(client, f"{a}-two", [2])
    for each, start in offsets.items():
        offsets[each] = next_batch(each, start)
        assert ids_between(each, start, offsets[each]) == [2]
    client.delete_topic(a)
    with pytest.raises(DataLossError, match=r"DATA_LOSS: .* was deleted"):
        next_batch(strict, offsets[strict])
    end = offsets[lax]
    while any(f"{a}-two" not in segment for segment in end["read_up_to"]):
        end = next_batch(lax, end)
    write(client, f"{a}-two", [3])
    assert ids_between(lax, end, next_batch(lax, end)) == [3]


def test_what_is_not_committed_can_be_read_where_that_is_wanted(
    client: metatxn.Client, topic: TopicFactory, reader: Callable[..., StreamReader]
) -> None:
    name = topic(segments=1)
    write(client, name, [1])
    txn = client.begin()
    write(client, name, [2], txn)
    for isolation, expected in (("read_committed", [1]), ("read_uncommitted", [1, 2])):
        each = reader(subscribe=name, isolation=isolation)
        start = each.initialOffset()
        assert ids_between(each, start, next_batch(each, start)) == expected
    txn.abort()


def test_a_time_is_a_place_to_start_at(
    client: metatxn.Client, topic: TopicFactory, reader: Callable[..., StreamReader]
) -> None:
    """What an open transaction published before it is read nevertheless, once it is committed."""
    name = topic(segments=1)
    (segment,) = [each.segment for each in client.topic(name).segments]
    for number in range(3):
        write(client, name, [number])
    times = [frame.publish_ms for frame in client.read_frames(segment).frames]
    timed = reader(subscribe=name, startingTimestamp=str(times[1]))
    start = timed.initialOffset()
    expected = [number for number, published in enumerate(times) if published >= times[1]]
    assert ids_between(timed, start, next_batch(timed, start)) == expected
    pending = client.begin()
    write(client, name, [3], pending)
    later = reader(subscribe=name, startingTimestamp="2100-01-01T00:00:00Z")
    start = later.initialOffset()
    pending.commit()
    assert ids_between(later, start, next_batch(later, start)) == [3]


def test_a_reader_is_sent_to_the_tasks_without_what_the_driver_knows(
    client: metatxn.Client, topic: TopicFactory, reader: Callable[..., StreamReader]
) -> None:
    name = topic()
    write(client, name, [1, 2])
    planning = reader(subscribe=name)
    start = planning.initialOffset()
    end = next_batch(planning, start)
    sent = pickle.loads(pickle.dumps(planning))
    read = [n for each in planning.partitions(start, end) for rows in sent.read(each) for n in rows["id"].to_pylist()]
    assert sorted(read) == [1, 2]
    sent.stop()
    assert "_planner" not in vars(sent), "a task plans nothing"


def test_the_latest_offset_is_reported_once_it_is_known(
    client: metatxn.Client, topic: TopicFactory, reader: Callable[..., StreamReader]
) -> None:
    """It is how far everything can be read, although the batch is limited."""
    name = topic(segments=1)
    write(client, name, [1])
    write(client, name, [2])
    reporting = reader(subscribe=name)
    assert reporting.reportLatestOffset() is None
    start = reporting.initialOffset()
    limited = next_batch(reporting, start, 1)
    assert ids_between(reporting, start, limited) == [1]
    reported = reporting.reportLatestOffset()
    assert reported is not None
    assert ids_between(reporting, limited, reported) == [2]


def test_a_segment_that_keeps_moving_is_given_up(
    url: str,
    client: metatxn.Client,
    topic: TopicFactory,
    reader: Callable[..., StreamReader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = topic(segments=1)
    (segment,) = [each.segment for each in client.topic(name).segments]
    asked = metatxn.Client.horizons
    moves = MAX_MOVES - 1

    def moving(self: metatxn.Client, *given: Any) -> HorizonsAnswer:
        nonlocal moves
        moves -= 1
        return asked(self, *given) if moves < 0 else HorizonsAnswer(elsewhere={segment: "http://127.0.0.1:1"})

    monkeypatch.setattr(metatxn.Client, "horizons", moving)
    looking = reader(subscribe=name)
    assert looking.initialOffset()["read_up_to"].keys() == {segment}
    moves = MAX_MOVES
    with pytest.raises(metatxn.NotOwner, match=f"the brokers redirect requests for segment {segment} to each other"):
        looking.initialOffset()


def test_children_of_a_sealed_segment_are_looked_for_less_and_less_often(
    client: metatxn.Client,
    topic: TopicFactory,
    reader: Callable[..., StreamReader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until another one is sealed. That the brokers always have news, as of other transactions, changes nothing."""
    monkeypatch.setattr(NewsWatch, "arm", lambda *_: None)  # so that there is a look each time
    name = topic(segments=2)
    first, second = [each.segment for each in client.topic(name).segments]
    now = 1000.0
    monkeypatch.setattr("spark_connector.stream_reader.time", SimpleNamespace(monotonic=lambda: now))
    idle = reader(subscribe=name)
    offset = idle.latestOffset(idle.initialOffset(), ReadAllAvailable())
    looks: list[float] = []
    find = metatxn.Client.topic

    def noted(self: metatxn.Client, name: str) -> metatxn.TopicInfo:
        looks.append(now)
        return find(self, name)

    monkeypatch.setattr(metatxn.Client, "topic", noted)

    def pass_s(seconds: int) -> list[float]:
        """When they were looked for meanwhile, in seconds from now."""
        nonlocal now
        looks.clear()
        began = now
        for _ in range(seconds):
            now += 1
            assert idle.latestOffset(offset, ReadAllAvailable()) == offset
        return [at - began for at in looks]

    assert pass_s(100) == []
    client.seal_segment(first)
    assert pass_s(130) == [2, 4, 8, 16, 32, 64, 124]
    client.seal_segment(second)
    assert pass_s(10) == [2, 4, 8]


LAX = {"failOnDataLoss": "false"}


def test_a_query_that_no_longer_subscribes_to_a_topic_drops_it(
    client: metatxn.Client, topic: TopicFactory, reader: Callable[..., StreamReader]
) -> None:
    """Only where it may lose data: what is left of the topic may have been wanted."""
    a, b = topic("a"), topic("b", segments=1)
    (kept,) = [each.segment for each in client.topic(b).segments]
    both = reader(subscribe=f"{a},{b}")
    start = both.latestOffset(both.initialOffset(), ReadAllAvailable())
    write(client, b, [1])
    with pytest.raises(DataLossError, match=r"DATA_LOSS: segment://.*/a-.* its topic is no longer subscribed"):
        next_batch(reader(subscribe=b), start)
    fewer = reader(subscribe=b, **LAX)
    end = next_batch(fewer, start)
    assert end["read_up_to"].keys() == {kept}
    assert ids_between(fewer, start, end) == [1]


def test_a_place_whose_followers_were_trimmed_is_an_error_or_moved(
    client: metatxn.Client, topic: TopicFactory, reader: Callable[..., StreamReader]
) -> None:
    name = topic(segments=1)
    (segment,) = [each.segment for each in client.topic(name).segments]
    write(client, name, [1])
    strict, lax = reader(subscribe=name), reader(subscribe=name, **LAX)
    start = next_batch(strict, strict.initialOffset())
    write(client, name, [2])
    write(client, name, [3])
    wait_until(lambda: client.read_table(name).num_rows == 3, "all of it is visible")
    client.trim_segment(segment, client.segment(segment).max_read_position)
    with pytest.raises(DataLossError, match=r"entries after .* and up to .* were trimmed"):
        next_batch(strict, start)
    end = next_batch(lax, start)
    assert ids_between(lax, start, end) == [3]
    write(client, name, [4])
    wait_until(lambda: client.read_table(name).num_rows == 2, "all of it is visible")
    client.trim_segment(segment, client.position_at(segment, datetime.now(UTC) + timedelta(hours=1)).position)
    nothing = next_batch(lax, end)
    assert nothing["read_up_to"].keys() == {segment}, "its place is kept although nothing is left to read"
    assert not ids_between(lax, end, nothing)
    write(client, name, [5])
    again = next_batch(lax, nothing)
    assert ids_between(lax, nothing, again) == [5]


def test_the_beginning_of_a_child_that_was_trimmed_is_lost(
    client: metatxn.Client, topic: TopicFactory, reader: Callable[..., StreamReader]
) -> None:
    name = topic(segments=1)
    write(client, name, [1])
    strict, lax = reader(subscribe=name), reader(subscribe=name, **LAX)
    start = next_batch(strict, strict.initialOffset())
    client.split_segment(client.topic(name).segments[0].segment)
    write(client, name, [2])
    write(client, name, [12])
    wait_until(lambda: client.read_table(name).num_rows == 3, "all of it is visible")
    (child,) = [each.segment for each in client.topic(name).segments if client.segment(each.segment).entries == 2]
    client.trim_segment(child, client.segment(child).max_read_position)
    with pytest.raises(DataLossError, match=f"DATA_LOSS: {child} .*: entries up to .* were trimmed"):
        next_batch(strict, start)
    assert ids_between(lax, start, next_batch(lax, start)) == [12]


def test_a_child_that_was_removed_is_lost_for_those_who_had_not_come_there(
    client: metatxn.Client, topic: TopicFactory, reader: Callable[..., StreamReader]
) -> None:
    name = topic(segments=1)
    (parent,) = [each.segment for each in client.topic(name).segments]
    write(client, name, [1])
    strict, lax = reader(subscribe=name), reader(subscribe=name, **LAX)
    start = next_batch(strict, strict.initialOffset())
    one, _ = client.split_segment(parent)
    write(client, name, list(range(2, 20)))
    passed = next_batch(strict, start)
    client.split_segment(one)
    write(client, name, list(range(20, 40)))
    passed = next_batch(strict, passed)
    assert not {parent, one} & passed["read_up_to"].keys()
    for segment in (parent, one):
        client.trim_segment(segment, client.position_at(segment, datetime.now(UTC) + timedelta(hours=1)).position)
        client.delete_segment(segment)
    wait_until(lambda: not {parent, one} & {each.segment for each in client.topic(name).segments}, "they are removed")
    write(client, name, [40])
    end = next_batch(strict, passed)
    assert ids_between(strict, passed, end) == [40], "who had been there has missed nothing"
    late = reader(subscribe=name)
    with pytest.raises(DataLossError, match=f"DATA_LOSS: {one} .*: it was removed from its topic"):
        next_batch(late, start)
    left = ids_between(lax, start, next_batch(lax, start))
    assert 1 not in left and left


def test_a_batch_may_have_segments_that_its_reader_has_not_seen_yet(
    client: metatxn.Client, topic: TopicFactory, reader: Callable[..., StreamReader]
) -> None:
    name = topic(segments=1)
    write(client, name, [1])
    late = reader(subscribe=name)
    start = next_batch(late, late.initialOffset())
    client.split_segment(client.topic(name).segments[0].segment)
    write(client, name, [2])
    planning = reader(subscribe=name)
    end = next_batch(planning, start)
    assert not end["read_up_to"].keys() & start["read_up_to"].keys(), "the children took over"
    assert ids_between(late, start, end) == [2]


def test_a_batch_of_a_dropped_segment_is_an_error_or_goes_on_without_it(
    client: metatxn.Client, topic: TopicFactory, reader: Callable[..., StreamReader]
) -> None:
    """The batch was planned before, by another process."""
    dropped, other = topic("dropped", segments=1), topic("other", segments=1)
    both = {"subscribe": f"{dropped},{other}"}
    start = reader(**both).initialOffset()
    for number, name in enumerate((dropped, other)):
        write(client, name, [number])
    wait_until(lambda: client.read_table(dropped).num_rows + client.read_table(other).num_rows == 2, "both are visible")
    end = next_batch(reader(**both), start)
    (segment,) = [each.segment for each in client.topic(dropped).segments]
    client.split_segment(segment)
    client.delete_segment(segment)
    with pytest.raises(DataLossError, match=f"DATA_LOSS: {segment} cannot be read any further: it was deleted"):
        reader(**both).partitions(start, end)
    assert ids_between(reader(**both, **LAX), start, end) == [1]


def test_a_deleted_topic_is_an_error_or_left_out(
    client: metatxn.Client, topic: TopicFactory, reader: Callable[..., StreamReader]
) -> None:
    """Of a new run, and of a batch that an earlier version planned, which did not tell where it enters a segment."""
    deleted, other = topic("deleted", segments=1), topic("other", segments=1)
    for number, name in enumerate((deleted, other)):
        write(client, name, [number])
    wait_until(lambda: client.read_table(deleted).num_rows + client.read_table(other).num_rows == 2, "both are visible")
    strict, lax = (reader(subscribe=f"{deleted},{other}", failOnDataLoss=each) for each in ("true", "false"))
    ends = [next_batch(each, each.initialOffset())["read_up_to"] for each in (strict, lax)]
    assert ends[0] == ends[1]
    before: dict[str, Any] = {"read_up_to": {}}
    planned = {"read_up_to": ends[0]}
    assert ids_between(lax, before, planned) == [0, 1]
    (gone,) = [each.segment for each in client.topic(deleted).segments]
    client.delete_topic(deleted)
    with pytest.raises(DataLossError, match=f"DATA_LOSS: {gone} cannot be read any further: it was deleted"):
        strict.partitions(before, planned)
    (left,) = lax.partitions(before, planned)
    assert [n for rows in lax.read(left) for n in rows["id"].to_pylist()] == [1]
    with pytest.raises(DataLossError, match=f"{deleted} cannot be read any further: its topic was deleted"):
        strict.prepareForTriggerAvailableNow()
    lax.prepareForTriggerAvailableNow()
    assert lax.initialOffset()["read_up_to"].keys() == planned["read_up_to"].keys() - {gone}
