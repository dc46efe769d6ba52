"""Moving a subscription to another place, on all segments of its topic at once.

    where each segment begins (for a revision: `cut`)
    pending acknowledgements of open transactions? ─▶ refuse, or abort these transactions
    the places ─▶ one apply: the subscription becomes its next incarnation, which begins there (`Definitions.seek`)

Every acknowledgement and every write of a cursor checks the incarnation. So the apply is the moment of the seek: what
was acknowledged before it is forgotten as a whole, what is acknowledged after it is a matter of the new incarnation,
and a crash leaves one or the other. The records of the earlier incarnation are deleted like those of a dropped one.

A transaction may acknowledge something between the look at the pending acknowledgements and the apply. That is as if it
had committed before the seek: its messages are delivered again if they are after the new place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from metastore.api import MetadataStore
from metastore.errors import CheckFailed
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.operator_decisions import decide_for_operator
from metastore.txn.records.operations import AckOp, decode_op
from metastore.txn.records.segments import OwnerRecord
from metastore.txn.states import TxnState
from metastore.txn.store import TransactionRecords, read_transactions
from metastore.types import Revision
from metatxn.service.patience import Patience
from metatxn.wire import errors
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.broker.broker import Broker
from participants.segment.segment import Segment
from participants.subscription.definitions import Definition
from participants.subscription.places import Place, Start
from participants.subscription.share import just_moved
from participants.topic.cut import cut_at
from participants.topic.reading import AnySegment, end_of, position_at

HOLDERS_NAMED = 100
"""The most transactions that a refusal names."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a subscription goes: to an end of the topic, to a time, to the first entry of each segment that is to be
    delivered, or to a revision. Exactly one of them is given."""

    to: Literal["earliest", "latest"] | None = None
    at_ms: int | None = None
    positions: Mapping[str, Position] | None = None
    revision: Revision | None = None


async def starts_of(
    target: Target, broker: Broker, topic: str, authorization: str | None, cuts: dict[str, Start] | None = None
) -> Mapping[str, Start]:
    """Where the subscription begins, by segment; a segment that is missing begins with its earliest entry.

    `cuts` has what was found before for the same revision, and takes what is found now: it does not change. Raises
    INVALID_ARGUMENT for positions that are not those of the topic, and as `cut_at`; and STORE_UNAVAILABLE.
    """
    broker.forget_topic(topic)
    names = (await broker.topic(topic)).segments
    if target.to == "earliest":
        return {}
    if target.positions is not None:
        _assert_same(target.positions, names)

    async def look() -> list[AnySegment]:
        names = (await broker.topic(topic)).segments
        return await asyncio.gather(*(broker.anywhere(name, authorization) for name in names))

    segments = await broker.in_layout(topic, look)
    if target.at_ms is not None:
        at_ms = target.at_ms
        found = await asyncio.gather(*(position_at(segment, at_ms) for segment in segments))
        return {segment.id: Start(Place.at(position)) for segment, position in zip(segments, found, strict=True)}
    if target.revision is not None:
        known = cuts if cuts is not None else {}
        new = [segment for segment in segments if segment.id not in known]
        cut = await asyncio.gather(*(cut_at(segment, target.revision) for segment in new))
        known.update({segment.id: start for segment, start in zip(new, cut, strict=True)})
        return {segment.id: known[segment.id] for segment in segments}
    ends = await asyncio.gather(*(end_of(segment, "read_committed") for segment in segments))
    places = {segment.id: Place.behind(end) for segment, end in zip(segments, ends, strict=True)}
    if target.positions is None:
        return {name: Start(place) for name, place in places.items()}
    for name, position in target.positions.items():
        wanted = Place.at(position)
        if wanted > places[name] and wanted > await _place_of_owner(broker, name, authorization):
            raise errors.InvalidArgument(
                f"positions: {position} of segment {name} is after everything that can be read", field="positions"
            )
    return {name: Start(Place.at(position)) for name, position in target.positions.items()}


async def _place_of_owner(broker: Broker, segment: str, authorization: str | None) -> Place:
    """The place after what can be read, as the broker that owns the segment now says: one that was deposed, and does
    not know it yet, may not have the latest entries. Raises STORE_UNAVAILABLE if no broker is known that does."""
    found = await broker.anywhere(segment, authorization)
    if isinstance(found, Segment):
        await found.reader.assert_owned()
    else:
        owner = await broker.store.get(paths.segment_owner(segment))
        if owner is None or OwnerRecord.decode(owner.value).url != found.peer.url:
            raise just_moved(segment)
    return Place.behind(await end_of(found, "read_committed"))


def _assert_same(positions: Mapping[str, Position], names: Sequence[str]) -> None:
    for name in sorted(positions.keys() - set(names)):
        raise errors.InvalidArgument(f"positions: {name} is not in this topic", field="positions")
    for name in names:
        if name not in positions:
            raise errors.InvalidArgument(
                f"positions: segment {name} of the topic is missing",
                action="Give a position for every segment of the topic.",
                field="positions",
            )


async def open_holders(
    store: MetadataStore, definition: Definition, segments: Sequence[str]
) -> list[TransactionRecords]:
    """The open transactions that have acknowledged messages of this incarnation. Raises the store's errors."""
    found = await asyncio.gather(*(_acknowledging(store, definition, segment) for segment in segments))
    txn_ids = list(dict.fromkeys(txn_id for part in found for txn_id in part))
    return [
        each for each in await read_transactions(store, txn_ids) if each is not None and not each.header.state.final
    ]


async def _acknowledging(store: MetadataStore, definition: Definition, segment: str) -> list[TxnId]:
    prefix = paths.acks_by_subscription(segment, definition.name)
    entries = await store.query_index("acks-by-segment-subscription", prefix, prefix_end(prefix))
    keys = [paths.op_of_ack_entry(entry) for entry in entries]
    txn_ids = []
    for key, record in (await store.get_each(keys)).items():
        op = decode_op(record.value) if record is not None else None
        if isinstance(op, AckOp) and op.incarnation == definition.record.incarnation:
            txn_ids.append(TxnId.parse(paths.op_key_parts(key)[0]))
    return txn_ids


def refuse(definition: Definition, holders: Sequence[TransactionRecords]) -> None:
    """Raises TXN_CONFLICT if there are holders."""
    if holders:
        named = [str(records.txn_id) for records in holders[:HOLDERS_NAMED]]
        raise errors.TransactionConflict(
            f"{len(holders)} open transactions have acknowledged messages of subscription {definition.name}: "
            + ", ".join(named[:3])
            + (", …" if len(holders) > 3 else ""),
            action="Wait until they are decided, or set `force`, which aborts them.",
            subscription=definition.name,
            holders=named,
        )


async def abort(store: MetadataStore, holders: Sequence[TransactionRecords], reason: str, now_ms: int) -> list[str]:
    """Abort the transactions that are still open, and return their ids. Raises the store's errors."""
    aborted = []
    for holder in holders:
        if await _is_aborted(store, holder, reason, now_ms):
            aborted.append(str(holder.txn_id))
    return aborted


async def _is_aborted(store: MetadataStore, holder: TransactionRecords, reason: str, now_ms: int) -> bool:
    """Abort a transaction, unless it is decided meanwhile."""
    records: TransactionRecords | None = holder
    patience = Patience()
    while await patience.lasts():
        if records is None or records.header.state.final:
            return False
        try:
            await decide_for_operator(store, records, TxnState.ABORTED, now_ms, reason)
        except CheckFailed:
            (records,) = await read_transactions(store, [holder.txn_id])
        else:
            return True
    raise patience.over(f"transaction {holder.txn_id}")
