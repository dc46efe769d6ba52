"""What a task reports to the driver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage


@dataclass(frozen=True)
class WrittenPart(WriterCommitMessage):
    """The part of a transaction that one task attempt wrote. `writer` names the attempt, `epoch` the run that it
    belongs to."""

    txn_id: str | None
    writer: str
    rows: int
    epoch: int | None = None
    already_committed: bool = False
    trace_id: int | None = None
    """Of the spans of its micro-batch."""


def winners(messages: Iterable[WrittenPart]) -> list[str]:
    """The writers that count. Spark passes the message of one attempt per task; all other attempts are void."""
    return [message.writer for message in messages if message.rows]
