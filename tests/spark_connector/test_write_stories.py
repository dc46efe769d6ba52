"""Goal: of what jobs write into a transaction that somebody else ends, the rows of those that were committed count,
each once, and no others, whatever becomes of the jobs, of their attempts and of the driver.

Method: seeded stories against a real service, without a Spark: the writer is asked as Spark's driver and tasks ask it.
Requests fail before they are sent, or their answers are lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

import metatxn
from spark_connector import stream_writer, table_writes
from spark_connector.messages import WrittenPart
from spark_connector.options import write_options
from spark_connector.stream_writer import MicroBatch, StreamWriter
from spark_connector.writer import BatchWriter
from tests.extent import usually
from tests.spark_connector.conftest import TopicFactory
from tests.spark_connector.helpers import column, void_entries, wait_until

SCHEMA = pa.schema([("id", pa.int64())])
Remember = Callable[[metatxn.Transaction, list[str]], object]


class Gone(Exception):
    """An attempt fails in the middle of its rows."""


class Jobs:
    """Of one driver, all in one transaction. `counting` of them were committed; of `doubtful` ones nobody knows."""

    def __init__(self, seed: int, url: str, topic: str, txn: metatxn.Transaction) -> None:
        self.random = random.Random(seed)
        self.counting: set[int] = set()
        self.doubtful: list[set[int]] = []
        self._options = write_options({"url": url, "topic": topic, "txnid": txn.id}, "batch")
        self._numbers = iter(range(10**6))

    def run_one(self, remember: pytest.MonkeyPatch) -> None:
        writer = BatchWriter(self._options, SCHEMA)
        tasks = [[next(self._numbers) for _ in range(self.random.randrange(3))] for _ in range(2)]
        winners = [self._attempts(writer, task) for task in tasks]
        fate = self.random.choice(("commits", "fails", "its driver dies", "loses the answer", "cannot abort"))
        rows = {number for task in tasks for number in task}
        if fate == "commits":
            writer.commit(winners)
            self.counting |= rows
        elif fate == "loses the answer":
            self._lose(remember, "after")
            with suppress(metatxn.MetatxnError):
                writer.commit(winners)
            remember.undo()
            writer.abort(winners)
            self.doubtful.append(rows)
        elif fate != "its driver dies":
            if fate == "cannot abort":
                self._lose(remember, "before")
            with suppress(metatxn.MetatxnError):  # Spark tells that the job failed
                writer.abort([])
            remember.undo()
        if self.random.random() < 0.3:
            self._attempt(writer, tasks[0])  # a zombie

    def _attempts(self, writer: BatchWriter, rows: list[int]) -> WrittenPart:
        """Some that fail, and of several that do not the one that Spark picks."""
        for _ in range(self.random.randrange(2)):
            with pytest.raises(Gone):
                self._attempt(writer, rows, fails=True)
        return self.random.choice([self._attempt(writer, rows) for _ in range(self.random.choice((1, 1, 2)))])

    def _attempt(self, writer: BatchWriter, rows: list[int], *, fails: bool = False) -> WrittenPart:
        def batches() -> Iterator[pa.RecordBatch]:
            for number in rows:
                yield pa.RecordBatch.from_pydict({"id": [number]}, schema=SCHEMA)
            if fails:
                raise Gone

        return writer.write(batches())

    @staticmethod
    def _lose(patch: pytest.MonkeyPatch, when: str) -> None:
        """The request to remember writers, or its answer."""
        remember = metatxn.Transaction.remember_writers

        def lossy(self: metatxn.Transaction, writers: list[str]) -> Any:
            if when == "after":
                remember(self, writers)
            raise metatxn.ServiceUnreachable("nobody answers", definite=when == "before")

        patch.setattr(metatxn.Transaction, "remember_writers", lossy)


@pytest.mark.parametrize("seed", usually(range(3), range(8)))
def test_only_committed_jobs_count(
    seed: int, url: str, client: metatxn.Client, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    txn = client.begin()
    jobs = Jobs(seed, url, name, txn)
    for _ in range(jobs.random.randint(1, 3)):
        jobs.run_one(monkeypatch)
    txn.commit()
    found = column(client, name)
    doubtful = set().union(*[rows for rows in jobs.doubtful if rows <= set(found)])
    assert found == sorted(jobs.counting | doubtful)


def test_of_two_attempts_the_one_that_was_chosen_counts(url: str, client: metatxn.Client, topic: TopicFactory) -> None:
    """In a transaction that a job has of its own."""
    name = topic()
    writer = BatchWriter(write_options({"url": url, "topic": name}, "batch"), SCHEMA)
    rows = [pa.RecordBatch.from_pydict({"id": [7]}, schema=SCHEMA)]
    zombie, chosen = writer.write(iter(rows)), writer.write(iter(rows))
    assert (zombie.rows, chosen.rows) == (1, 1)
    writer.commit([chosen])
    assert column(client, name) == [7]


def test_attempts_that_outlive_their_micro_batch_add_nothing_to_it(
    url: str, client: metatxn.Client, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The zombies and the speculative copies of a cluster, which `make test-all` starts. One has written everything and
    is not chosen, one has sent some and may not send the rest, and one that has not begun learns that it is too
    late."""
    name, size = topic(segments=1), 200
    batches = [
        pa.RecordBatch.from_pydict({"id": list(range(start, start + size))}, schema=SCHEMA)
        for start in range(0, 3 * size, size)
    ]
    monkeypatch.setattr(stream_writer, "_driver", lambda: "driver")
    monkeypatch.setattr(MicroBatch, "of_this_task", lambda: MicroBatch(name, "run", 0))
    monkeypatch.setattr(table_writes, "ENTRY_BYTES", batches[0].nbytes)
    writer = StreamWriter(write_options({"url": url, "topic": name}, "streaming"), SCHEMA)

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield from batches[:2]
        wait_until(lambda: void_entries(client, name) > 0, "the first rows are sent")
        loser, chosen = writer.write(iter(batches)), writer.write(iter(batches))
        assert loser.txn_id == chosen.txn_id
        writer.commit([chosen], 0)
        yield from batches[2:]

    with pytest.raises(metatxn.MetatxnError, match=r"INVALID_TXN_STATE|TXN_CONFLICT"):
        writer.write(overtaken())
    assert writer.write(iter(batches)).already_committed
    assert column(client, name) == list(range(3 * size))
    assert void_entries(client, name) > len(batches)
