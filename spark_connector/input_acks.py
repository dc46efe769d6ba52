"""Acknowledging the input of a micro-batch, in the transaction that writes its output.

What a batch reads is recorded in Spark's checkpoint, in `offsets/<batch id>`, before its first task starts: one line
for each source, and ours contain both the places where the batch ends and those where it began (see `offsets`). The
segments are acknowledged up to the former, cumulatively, on the subscription of that name on each topic that has
advanced.
"""

from __future__ import annotations

import json

import metatxn
from spark_connector import checkpoint as notes
from spark_connector.offsets import Offset, Places
from spark_connector.options import OptionError


def acknowledge_input(
    client: metatxn.Client, transaction: metatxn.Transaction, subscription: str, checkpoint: str, batch_id: int
) -> None:
    """Acknowledge the input of a batch. Raises `OptionError` if the checkpoint has no such batch, or if its query reads
    no topic; `NotFound` if there is no subscription; `TransactionConflict` if another program acknowledges there
    too."""
    for topic, places in read_in_batch(checkpoint, batch_id).items():
        try:
            client.acknowledge_up_to(topic, subscription, places, transaction)
        except metatxn.NotFound as error:
            raise metatxn.NotFound(
                f"the input of micro-batch {batch_id} cannot be acknowledged: {error.detail}",
                action=f"Create subscription {subscription} on topic {topic} before the query starts.",
            ) from error


def read_in_batch(checkpoint: str, batch_id: int) -> dict[str, Places]:
    """The segments of each topic of which the batch has read something, and up to where."""
    try:
        lines = notes.read(checkpoint, f"offsets/{batch_id}").splitlines()
    except OSError as error:
        raise OptionError(
            f"Option ackSubscription: the input of the micro-batch cannot be looked up in {error}"
        ) from error
    ours = [offset for line in lines if (offset := _offset(line)) is not None]
    if not ours:
        raise OptionError(
            f"Option ackSubscription: micro-batch {batch_id} in {checkpoint} contains no offsets of format metatxn, "
            "so there is nothing to acknowledge."
        )
    moved: dict[str, Places] = {}
    for offset in ours:
        for segment, place in offset.read_up_to.items():
            if (offset.since or {}).get(segment) != place:
                moved.setdefault(_topic_of(segment), {})[segment] = place
    return moved


def _offset(line: str) -> Offset | None:
    """The offset in a line, or None for the version line, the metadata line, and the lines of other sources."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return Offset.from_json(said) if isinstance(said, dict) and "read_up_to" in said else None


def _topic_of(segment: str) -> str:
    return segment.removeprefix("segment://").rpartition("/")[0]
