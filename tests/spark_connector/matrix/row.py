"""What the rows of the matrix have in common: input, a job, an observer that looks while it fails, and what must
hold."""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

import metatxn
from tests.spark_connector.helpers import PATIENCE_S, numbers, wait_until
from tests.spark_connector.matrix.cluster import Driver
from tests.spark_connector.matrix.driver import Job, Way
from tests.spark_connector.matrix.points import Points
from tests.spark_connector.matrix.services import Services

BATCHES = 3
ROWS_PER_BATCH = 1_200
ROWS = BATCHES * ROWS_PER_BATCH
WIDTH = 500
"""Of a row, in bytes."""
SMALL_ENTRY_BYTES = 32 * 1024
"""Of the input: entries are never divided, and the batches are to be of one size."""
LOOK_EVERY_S = 1.0
FOLLOW_WAIT_MS = 200


class Input:
    """The same rows, cut for `BATCHES` micro-batches of two tasks: in a topic, or in files where Spark cannot read a
    topic as a stream."""

    def __init__(self, client: metatxn.Client, directory: Path, *, as_topic: bool) -> None:
        self.as_topic = as_topic
        if as_topic:
            self.source = f"source-{uuid.uuid4().hex[:8]}"
            client.create_topic(self.source, segments=2)
        else:
            self.source = str(directory)
        for start in range(0, ROWS, ROWS_PER_BATCH):
            rows = numbers(start, ROWS_PER_BATCH, WIDTH)
            if as_topic:
                write(client, self.source, rows)
                continue
            for number in range(2):
                half = rows[number::2]
                (directory / f"{start:06d}-{number}.json").write_text("\n".join(map(json.dumps, half)))


class Row:
    """One job of its own, on services and a Spark that rows share. Inside its `with` one reader looks at everything
    again and again, and for each topic another one follows what comes and never looks back."""

    def __init__(
        self, way: Way, services: Services, driver: Driver, points: Points, given: Input, directory: Path
    ) -> None:
        self.services = services
        self.points = points
        self.driver = driver
        self.client = metatxn.connect(services.url, request_timeout_s=PATIENCE_S)
        name = uuid.uuid4().hex[:8]
        outputs = (f"b-{name}", f"c-{name}")
        subscription = f"job-{name}" if given.as_topic else None
        checkpoint = str(directory / f"checkpoint-{name}")
        source = (given.source, given.as_topic)
        self.job = Job(way, services.url, *source, outputs, checkpoint, ROWS_PER_BATCH, subscription)
        self._followed: dict[str, list[int]] = {topic: [] for topic in outputs}
        self._readers = [threading.Thread(target=self._look_on)]
        self._readers += [threading.Thread(target=self._follow, args=(topic,)) for topic in outputs]
        self._over = threading.Event()
        self._looks = 0
        self._wrong: list[str] = []

    def __enter__(self) -> Self:
        for topic in self.job.outputs:
            self.client.create_topic(topic)
        if self.job.subscription is not None:
            self.client.subscribe(self.job.source, self.job.subscription, initial="earliest").close()
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.look_away()
        self.points.clear()
        self.client.close()

    def look_away(self) -> None:
        """From what is no failure."""
        self._over.set()
        for reader in self._readers:
            reader.join()

    # -- what readers see --------------------------------------------------------------------------------------

    def _look_on(self) -> None:
        with metatxn.connect(self.services.url) as client:
            while not self._over.wait(LOOK_EVERY_S):
                try:
                    self._look(client)
                except metatxn.MetatxnError:
                    continue  # a service is away

    def _look(self, client: metatxn.Client) -> None:
        """One consistent cut, or one topic by itself as readers see it that want no cut."""
        outputs = list(self.job.outputs)
        if self._looks % 2:
            seen = [_ids(client.read_table(outputs[self._looks // 2 % 2]))]
        else:
            cut = client.read_table(outputs, isolation="snapshot")
            seen = [_ids(cut[topic]) for topic in outputs]
        if seen[0] != seen[-1]:
            self._wrong.append(
                f"a cut has {len(seen[0])} rows in one topic, {len(seen[1])} in the other, or other ones"
            )
        for ids in seen:
            if len(ids) != len(set(ids)) or not set(ids) <= set(range(ROWS)):
                self._wrong.append(f"{len(ids)} rows with {len(set(ids))} ids are visible")
        self._looks += 1

    def _follow(self, topic: str) -> None:
        """Whatever becomes visible is handed out, even if it were to vanish again."""
        after = None
        with metatxn.connect(self.services.url) as client:
            (segment,) = (each.segment for each in client.topic(topic).segments)
            while not self._over.is_set():
                try:
                    page = client.read_frames(segment, after=after, wait_ms=FOLLOW_WAIT_MS)
                    schema = client.topic_schema(topic)
                except metatxn.MetatxnError:
                    continue  # a service is away
                after = page.next
                for frame in page.frames:
                    self._followed[topic] += _ids(client.decode_entry(frame, schema))

    # -- doing -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.driver.start(self.job)

    def run(self) -> None:
        """To the end of the input."""
        self.start()
        self.succeed()

    def succeed(self) -> None:
        error = self.driver.ended()
        assert error is None, error

    def fail(self) -> str:
        """With what the query fails."""
        self.start()
        error = self.driver.ended()
        assert error is not None, "the query does not fail"
        return error

    def change(self, **fields: Any) -> None:
        """The job, from its next run on."""
        self.job = replace(self.job, **fields)

    def open_transactions(self) -> list[str]:
        return [str(header.txn_id) for header in self.client.transactions("OPEN")]

    def check(self) -> None:
        """Every input row exactly once in every topic, nothing else seen by anybody at any time, nothing left open,
        and the input acknowledged."""
        for topic in self.job.outputs:
            assert self.ids(topic) == list(range(ROWS)), topic
        assert not self.open_transactions()
        wait_until(lambda: self.backlog() == 0, "all of the input is acknowledged")
        for _ in range(2):
            self._look(self.client)
        assert self._wrong == []
        wait_until(lambda: all(len(ids) >= ROWS for ids in self._followed.values()), "who follows is at the end")
        for topic, ids in self._followed.items():
            assert sorted(ids) == list(range(ROWS)), f"who follows {topic} was given other rows"

    def ids(self, topic: str) -> list[int]:
        return _ids(self.client.read_table(topic))

    def backlog(self) -> int:
        if self.job.subscription is None:
            return 0
        info = self.client.subscription(self.job.source, self.job.subscription)
        return sum(segment.backlog for segment in info.segments)


def write(client: metatxn.Client, topic: str, rows: list[dict[str, Any]]) -> None:
    with (
        client.transaction() as txn,
        client.table_writer(topic, txn, key_column="name", max_entry_bytes=SMALL_ENTRY_BYTES) as writer,
    ):
        writer.write(pa.Table.from_pylist(rows))


def _ids(table: pa.Table) -> list[int]:
    """Of all rows, sorted; of groups, those of their rows."""
    if not table.num_rows:
        return []
    ids: Any = table.column("id") if "id" in table.column_names else _of_groups(table.column("rows"))
    return sorted(ids.to_pylist())


def _of_groups(rows: Any) -> Any:
    return pc.struct_field(pc.list_flatten(rows), "id")
