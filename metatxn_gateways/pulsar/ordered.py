"""Which stream consumer of a subscription has which segment, for consumers that read in order.

    SCALABLE_TOPIC_SUBSCRIBE ─▶ member of a group ─▶ assignment, sent whenever it changes ─▶ SUBSCRIBE to each segment

The broker that has the first segment of a topic, the home of its subscriptions (DESIGN §5.10), assigns the segments.
Clients find it by the `controller_url` of a layout. A group is in memory: a client whose connection is gone asks again,
perhaps another broker. Nothing relies on an assignment: a segment has one attached consumer at a time, whichever client
was told to attach one. What decides the order is read from the store: a segment is assigned once everything in its
existing parents, and theirs, is acknowledged durably.

A checkpoint consumer in a group keeps its places itself, so it gets its segments at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import structlog

from metastore.background import in_background
from metastore.errors import MetastoreError
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.subscriptions import MarkDelete
from metatxn.wire import errors
from metatxn.wire.names import SegmentParts, topic_of_segment
from metatxn_gateways.pulsar.codes import REFUSALS, PulsarCode, PulsarError
from metatxn_gateways.pulsar.layouts import SegmentGraph, SegmentGraphs
from participants.broker.broker import Broker
from participants.subscription.definitions import Definitions
from participants.subscription.places import Place

STREAM, CHECKPOINT = 0, 1
LOOK_EVERY_S = 1.0
"""How often a group looks by itself whether other brokers report that segments are acknowledged."""
log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class OrderedMember:
    """A consumer of a group. `tell` sends its assignment, and `lost` ends its connection, so that it asks again."""

    name: str
    tell: Callable[[dict[str, Any]], None]
    lost: Callable[[], None]
    told: list[str] = field(default_factory=list)
    """The segments that it has, as far as it was told."""
    closing: set[str] = field(default_factory=set)
    """The segments that it does not have any more, and has not closed yet."""


GroupKey = tuple[str, str, int]
"""The topic, the subscription, and the kind of consumers."""


class OrderedConsumers:
    """The groups whose segments this broker assigns. Used only from the event loop of its process."""

    def __init__(self, broker: Broker, layouts: SegmentGraphs) -> None:
        self._broker = broker
        self._layouts = layouts
        self._groups: dict[GroupKey, _Group] = {}

    async def join(self, key: GroupKey, member: OrderedMember) -> dict[str, Any]:
        """Add a member, in place of one with its name. Returns its assignment; later ones it is told.

        Raises TOPIC_NOT_FOUND, SERVICE_NOT_READY for a topic whose home is another broker, and the store's errors.
        """
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(key, self._broker, self._layouts, self._ended)
        return await group.join(member)

    def _ended(self, group: _Group) -> None:
        if self._groups.get(group.key) is group:
            del self._groups[group.key]

    def leave(self, key: GroupKey, member: OrderedMember) -> None:
        """The connection of a member is gone. Idempotent."""
        if (group := self._groups.get(key)) is not None:
            group.leave(member)

    def closed(self, subscription: str, segment: str, consumer: str) -> None:
        """A consumer on a segment was closed by its client."""
        if (group := self._groups.get((topic_of_segment(segment), subscription, STREAM))) is not None:
            group.closed(segment, consumer)

    def acknowledged(self, subscription: str, segment: str) -> None:
        """Everything in a sealed segment is acknowledged."""
        if (group := self._groups.get((topic_of_segment(segment), subscription, STREAM))) is not None:
            group.look()

    def end(self) -> None:
        for group in list(self._groups.values()):
            group.end()


class _Group:
    """The members of one group, as long as there are any."""

    def __init__(self, key: GroupKey, broker: Broker, layouts: SegmentGraphs, ended: Callable[[_Group], None]) -> None:
        self.key = key
        self._topic, self._subscription, self._kind = key
        self._broker = broker
        self._layouts = layouts
        self._ended = ended
        self._members: dict[str, OrderedMember] = {}
        self._assigned: dict[str, str] = {}
        """The name of the member that has a segment."""
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._unwatch = layouts.watch(self._topic, self.look)
        self._running = in_background(self._run(), "a group of ordered consumers")

    # -- members -----------------------------------------------------------------------------------------------

    async def join(self, member: OrderedMember) -> dict[str, Any]:
        before, self._members[member.name] = self._members.get(member.name), member
        if before is not None:
            member.told, member.closing = before.told, before.closing
        try:
            await self._assign(joining=member)
        except BaseException:
            self.leave(member)
            raise
        return self._described(member)

    def leave(self, member: OrderedMember) -> None:
        if self._members.get(member.name) is member:
            del self._members[member.name]
            self.look()
        if not self._members:
            self.end()

    def closed(self, segment: str, consumer: str) -> None:
        """A client says nothing when it closes a whole consumer, but closes what that has on the segments."""
        for member in list(self._members.values()):
            if consumer == f"{member.name}-seg-{SegmentParts.parse(segment).number}":
                if segment in member.closing:
                    member.closing.discard(segment)
                elif self._assigned.get(segment) == member.name:
                    self.leave(member)

    def look(self) -> None:
        self._changed.set()

    def end(self) -> None:
        self._ended(self)
        self._unwatch()
        self._running.cancel()

    # -- assigning ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self._assign()
            except MetastoreError as error:
                log.info("segments are assigned later", topic=self._topic, error=str(error))
            except REFUSALS as error:
                log.info("segments are assigned elsewhere", topic=self._topic, error=str(error))
                for member in list(self._members.values()):
                    member.lost()
                self.end()

    async def _assign(self, joining: OrderedMember | None = None) -> None:
        """Assign the segments anew, and tell the members; one that is `joining` is answered instead. Raises
        SERVICE_NOT_READY and TOPIC_NOT_FOUND, and the store's errors."""
        async with self._turn:
            layout = self._layouts.get(self._topic)
            if layout is None:
                if self._layouts.exists(self._topic):
                    raise PulsarError(PulsarCode.SERVICE_NOT_READY, f"topic {self._topic} is being changed")
                raise PulsarError(PulsarCode.TOPIC_NOT_FOUND, f"topic {self._topic} does not exist")
            if self._broker.serving(layout.topic.home) is None:
                message = f"another broker assigns the segments of topic {self._topic}"
                raise PulsarError(PulsarCode.SERVICE_NOT_READY, message)
            due = list(layout.segments) if self._kind == CHECKPOINT else await self._due(layout)
            self._layout = layout
            self._assigned = shared_out(due, list(self._members), self._assigned)
            for member in self._members.values():
                told, member.told = member.told, self._segments_of(member)
                member.closing |= {*told} - {*member.told}
                if told != member.told and member is not joining:
                    member.tell(self._described(member))

    async def _due(self, layout: SegmentGraph) -> list[str]:
        """The segments that have something left, or will have, and whose ancestors have nothing left."""
        done = await self._done(layout)
        ready: set[str] = set()
        for name in sorted(layout.segments, key=lambda each: SegmentParts.parse(each).number):
            parents = layout.segments[name].existing_parents & layout.segments.keys()
            if all(parent in ready and parent in done for parent in parents):
                ready.add(name)
        return [name for name in layout.segments if name in ready and name not in done]

    async def _done(self, layout: SegmentGraph) -> set[str]:
        """The sealed segments in which everything is acknowledged, as the store shows it."""
        ends = {name: end for name, record in layout.segments.items() if (end := end_of_sealed(record)) is not None}
        if not ends:
            return set()
        definition = None
        with suppress(errors.NotFound):
            definition = await Definitions(self._broker.store).get(self._topic, self._subscription)
        if definition is None:
            return {name for name, record in layout.segments.items() if record.is_bare}
        incarnation = definition.record.incarnation
        keys = {name: paths.cursor_mark(name, self._subscription, incarnation) for name in ends}
        stored = await self._broker.store.get_each(list(keys.values()))
        done: set[str] = set()
        for name, end in ends.items():
            mark = stored[keys[name]]
            reached = Place.parse(MarkDelete.decode(mark.value).before) if mark else definition.start_on(name)
            if reached >= end or layout.segments[name].is_bare:
                done.add(name)
        return done

    def _segments_of(self, member: OrderedMember) -> list[str]:
        return [segment for segment, name in self._assigned.items() if name == member.name]

    def _described(self, member: OrderedMember) -> dict[str, Any]:
        segments = []
        for name in self._segments_of(member):
            parts = SegmentParts.parse(name)
            low, high = parts.range
            segments.append({"segment_id": parts.number, "hash_start": low, "hash_end": high, "segment_topic": name})
        return {"layout_epoch": self._layout.epoch, "segments": segments}


def end_of_sealed(record: SegmentRecord) -> Place | None:
    """The place behind the last entry of a sealed segment; None while it is not sealed."""
    if record.state != "sealed" or any(ledger.entries is None for ledger in record.ledgers):
        return None
    last = [ledger.last for ledger in record.ledgers if ledger.last is not None and ledger.entries]
    return Place.behind(last[-1]) if last else Place.parse("0:0:0")


def shared_out(segments: Sequence[str], members: Collection[str], before: Mapping[str, str]) -> dict[str, str]:
    """The member for each segment: as evenly as possible, and with as few changes."""
    if not members:
        return {}
    least, more = divmod(len(segments), len(members))
    counts = dict.fromkeys(members, 0)
    found: dict[str, str] = {}
    for segment in segments:
        name = before.get(segment)
        if name in counts and name is not None and counts[name] < least + (more > 0):
            more -= counts[name] == least
            counts[name] += 1
            found[segment] = name
    for segment in segments:
        if segment not in found:
            found[segment] = name = min(counts, key=lambda each: counts[each])
            counts[name] += 1
    return {segment: found[segment] for segment in segments}
