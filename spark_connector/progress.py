"""The progress of a streaming query, batch by batch: rows, bytes, its transaction, and how far it is behind its topics.

    spark.streams.addListener(ProgressListener(url))
    measured(orders).writeStream.format("metatxn")…start()

Spark reports to a listener what it knows about a batch. A coordinator is asked whether the batch is committed, and the
brokers how much is left to read: three small requests for each report, which Spark makes for each batch, or every ten
seconds if a query is idle.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.types import BinaryType, DataType, StringType

import metatxn
from metatxn.horizons import HorizonPlace
from spark_connector.clients import ServiceAddress, client
from spark_connector.horizons import Horizons
from spark_connector.offsets import Offset, Places

METRICS = "metatxn"
"""The name of what `measured` observes."""
COUNT_UP_TO = 1_000_000
"""The most rows counted for each segment; counting more would take too long."""

log = logging.getLogger("metatxn.spark")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one batch, or of a query that has nothing to read (`rows` is 0).

    `bytes` is None if the query is not `measured`. `committed` is the transaction of the batch; it is None if no
    service could be asked, or if the query's application id is not known here. `lag` is, for each segment, the number
    of rows after what the batch has read, up to the horizon; it is None for a segment with more than a million.
    """

    query_id: str
    run_id: str
    name: str | None
    batch_id: int
    rows: int
    rows_per_s: float
    bytes: int | None
    duration_ms: int
    committed: bool | None = None
    lag: Mapping[str, int | None] = field(default_factory=dict)

    def __str__(self) -> str:
        size = f", {self.bytes} bytes" if self.bytes is not None else ""
        state = {True: "committed", False: "not committed", None: "no transaction known"}[self.committed]
        behind = sum(COUNT_UP_TO if rows is None else rows for rows in self.lag.values())
        return (
            f"query {self.name or self.query_id} batch {self.batch_id}: {self.rows} rows{size} in "
            f"{self.duration_ms} ms, {state}, {behind} rows behind the horizon"
        )


def log_progress(progress: Progress) -> None:
    log.info("%s", progress)


class ProgressListener(StreamingQueryListener):
    """Reports to `report`, in a thread of Spark's; by default to the logger `metatxn.spark`.

    `app_id` is the `txnAppId` of the queries. If a service cannot be asked, that is not an error: the report lacks its
    part.
    """

    def __init__(
        self,
        url: str,
        report: Callable[[Progress], None] = log_progress,
        *,
        app_id: str | None = None,
        token: str | None = None,
        ca: str | None = None,
        listener: str | None = None,
    ) -> None:
        self._service = ServiceAddress(url, token or os.environ.get("METATXN_TOKEN"), ca, listener)
        self._report = report
        self._app_id = app_id

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing is reported: the first report comes with the first batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        told = event.progress
        observed = told.observedMetrics.get(METRICS)
        progress = Progress(
            query_id=str(told.id),
            run_id=str(told.runId),
            name=told.name,
            batch_id=told.batchId,
            rows=told.numInputRows,
            rows_per_s=told.processedRowsPerSecond,
            bytes=None if observed is None else observed["bytes"] or 0,
            duration_ms=told.durationMs.get("triggerExecution", 0),
        )
        with contextlib.suppress(metatxn.MetatxnError):
            client(self._service).cluster(patient=False)  # the rest retries, and would delay other listeners
            committed = self._committed(self._app_id or str(told.id), told.batchId)
            progress = replace(progress, committed=committed, lag=self._lag(_read_up_to(told.sources)))
        self._report(progress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Nothing is reported: the query itself says how it ended."""

    def _committed(self, app_id: str, batch_id: int) -> bool | None:
        try:
            last = client(self._service).key(app_id).last_version
        except metatxn.NotFound:
            return None
        return last is not None and last >= batch_id

    def _lag(self, places: Places) -> dict[str, int | None]:
        wanted = {each: HorizonPlace(after=place, max_messages=COUNT_UP_TO) for each, place in places.items()}
        looked = Horizons(client(self._service), "read_committed").look(wanted).segments if wanted else {}
        counts = {each: horizon.messages or 0 for each, horizon in looked.items()}
        return {each: count if count < COUNT_UP_TO else None for each, count in counts.items()}


def _read_up_to(sources: list[Any]) -> Places:
    """How far each segment was read, from the sources of a query that are ours."""
    places: Places = {}
    for source in sources:
        said = json.loads(source.endOffset) if source.endOffset else None
        if isinstance(said, dict) and "read_up_to" in said:
            places |= Offset.from_json(said).read_up_to
    return places


def measured(rows: DataFrame) -> DataFrame:
    """The same rows with an observation of their number and of their bytes, without the description of the rows. Put it
    right before the `writeStream`; it costs a sum in the same pass."""
    sizes = [_bytes(F.col(f"`{column.name}`"), column.dataType) for column in rows.schema]
    size = sum(sizes, F.lit(0))
    return rows.observe(METRICS, F.count(F.lit(1)).alias("rows"), F.sum(size).alias("bytes"))


def _bytes(column: Column, kind: DataType) -> Column:
    """The size of one value: a null has none, and a value with parts has that of its JSON."""
    if isinstance(kind, StringType | BinaryType):
        return F.coalesce(F.octet_length(column), F.lit(0))
    width = _WIDTHS.get(kind.typeName())
    if width is not None:
        return F.when(column.isNull(), 0).otherwise(width)
    return F.coalesce(F.octet_length(F.to_json(F.struct(column))), F.lit(0))


_WIDTHS = {
    "boolean": 1,
    "byte": 1,
    "short": 2,
    "integer": 4,
    "long": 8,
    "float": 4,
    "double": 8,
    "date": 4,
    "timestamp": 8,
    "timestamp_ntz": 8,
    "decimal": 16,
}
