"""Goal: whatever is split, merged and trimmed between the plan of a micro-batch and its tasks, a stream reads every row
once and keys in order, or it fails, and then a row that it had not read is gone.

Method: seeded stories against a real service, without a Spark: the reader is asked as Spark's driver and tasks ask it,
and time passes between any two of their steps. Drivers die; some of their checkpoints are those of earlier versions.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import metatxn
from spark_connector.errors import DataLossError
from spark_connector.options import read_options
from spark_connector.reader import dataframe_schema
from spark_connector.stream_reader import StreamReader
from tests.extent import usually
from tests.spark_connector.helpers import PATIENCE_S, wait_until

STEPS = 30
KEYS = 6
_FIELDS: list[pa.Field[Any]] = [pa.field("id", pa.int64()), pa.field("key", pa.string())]


class Story:
    def __init__(self, seed: int, url: str, client: metatxn.Client) -> None:
        self.random = random.Random(seed)
        self.client = client
        self.topic = client.create_topic(f"story-{seed}-{random.randrange(10**9)}", 2, pa.schema(_FIELDS)).name
        self.written: defaultdict[str, list[int]] = defaultdict(list)
        self.trimmed: set[int] = set()
        self.read: defaultdict[str, list[int]] = defaultdict(list)
        self._options = read_options({"url": url, "subscribe": self.topic}, "streaming")
        self._schema = dataframe_schema(self._options)
        self._carelessness = self.random.choice((0.0, 0.05, 0.5))
        self._is_old = self.random.random() < 0.4
        self._numbers = iter(range(10**6))
        self._producer = client.producer(self.topic, max_entry_messages=2)
        self._start_driver()
        self._offset = self._kept(self._driver.initialOffset())

    # -- what time brings ------------------------------------------------------------------------------------------

    def time_passes(self) -> None:
        happening = self.random.choices((self._write, self._split, self._merge, self._trim), (6, 2, 1, 3))[0]
        happening()

    def _write(self) -> None:
        for _ in range(self.random.randrange(1, 8)):
            key, number = f"k{self.random.randrange(KEYS)}", next(self._numbers)
            self._producer.send({"id": number, "key": key}, key=key)
            self.written[key].append(number)
        self._producer.flush()

    def _active(self) -> list[Any]:
        segments = [each for each in self.client.topic(self.topic).segments if each.state == "active"]
        return sorted(segments, key=lambda each: each.range)

    def _split(self) -> None:
        self.client.split_segment(self.random.choice(self._active()).segment)

    def _merge(self) -> None:
        active = self._active()
        if len(active) > 1:
            first = self.random.randrange(len(active) - 1)
            self.client.merge_segments(active[first].segment, active[first + 1].segment)

    def _trim(self) -> None:
        """What was read; sometimes more, where the janitor is careless."""
        segment = self.random.choice(self.client.topic(self.topic).segments).segment
        self._trim_in(segment, careful=self.random.random() > self._carelessness)

    def _trim_in(self, segment: str, *, careful: bool) -> None:
        frames = list(self.client.read_segment(segment))
        rows = [self.client.decode_entry(frame, pa.schema(_FIELDS)).to_pylist() for frame in frames]
        unread = self.missing
        there = [number for number, each in enumerate(rows) if any(row["id"] in unread for row in each)]
        most = there[0] if careful and there else len(frames) - 1
        if most < 1:
            return
        kept = self.random.randint(1, most)
        self.trimmed.update(row["id"] for each in rows[:kept] for row in each)
        self.client.trim_segment(segment, str(frames[kept].position))

    # -- the query -------------------------------------------------------------------------------------------------

    def _start_driver(self) -> None:
        self._driver = StreamReader(self._options, self._schema)

    def stop(self) -> None:
        self._driver.stop()

    def batch(self) -> None:
        """Plans one and runs it, maybe over a death of the driver; returns with nothing read when there is nothing."""
        limit = self.random.choice((ReadAllAvailable(), ReadAllAvailable(), ReadMaxRows(4)))
        planned = self._driver.latestOffset(self._offset, limit)
        if planned == self._offset:
            return
        end = self._kept(planned)
        assert end["read_up_to"].keys() <= end["since"].keys(), "it says where it begins in every segment"
        self._maybe_time_passes()
        self._trim_what_is_entered(end)
        if self._is_old or self.random.random() < 0.3:
            self.stop()
            self._start_driver()
            end = self._as_earlier_versions(end) if self._is_old else end
            self._maybe_time_passes()
        for partition in self._driver.partitions(self._offset, end):
            self._maybe_time_passes()
            self._run(partition)
        self._offset = end

    def _trim_what_is_entered(self, end: dict[str, Any]) -> None:
        """By a careless janitor, before it is read."""
        entered = sorted(end["read_up_to"].keys() - self._offset["read_up_to"].keys())
        if entered and self.random.random() < 2 * self._carelessness:
            self._trim_in(self.random.choice(entered), careful=False)

    def _run(self, partition: InputPartition) -> None:
        for batch in self._driver.read(partition):
            for row in batch.to_pylist():
                self.read[row["key"]].append(row["id"])

    def _maybe_time_passes(self) -> None:
        if self.random.random() < 0.4:
            self.time_passes()

    @staticmethod
    def _kept(offset: dict[str, Any]) -> dict[str, Any]:
        """As it comes out of a checkpoint."""
        kept: dict[str, Any] = json.loads(json.dumps(offset))
        return kept

    def _as_earlier_versions(self, end: dict[str, Any]) -> dict[str, Any]:
        """They did not tell where a batch begins in segments that it enters."""
        known = self._offset["read_up_to"]
        return {**end, "since": {each: place for each, place in end["since"].items() if each in known}}

    # -- judging ---------------------------------------------------------------------------------------------------

    @property
    def missing(self) -> set[int]:
        return {number for key, numbers in self.written.items() for number in set(numbers) - set(self.read[key])}

    @contextmanager
    def justified(self) -> Iterator[None]:
        """A loss that is told has happened."""
        try:
            yield
        except DataLossError as error:
            if not self.missing & self.trimmed:
                raise AssertionError("nothing that was not read is gone") from error

    def catch_up(self) -> None:
        def done() -> bool:
            before = self._offset
            self.batch()
            lost = self.missing and self.missing <= self.trimmed
            assert not (lost and self._offset == before), f"{self.missing} are lost, and nobody says so"
            return not self.missing

        wait_until(done, "everything is read")
        assert self.read == self.written, "each once, and keys in order"


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize("seed", usually([0, 1, 13], [*range(6), 13]))
def test_a_stream_reads_everything_or_says_that_it_cannot(seed: int, url: str, client: metatxn.Client) -> None:
    story = Story(seed, url, client)
    with story.justified():
        for _ in range(STEPS):
            story.random.choice((story.time_passes, story.batch))()
        story.time_passes = lambda: None  # type: ignore[method-assign]
        story.catch_up()
    story.stop()
