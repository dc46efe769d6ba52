"""Goal: whatever rows are written, every entry can be taken, and holds as much as it may.

Method: drawn tables, few rows of which are much larger than the others, through the real delivery into a link that
refuses what a broker refuses; the bound of a broker is drawn too, as small as a row.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import metatxn
from metatxn import table_writer
from metatxn.connection import Connection
from metatxn.delivery import OrderedDelivery
from metatxn.table_writer import AsyncTableWriter, fitting
from metatxn.topics import Layout
from metatxn.wire.broker import HASH_RANGE_END, SegmentInfo, TopicInfo
from metatxn.wire.errors import PayloadTooLarge
from metatxn.wire.frames import Entry

DESCRIBED_BYTES = 2_000
"""What an entry takes beside its rows, at most, where there are few columns."""


class Taking(Connection):
    """A link to one segment whose broker takes entries of at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.sending: dict[OrderedDelivery[Any], None] = {}
        self.entries: list[Entry] = []

    def new_name(self) -> str:
        return "name"

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(work)

    async def layout(self, topic: str) -> Layout:
        segment = SegmentInfo(segment="s", range=(0, HASH_RANGE_END), state="active", parents=[], children=[])
        return Layout(TopicInfo(name=topic, segments=[segment]))

    async def publish(self, segment: str, entry: Entry) -> str:
        if len(entry.payload) > self.max_bytes:
            raise PayloadTooLarge(f"{len(entry.payload)} bytes, and {self.max_bytes} are the most")
        self.entries.append(entry)
        return "0:0"


def write(link: Taking, batches: list[pa.RecordBatch], max_entry_bytes: int) -> list[pa.Table]:
    """The entries that were taken."""

    async def all_of_it() -> None:
        async with AsyncTableWriter(link, "t", "0" * 32, "w", max_entry_bytes=max_entry_bytes) as writer:
            for batch in batches:
                await writer.write(batch)

    asyncio.run(all_of_it())
    return [pa.ipc.open_stream(pa.py_buffer(entry.payload)).read_all() for entry in link.entries]


@st.composite
def uneven(draw: st.DrawFn) -> list[int]:
    """Widths of rows: many alike, and runs of much wider ones anywhere among them."""
    runs = st.tuples(st.integers(1, 400), st.sampled_from([0, 1, 30, 30, 30, 500, 5_000, 60_000]))
    widths = [width for count, width in draw(st.lists(runs, min_size=1, max_size=5)) for _ in range(count)]
    return widths[: 1 + 1_000_000 // (1 + max(widths))]


@settings(max_examples=25, deadline=None)
@given(widths=uneven(), at=st.integers(0, 2_000), max_entry_bytes=st.sampled_from([1, 700, 10_000, 100_000, 1 << 24]))
def test_every_entry_can_be_taken(widths: list[int], at: int, max_entry_bytes: int) -> None:
    """The broker takes what the largest row needs, or twice what rows that share an entry may take."""
    table = pa.table({"id": range(len(widths)), "text": ["x" * width for width in widths]})
    batches = [*table.slice(0, at).to_batches(), *table.slice(at).to_batches()]
    share = min(max_entry_bytes, 80_000)
    with mock.patch.object(table_writer, "MAX_ROWS_BYTES", 80_000):
        entries = write(Taking(max(2 * share, max(widths)) + DESCRIBED_BYTES), batches, max_entry_bytes)
    assert pa.concat_tables(entries).equals(table)
    for one, other in itertools.pairwise(entries):
        assert one.nbytes + other.nbytes > share / 2, "an entry is not sent long before it is full"


@pytest.mark.parametrize("columns", [1, 2_000])
def test_what_describes_the_rows_is_much_less_than_the_rows(columns: int) -> None:
    """Of many batches with many columns the description alone would be more than an entry may take."""
    rows = pa.table({f"c{number}": range(8) for number in range(columns)}).combine_chunks().to_batches()
    link = Taking(1 << 40)
    entries = write(link, rows * 20, max_entry_bytes=1 << 24)
    assert sum(entry.num_rows for entry in entries) == 160
    assert sum(len(entry.payload) for entry in link.entries) < 1.3 * 20 * rows[0].nbytes + DESCRIBED_BYTES


def test_slices_that_share_a_dictionary_are_not_made_ever_smaller() -> None:
    """Each of them brings all of it, so that halving would end at one entry per row, each as large as the whole."""
    texts = pa.array([f"{number:01000}" for number in range(1_000)]).dictionary_encode()
    rows = pa.RecordBatch.from_pydict({"text": texts})
    assert [each.num_rows for each in fitting(rows, 10_000)] == [1_000]
    assert [each.num_rows for each in fitting(rows, rows.nbytes)] == [1_000]


def test_rows_of_uneven_size_arrive(client: metatxn.Client) -> None:
    """Twenty adjacent rows of a MiB among ten thousand small ones, and one that takes nearly all that an entry may; one
    that takes more is refused."""
    topic = client.create_topic("uneven").name
    widths = [1] * 5_000 + [1 << 20] * 20 + [1] * 4_980 + [(16 << 20) - 2_000]
    table = pa.table({"id": range(len(widths)), "text": ["x" * width for width in widths]})
    with client.transaction() as txn, client.table_writer(topic, txn) as writer:
        writer.write(table)
    assert client.read_table(topic, isolation="snapshot").equals(table)
    with (
        pytest.raises(metatxn.PayloadTooLarge),
        client.transaction() as txn,
        client.table_writer(topic, txn) as writer,
    ):
        writer.write(pa.table({"id": [0], "text": ["x" * (16 << 20)]}))
