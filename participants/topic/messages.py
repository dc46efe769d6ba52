"""Single messages of a topic: publish JSON by key, and browse without a subscription."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import Any

from metastore.errors import MetastoreError
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.topics import TopicRecord
from metastore.types import Revision
from metatxn.wire import errors
from metatxn.wire.broker import Isolation, Message, ReadMessage, ReadMessagesAnswer, hash_of_key
from metatxn.wire.frames import Entry, PayloadKind, RawFrame
from metatxn.wire.ids import TxnId
from metatxn.wire.names import BrowseToken, MessageId, ReadTime, SegmentParts, number_of_segment
from metatxn.wire.position import Position
from participants.broker.broker import Broker
from participants.broker.peers import RemoteSegment
from participants.common.partial_failures import one_error
from participants.messages.payloads import (
    as_batch,
    encode_messages,
    hashes_of,
    message_count,
    read_bytes,
    read_messages,
)
from participants.segment.dedup import AppendedBefore, sequence_used
from participants.segment.segment import Segment
from participants.topic.compaction import CompactedViews
from participants.topic.fitting import check_messages
from participants.topic.reading import (
    BROWSE_BYTES,
    AnySegment,
    end_of,
    from_chosen,
    position_at,
    read_page,
    snapshot_revision,
    start_of,
)

BrowsePlaces = dict[str, tuple[Position, int]]
"""The entry up to which a reader has come, by segment, and the number of messages taken from the entry after it."""
_VERY_BEGINNING = Position(0, -1)
BROWSE_MS = 2_000
"""After this time a page ends, if it has a message. Entries that were published one by one lie in as many small
objects, and a page of nothing but these would take minutes: its reader would give up, and ask for it again."""
_TAKES_NO_MORE = (errors.TransactionConflict, errors.ExpiredTransaction, errors.TransactionNotFound)


@dataclass(frozen=True, slots=True)
class PublishOptions:
    txn_id: TxnId | None
    producer: str | None
    sequence: int | None
    epoch: int | None = None
    """The epoch of the topic's exclusive producer, if it is the publisher."""
    authorization: str | None = None
    """The caller's `Authorization`, for the owners of other segments."""


@dataclass(frozen=True, slots=True)
class Browsed:
    """Messages of one entry."""

    segment: AnySegment
    frame: RawFrame
    indexes: range


@dataclass(frozen=True, slots=True)
class BrowsePage:
    """A page. `found` are the messages, or `latest` those of a compacted view. `more` means that more was readable."""

    next: BrowseToken
    revision: Revision | None
    found: Sequence[Browsed] = ()
    latest: Sequence[ReadMessage] = ()
    more: bool = False

    def in_json(self) -> ReadMessagesAnswer:
        read = [read_messages(each.segment.id, each.frame, each.indexes) for each in self.found]
        messages = [*self.latest, *chain.from_iterable(read)]
        return ReadMessagesAnswer(messages=messages, next=str(self.next), revision=self.revision)


class Messages:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._round_robin = count()
        self._compacted = CompactedViews()

    async def publish(self, topic_name: str, messages: Sequence[Message], options: PublishOptions) -> list[str]:
        """Publish one entry to each segment into which the keys fall. All messages without a key go to one segment.

        Returns the message ids in the order of the messages. If one segment refuses its entry although others have
        accepted theirs, the error is OUTCOME_UNKNOWN: publish again under the same producer and sequence, or abort the
        transaction. A retry goes to the same segments, or to those that took over from them and know what had been
        appended (DESIGN §5.13).
        """

        async def look() -> list[AnySegment]:
            topic = await check_messages(self._broker, topic_name, messages)
            return await self._segments(topic, authorization=options.authorization)

        segments = await self._broker.in_layout(topic_name, look)
        hashes = self._hashes(messages, options, segments)
        places: dict[int, _Place] = {}
        while left := [index for index in range(len(messages)) if index not in places]:
            routed: defaultdict[str, list[int]] = defaultdict(list)
            owners = {segment.id: segment for segment in segments}
            for index in left:
                routed[_covering(segments, hashes[index]).id].append(index)
            taken_before = bool(places)
            results = await asyncio.gather(
                *(
                    owners[segment_id].publish(
                        self._entry(owners[segment_id], [messages[index] for index in indexes], options),
                        partial(_of_each, hashes, indexes),
                    )
                    for segment_id, indexes in routed.items()
                ),
                return_exceptions=True,
            )
            errors: list[BaseException] = []
            for (segment_id, indexes), result in zip(routed.items(), results, strict=True):
                if not isinstance(result, BaseException):
                    places |= dict.fromkeys(indexes, _Place(segment_id, result[0], len(indexes)))
                elif isinstance(result, AppendedBefore) and (told := _told(result, hashes, indexes)):
                    places |= told
                elif not _moved_on(result):
                    errors.append(result)
            if errors:
                raise _one_error(errors, len(results) + taken_before, options)
            if any(isinstance(result, BaseException) and _moved_on(result) for result in results):
                segments = await self._moved_to(topic_name, options, taken=bool(places))
        return _ids([places[index] for index in range(len(messages))], options)

    def _entry(self, segment: AnySegment, messages: Sequence[Message], options: PublishOptions) -> Entry:
        """The entry for a segment. A Kafka partition gets a record batch. The owner of a remote one makes it from the
        messages."""
        as_kafka = isinstance(segment, Segment) and segment.record.next_offset is not None
        return Entry(
            as_batch(messages, self._broker.clock()) if as_kafka else encode_messages(messages),
            PayloadKind.KAFKA if as_kafka else PayloadKind.MESSAGES,
            len(messages),
            options.txn_id,
            producer=options.producer,
            sequence=options.sequence,
            epoch=options.epoch,
        )

    async def _moved_to(self, topic_name: str, options: PublishOptions, *, taken: bool) -> list[AnySegment]:
        """The current segments, for the messages that were not accepted. `taken` says whether some messages were
        appended."""
        try:
            self._broker.forget_topic(topic_name)
            topic = await self._broker.topic(topic_name)
            return await self._segments(topic, authorization=options.authorization)
        except (errors.MetatxnError, MetastoreError) as error:
            raise _one_error([error], 1 + taken, options) from None

    def _hashes(
        self, messages: Sequence[Message], options: PublishOptions, segments: Sequence[AnySegment]
    ) -> list[int]:
        if options.sequence is not None:
            return hashes_of([message.key for message in messages], options.producer, options.sequence)
        active = [segment for segment in segments if segment.record.state == "active"]
        default = active[next(self._round_robin) % len(active)].record.range[0] if active else 0
        return [default if message.key is None else hash_of_key(message.key) for message in messages]

    async def browse(
        self,
        topic_name: str,
        token: BrowseToken | ReadTime | None,
        limit: int | None,
        isolation: Isolation,
        revision: Revision | None,
        wait_ms: int,
        authorization: str | None = None,
        *,
        max_bytes: int = BROWSE_BYTES,
        compacted: bool = False,
        latest: bool = False,
    ) -> BrowsePage:
        """Up to `limit` messages after `token`, or fewer if they have more than `max_bytes` or take longer than
        `BROWSE_MS`; without a limit, the rest of whole entries. At least one message. Waits up to `wait_ms` for the
        first one.

        A time as the token begins with what was published then or later. Without a token, `latest` returns at once with
        the place after everything readable, and `compacted` begins with the compacted view (see `compaction`). Later
        pages continue as their token says.
        """
        at_time = isinstance(token, ReadTime)
        if isinstance(token, ReadTime):
            token = await self._token_at(topic_name, token.at_ms, authorization)
        places = dict(token.places) if token else {}
        newest = None if at_time else _newest(places)
        revision = snapshot_revision(isolation, revision, token.revision if token else None)
        if isolation == "snapshot" and revision is None:
            revision = await self._broker.store.current_revision()
        if token is None and (isolation == "snapshot" or latest):
            self._broker.forget_topic(topic_name)  # the layout is read after the revision (DESIGN §7)
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000

        async def look() -> list[AnySegment]:
            return await self._segments(await self._broker.topic(topic_name), places, authorization)

        while True:
            segments = await self._broker.in_layout(topic_name, look)
            if not set(places) <= {segment.id for segment in segments}:
                places = await self._without_removed(places, segments, token, newest, isolation)
            if latest and token is None:
                places = await self._ends(segments, isolation, revision)
                return BrowsePage(BrowseToken(places, revision), revision)
            if compacted and token is None:
                token = await self._compacted.begin(segments, isolation, revision)
            if token is not None and token.ends is not None:
                assert limit is not None
                kept, token = await self._compacted.page(segments, token, limit, isolation)
                if kept or token.ends is not None:
                    return BrowsePage(token, revision, latest=kept)
                places = dict(token.places)  # the view has no more pages: continue with what comes
            changes = [
                change
                for segment in segments
                if isinstance(segment, Segment)
                for change in segment.next_changes(isolation)
            ]
            new = [segment for segment in segments if segment.id not in places]
            later = _created_since(newest, [each.id for each in new])
            places |= {each.id: (_VERY_BEGINNING if each.id in later else start_of(each), 0) for each in new}
            chosen = {each.id for each in (segments if newest is None else new)} - later
            found, more, reached = await self._collect(segments, places, limit, max_bytes, isolation, revision, chosen)
            places = _without_unreached(places, new, reached)
            left = deadline - asyncio.get_running_loop().time()
            if found or left <= 0 or isolation == "snapshot":
                return BrowsePage(BrowseToken(places, revision), revision, found, more=more)
            remote = [each for each in segments if isinstance(each, RemoteSegment) and each.id in reached]
            await _first_change(changes, remote, places, isolation, left)
            await self._broker.decisions_told()

    async def _without_removed(
        self,
        places: BrowsePlaces,
        segments: Sequence[AnySegment],
        token: BrowseToken | None,
        newest: int | None,
        isolation: Isolation,
    ) -> BrowsePlaces:
        """The places of a reader without those in segments that were removed, which it must have passed. Raises
        POSITION_TRIMMED, and INVALID_ARGUMENT for a token of another topic.

        It goes on in the children, see `_collect`, unless one of them was created since it began, see `_created_since`,
        and was removed before it came there. (All segments of a snapshot were there when it began.) In a compacted
        view, the token's `ends` tell how far a segment belongs to it.
        """
        ends = token.ends if token is not None else None
        left = {segment.id: places[segment.id] for segment in segments if segment.id in places}
        for segment_id in sorted(places.keys() - left.keys()):
            removed = await self._broker.removed(segment_id)
            if removed is None:
                raise errors.InvalidArgument("after: is a token of another topic", field="after")
            at, _ = places[segment_id]
            if ends is not None:
                passed = at >= ends.get(segment_id, at)
            else:
                passed = removed.is_passed(at) or (removed.end is None and _has_read_after(segment_id, places))
            if not passed:
                raise removed.trimmed()
            missed = _created_since(newest, removed.last_parents - places.keys())
            if missed and isolation != "snapshot":
                raise (await self._broker.removed(min(missed)) or removed).trimmed()
        return left

    async def _collect(
        self,
        segments: Sequence[AnySegment],
        places: dict[str, tuple[Position, int]],
        limit: int | None,
        room_bytes: int,
        isolation: Isolation,
        revision: Revision | None,
        chosen: Container[str],
    ) -> tuple[list[Browsed], bool, set[str]]:
        """Read the segments in the order of the layout, in which parents come before their children. A child is read
        once its parents have been read to their end, so that the messages of a key come in the order in which they were
        written. Returns also whether there was more to read, and which segments could be read.

        The reader has not named the places in segments of `chosen`: they may move on, if a trim overtakes the read."""
        loop = asyncio.get_running_loop()
        late_s = loop.time() + BROWSE_MS / 1000
        found: list[Browsed] = []
        room, more = sys.maxsize if limit is None else limit, False
        unread: set[str] = set()
        reached: set[str] = set()
        for segment in segments:
            if not unread.isdisjoint(segment.record.parents):
                unread.add(segment.id)
                continue
            reached.add(segment.id)
            at, taken = places[segment.id]
            end, may_move = False, segment.id in chosen
            while not end and room > 0 and not (found and (room_bytes <= 0 or loop.time() >= late_s)):
                size = max(1, min(room_bytes, BROWSE_BYTES))
                read = partial(read_page, segment, max_bytes=size, isolation=isolation, revision=revision)
                page = await (from_chosen(at, read) if may_move else read(at))
                end, may_move = page.end, may_move and not page.frames
                for frame in page.frames:
                    left = range(taken, message_count(frame))
                    each_bytes = max(1, read_bytes(frame) // max(1, message_count(frame)))
                    fitting = max(min(room, room_bytes // each_bytes), int(not found))
                    if limit is None and fitting < len(left):
                        fitting = 0 if found else len(left)
                    some = left[:fitting]
                    if some:
                        found.append(Browsed(segment, frame, some))
                    room, room_bytes = room - len(some), room_bytes - each_bytes * len(some)
                    if isinstance(segment, Segment):  # another broker counts what it sends
                        segment.traffic.went_out(len(some), len(frame.data) * len(some) // max(1, message_count(frame)))
                    if len(left) > fitting:
                        places[segment.id] = (at, taken + fitting)
                        return found, True, reached
                    at, taken = frame.position, 0
                at, taken = max(at, page.next), 0
            more = more or not end
            places[segment.id] = (at, taken)
            if not segment.ended_at(at):
                unread.add(segment.id)
        return found, more, reached

    async def _ends(
        self, segments: Sequence[AnySegment], isolation: Isolation, revision: Revision | None
    ) -> BrowsePlaces:
        """The places that `_collect` would reach, without reading what is before them. A child whose parents cannot be
        read to their end yet is later read from its beginning, because nothing of it can be read now."""

        async def end(segment: AnySegment) -> Position:
            at = max(start_of(segment), await end_of(segment, isolation))
            page = await read_page(segment, at, 1, isolation, revision)  # this asks the owner, at the snapshot
            return at if page.frames else max(at, page.next)

        ends = await asyncio.gather(*(end(segment) for segment in segments))
        places: BrowsePlaces = {}
        unread: set[str] = set()
        reached: set[str] = set()
        for segment, at in zip(segments, ends, strict=True):
            is_reached = unread.isdisjoint(segment.record.parents)
            if is_reached:
                reached.add(segment.id)
            places[segment.id] = (at if is_reached else start_of(segment), 0)
            if not is_reached or not segment.ended_at(at):
                unread.add(segment.id)
        return _without_unreached(places, segments, reached)

    async def _token_at(self, topic_name: str, at_ms: int, authorization: str | None) -> BrowseToken:
        async def look() -> list[AnySegment]:
            return await self._segments(await self._broker.topic(topic_name), (), authorization)

        segments = await self._broker.in_layout(topic_name, look)
        found = await asyncio.gather(*(position_at(segment, at_ms) for segment in segments))
        return BrowseToken({each.id: (at.before, 0) for each, at in zip(segments, found, strict=True)})

    async def _segments(
        self, topic: TopicRecord, wanted: Iterable[str] = (), authorization: str | None = None
    ) -> list[AnySegment]:
        """All segments of the topic, parents before their children. The cached topic may lack children that another
        broker has created."""
        known = set(topic.segments)
        anywhere = self._broker.anywhere
        segments = [await anywhere(segment_id, authorization) for segment_id in topic.segments]
        if not known.issuperset(wanted) or any(not known.issuperset(s.record.children) for s in segments):
            self._broker.forget_topic(topic.name)
            newest = await self._broker.topic(topic.name)
            segments += [await anywhere(s, authorization) for s in newest.segments if s not in known]
        return segments


def _newest(places: Iterable[str]) -> int | None:
    """The highest number of these segments; None if there is none."""
    return max(map(number_of_segment, places), default=None)


def _created_since(newest: int | None, new: Iterable[str]) -> frozenset[str]:
    """Those of the `new` segments that were created since a reader began that has named a place in the segment with the
    number `newest`, even if that was removed since. It comes to them at the very beginning, whatever was trimmed: it
    would miss that without being told."""
    return frozenset(each for each in new if newest is not None and number_of_segment(each) > newest)


def _without_unreached(places: BrowsePlaces, new: Iterable[AnySegment], reached: Container[str]) -> BrowsePlaces:
    """The places to go on with. Of the `new` ones, those are left out in which the reader has not read, and of which
    something was trimmed before: a place there would look as if it had read that. But the newest one stays, because it
    tells when the reader has begun."""
    newest = _newest(places)
    left_out = {
        each.id
        for each in new
        if each.id not in reached and places[each.id][0].entry >= 0 and number_of_segment(each.id) != newest
    }
    return {segment: place for segment, place in places.items() if segment not in left_out}


def _has_read_after(segment_id: str, places: BrowsePlaces) -> bool:
    """Whether a reader with these places has read anything of a descendant of the segment, and so all of the segment
    before."""
    segment = SegmentParts.parse(segment_id)
    begun = (SegmentParts.parse(other) for other, (at, taken) in places.items() if at.entry >= 0 or taken)
    return any(other.number > segment.number and other.overlaps(segment) for other in begun)


async def _first_change(
    changes: Sequence[asyncio.Future[None]],
    remote: Sequence[RemoteSegment],
    places: Mapping[str, tuple[Position, int]],
    isolation: Isolation,
    timeout_s: float,
) -> None:
    """Wait until a segment here has changed, another broker has something new, or `timeout_s` has passed."""
    asked = [
        asyncio.ensure_future(segment.read(places[segment.id][0], 1, isolation, None, timeout_s))
        for segment in remote
        if not segment.ended_at(places[segment.id][0])
    ]
    waiting: list[asyncio.Future[Any]] = [*changes, *asked]
    try:
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(timeout_s)  # everything is sealed and was read
    finally:
        for request in asked:
            request.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Place:
    """An entry with `count` messages."""

    segment: str
    position: Position
    count: int


def _of_each(hashes: Sequence[int], indexes: Sequence[int]) -> frozenset[int]:
    return frozenset(hashes[index] for index in indexes)


def _told(before: AppendedBefore, hashes: Sequence[int], indexes: Sequence[int]) -> dict[int, _Place]:
    """The places of the messages that had already been appended."""
    return {
        index: _Place(part.segment or "", part.position, part.count)
        for index in indexes
        for part in before.parts
        if part.tells_of(hashes[index])
    }


def _ids(places: Sequence[_Place], options: PublishOptions) -> list[str]:
    """The ids of the messages; in an entry they are in the order in which they were sent. Raises INVALID_ARGUMENT if an
    entry has more or fewer messages, because then it was an entry of other messages."""
    counts = Counter(places)
    for place, found in counts.items():
        if found != place.count:
            raise sequence_used(options.sequence, place.count, found).not_definite()
    before: Counter[_Place] = Counter()
    ids = []
    for place in places:
        ids.append(str(MessageId(place.segment, place.position, before[place])))
        before[place] += 1
    return ids


def _moved_on(error: BaseException) -> bool:
    """Whether the segment accepted nothing because others have taken over from it."""
    return isinstance(error, errors.SegmentSealed) and bool(error.children)


def _one_error(failures: Sequence[BaseException], parts: int, options: PublishOptions) -> BaseException:
    """The answer to a publish to several segments if some of them refused. If the transaction accepts no more
    operations, its decision also applies to what was accepted."""
    return one_error(
        failures,
        parts,
        lambda error: options.txn_id is not None and isinstance(error, _TAKES_NO_MORE),
        "segments accepted their messages",
        "Send the whole request again under the same producer and sequence"
        + (", or abort the transaction." if options.txn_id is not None else "."),
    )


def _covering(segments: Sequence[AnySegment], hashed: int) -> AnySegment:
    """The active segment of the key, or else the last sealed one, whose error says why it accepts nothing."""
    holding = [segment for segment in segments if _holds(segment.record, hashed)]
    return next((segment for segment in holding if segment.record.state == "active"), holding[-1])


def _holds(record: SegmentRecord, hashed: int) -> bool:
    low, high = record.range
    return low <= hashed <= high
