"""What a task reports to the driver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage


@dataclass(frozen=True, slots=True)
class JobTrace:
    """The trace of a micro-batch or of a batch write, and the ids of the span at its root, which ends last. `begun_ns`
    is the time at which this process began to take part in it."""

    name: str
    trace_id: int
    span_id: int
    begun_ns: int


@dataclass(frozen=True)
class WrittenPart(WriterCommitMessage):
    """The part of a transaction that one task attempt wrote. `writer` names the attempt, `epoch` the run that it
    belongs to."""

    txn_id: str | None
    writer: str
    rows: int
    epoch: int | None = None
    already_committed: bool = False
    trace: JobTrace | None = None
    """None if it is not traced."""


def winners(messages: Iterable[WrittenPart]) -> list[str]:
    """The writers that count. Spark passes the message of one attempt per task; all other attempts are void."""
    return [message.writer for message in messages if message.rows]
