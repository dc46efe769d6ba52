"""Acknowledgements as Pulsar's clients send them.

    id of an entry              all of its messages; cumulative: everything up to and including them
    id with an `ack_set`        the messages of the entry whose bits are 0; cumulative: everything up to the last one

The bits are in words of 64, and words of zeros at the end are left out.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

from metatxn.wire.position import Position
from metatxn_gateways.listener import MalformedRequest
from metatxn_gateways.pulsar.codes import PulsarCode, PulsarError
from participants.subscription.pending_acks import Ack
from participants.subscription.segment_subscription import SegmentSubscription

CUMULATIVE = 1
MAX_IDS = 10_000
"""The most ids in one command. Clients send up to a thousand."""
MAX_MESSAGES = 1_000_000
"""The most messages of the entries of which one command acknowledges some."""
_WORD = 64
_NOTHING_MORE = 1 << 63
_ONES = re.compile("1+")


def assert_few(ids: Sequence[Any]) -> None:
    """Raises `MalformedRequest` for more ids than `MAX_IDS`."""
    if len(ids) > MAX_IDS:
        raise MalformedRequest(f"a command with {len(ids)} ids of messages, above the limit of {MAX_IDS}")


def ack_set_of(indexes: Sequence[int], size: int) -> list[int]:
    """The bits of these messages of an entry with `size` messages; none for all of them."""
    if len(indexes) == size:
        return []
    words = [0] * (indexes[-1] // _WORD + 1)
    for index in indexes:
        words[index // _WORD] |= 1 << index % _WORD
    return [word - (1 << _WORD) if word >= _NOTHING_MORE else word for word in words]


def acked_runs(ack_set: Sequence[int], size: int) -> list[range]:
    """The messages of an entry with `size` messages that are acknowledged, as runs with a gap between any two.

    Python sees the runs only, and not each message: a client acknowledges a thousand messages of an entry by as many
    commands, each with the bits of all.
    """
    words = ack_set[: -(-size // _WORD)]
    left = int.from_bytes(struct.pack(f"<{len(words)}q", *words), "little")
    acked = ~left & (1 << size) - 1
    return [range(*run.span()) for run in _ONES.finditer(f"{acked:b}"[::-1])]


async def acks_of(part: SegmentSubscription, request: Any, *, inside: bool) -> list[Ack]:
    """The acknowledgements of a command; `inside` a transaction they count for what is there alone, and outside what
    was trimmed is passed over, because it is delivered no more.

    Raises NOT_ALLOWED for a message that is not there, and for a cumulative acknowledgement on a shared subscription,
    which would cover the messages of other consumers.
    """
    cumulative = request.ack_type == CUMULATIVE
    if cumulative and part.definition.record.type == "shared":
        message = f"subscription {part.definition.name} is shared: acknowledge each message by itself"
        raise PulsarError(PulsarCode.NOT_ALLOWED, message)
    if cumulative and len(request.message_ids) != 1:
        raise PulsarError(PulsarCode.NOT_ALLOWED, "a cumulative acknowledgement names one message")
    acks: list[Ack] = []
    left = MAX_MESSAGES
    for wanted in request.message_ids:
        position = Position(wanted.ledger_id, wanted.entry_id)
        if not inside and position <= part.segment.ledgers.start:
            continue
        size = await part.size_of(position)
        if wanted.ack_set and (left := left - size) < 0:
            raise PulsarError(PulsarCode.NOT_ALLOWED, f"a command looks at no more than {MAX_MESSAGES} messages")
        acks += await _acks_of_entry(part, position, acked_runs(wanted.ack_set, size), size, cumulative=cumulative)
    return acks


async def _acks_of_entry(
    part: SegmentSubscription, position: Position, runs: Sequence[range], size: int, *, cumulative: bool
) -> list[Ack]:
    if not size:
        runs = [range(1)]  # refused, unless it was left out of its ledger
    if cumulative:
        return [await part.cumulative_ack(position, runs[-1][-1], None)] if runs else []
    if runs == [range(size)]:
        return [Ack(position)]
    return await part.run_acks(position, runs, None) if runs else []
