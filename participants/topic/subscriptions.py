"""The subscriptions that this broker serves: as the home of some, whose messages it delivers, and with its share of
others.

A request to a broker that is not the home is redirected to it, except for acknowledging and redelivering: any broker
passes these on to the owners of the segments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from metastore.txn import paths
from metastore.txn.records.segments import OwnerRecord
from metastore.txn.records.subscriptions import SubscriptionRecord
from metastore.types import Record, Revision
from metastore.versions import Feature, features_of
from metatxn.service.versions import require
from metatxn.wire import errors
from metatxn.wire.broker import Message, SeekPreview, SeekPreviewSegment
from metatxn.wire.ids import TxnId
from metatxn.wire.names import MessageId, number_of_segment
from participants.broker.broker import Broker
from participants.segment.segment import Segment
from participants.subscription.dead_letters import DeadLetters
from participants.subscription.definitions import Definition, Definitions
from participants.subscription.dispatch import Redelivered
from participants.subscription.home import Home
from participants.subscription.places import Span, Start
from participants.subscription.segment_subscription import acks_error
from participants.subscription.segment_subscriptions import subscriptions_of
from participants.subscription.share import AckRequest, LocalShare, TakeAnswer, TakeRequest
from participants.topic.messages import Messages, PublishOptions
from participants.topic.move_counts import MoveCounts
from participants.topic.remote_share import RemoteShare
from participants.topic.seeking import HOLDERS_NAMED, Target, abort, open_holders, refuse, starts_of
from participants.topic.shares import SubscriptionShares, ids_within, shares_of
from participants.topic.subscription import Subscription, as_home, home_of
from participants.txn.own_transactions import OwnTransactions

SESSION_TIMEOUT_MS = 30_000


DEAD_LETTERS = "dead-letters"
"""The producer of dead letters. Its sequences count in one transaction."""


class Subscriptions:
    def __init__(self, broker: Broker, messages: Messages) -> None:
        self._broker = broker
        self._messages = messages
        self._definitions = Definitions(broker.store)
        self._dead_letters = DeadLetters(
            self._publish, OwnTransactions(broker.store, lambda: broker.clock(), lambda: broker.principal)
        )
        self._known: dict[tuple[str, str], Definition] = {}
        """The definitions as they were last read. If one turns out to be dropped, it is read again."""
        self._at_home: dict[tuple[str, str], Subscription] = {}
        self._move_counts = MoveCounts()

    # -- at home -----------------------------------------------------------------------------------------------

    async def assert_home(self, topic: str) -> None:
        """Raises NOT_OWNER if another broker is the home of the topic's subscriptions, and NOT_FOUND without the
        topic."""
        await self._broker.topics.get(topic)
        await home_of(self._broker, topic)

    async def create(
        self, topic: str, name: str, wanted: SubscriptionRecord, authorization: str | None = None
    ) -> Subscription:
        """Create the subscription that `wanted` describes (except for its incarnation). Raises ALREADY_EXISTS if
        another one has the name, NOT_FOUND without the topic, UPGRADE_PENDING, and NOT_OWNER."""
        for feature in features_of(wanted):
            await require(self._broker.store, self._broker.version, feature)

        async def ends() -> Mapping[str, Start]:
            """The places after everything that readers can see. What becomes visible later belongs to the
            subscription."""
            return await starts_of(Target("latest"), self._broker, topic, authorization)

        async def stored() -> Record:
            return (await self._broker.topics.get(topic)).record

        home = await home_of(self._broker, topic)
        return self._serve(await self._definitions.create(topic, name, wanted, stored, ends), home)

    async def at_home(self, topic: str, name: str) -> Subscription:
        """The subscription, if this broker is its home. Raises NOT_OWNER if another one is, and NOT_FOUND."""
        home = await home_of(self._broker, topic)
        known = self._at_home.get((topic, name))
        if known is not None and known.home == as_home(home) and not known.closed:
            return known
        return self._serve(await self._definitions.get(topic, name), home)

    def _serve(self, definition: Definition, home: Segment) -> Subscription:
        """The only object of this incarnation at this generation, which alone knows the consumers. It ends with the
        segment that makes this broker the home. Raises STORE_UNAVAILABLE."""
        home.assert_serving()
        key = (definition.topic, definition.name)
        known = self._at_home.get(key)
        if known is not None:
            if known.definition == definition and known.home == as_home(home) and not known.closed:
                return known
            known.close()
        self._known[key] = definition
        served = self._at_home[key] = Subscription(
            self._broker, definition, as_home(home), self._dead_letters, SESSION_TIMEOUT_MS
        )
        at_home = subscriptions_of(home)
        at_home.on_close[definition.name] = partial(self._forget, key, served)
        at_home.consumers[definition.name] = lambda: len(served.consumers)
        return served

    def _forget(self, key: tuple[str, str], served: Subscription) -> None:
        served.close()
        if self._at_home.get(key) is served:
            del self._at_home[key]

    async def seek(
        self, topic: str, name: str, target: Target, *, force: bool = False, authorization: str | None = None
    ) -> tuple[Subscription, list[str]]:
        """Move the subscription (see `seeking`). Returns it with the ids of the transactions that `force` has aborted.

        Raises TXN_CONFLICT if an open transaction has acknowledged messages, unless `force`; INVALID_ARGUMENT and
        POSITION_TRIMMED for a target that is not there; UPGRADE_PENDING, NOT_FOUND, NOT_OWNER and STORE_UNAVAILABLE.
        After an error that is not definite it can be repeated.
        """
        await require(self._broker.store, self._broker.version, Feature.SEEK)
        home, broker = await home_of(self._broker, topic), self._broker
        known = await self._definitions.get(topic, name)
        cuts: dict[str, Start] = {}
        await starts_of(target, broker, topic, authorization, cuts)  # a wrong request has no effect
        holders = await open_holders(broker.store, known, (await broker.topic(topic)).segments)
        if not force:
            refuse(known, holders)
        aborted = await abort(broker.store, holders, f"subscription {name} of {topic} was moved", broker.clock())

        async def stored() -> Record:
            return (await broker.topics.get(topic)).record

        moved = await self._definitions.seek(
            topic, name, stored, lambda: starts_of(target, broker, topic, authorization, cuts)
        )
        return self._serve(moved, home), aborted

    async def preview(
        self, topic: str, name: str, target: Target, authorization: str | None = None, *, for_s: float | None = None
    ) -> SeekPreview:
        """What `seek` would do now, by segment, and the ids of open transactions because of which it would be refused.
        Nothing changes. A move to a revision is counted for about `for_s`, if that is given, and the next call goes on
        where this one has ended. Raises as `seek`, except TXN_CONFLICT and UPGRADE_PENDING."""
        await home_of(self._broker, topic)
        shares = await self._shares(topic, name, authorization)
        shares.assert_complete()
        if target.revision is None or for_s is None or not self._broker.version.allows(Feature.SHARES):
            starts, complete = await starts_of(target, self._broker, topic, authorization), True
            parts = await asyncio.gather(*(share.preview(starts) for share in shares.all))
            found = [each for part in parts for each in part]
        else:
            found, complete = await self._count_on(shares, target.revision, authorization, for_s)
        segments = (await self._broker.topic(topic)).segments
        holders = await open_holders(self._broker.store, shares.definition, segments)
        order = {segment: number for number, segment in enumerate(segments)}
        return SeekPreview(
            topic=topic,
            name=name,
            segments=sorted(found, key=lambda each: order.get(each.segment, len(order))),
            holders=[str(records.txn_id) for records in holders[:HOLDERS_NAMED]],
            complete=complete,
        )

    async def _count_on(
        self, shares: SubscriptionShares, revision: Revision, authorization: str | None, for_s: float
    ) -> tuple[list[SeekPreviewSegment], bool]:
        """What a move to the revision would do, as far as it is counted, and whether that is everything."""
        owners = {segment: share for share in shares.all for segment in share.segments}
        found = await asyncio.gather(*(self._broker.anywhere(name, authorization) for name in owners))
        segments = dict(zip(owners, found, strict=True))

        async def count(segment: str, start: Start, within: Span) -> SeekPreviewSegment:
            (counted,) = await owners[segment].preview({segment: start}, {segment: within})
            return counted

        definition = shares.definition
        key = (definition.topic, definition.name, definition.record.incarnation, revision)
        counting = self._move_counts.of(key)
        complete = await counting.go_on(segments, count, for_s)
        if complete:
            self._move_counts.forget(key)
        return counting.told(), complete

    async def drop(self, topic: str, name: str, authorization: str | None = None) -> None:
        """Drop the subscription. It is gone at once, and its records are deleted before this returns, as far as the
        owners of the segments are available; the others delete them later. Raises NOT_FOUND."""
        await self._definitions.drop(topic, name, self._broker.clock())
        dropped = await self._definitions.get_or_tombstone(topic, name)
        others = {error.owner_url for error in await self._drop_here(dropped) if isinstance(error, errors.NotOwner)}
        for url in others:
            with suppress(errors.MetatxnError):
                await RemoteShare(self._broker.peer(url, authorization), dropped, (), self._broker.version).drop()

    # -- anywhere ----------------------------------------------------------------------------------------------

    async def acknowledge(self, topic: str, name: str, request: AckRequest, authorization: str | None = None) -> None:
        """Acknowledge. Returns once that is durable; inside a transaction, once its operations are. At each broker
        either the whole request is accepted, or nothing if any of it conflicts.

        Raises INVALID_ARGUMENT for messages of another topic, TXN_CONFLICT, EXPIRED_TRANSACTION and TXN_NOT_FOUND.
        After STORE_UNAVAILABLE and OUTCOME_UNKNOWN the request can be repeated without harm.
        """
        field = "positions" if request.up_to else "message_ids"
        request = await self._without_removed(topic, request)
        if not request.segments:
            await self._definitions.get(topic, name)
            return
        having = await self._having(topic, name, request.segments, field, authorization)
        outcomes = await asyncio.gather(
            *(share.acknowledge(request.within(segments)) for share, segments in having.items()),
            return_exceptions=True,
        )
        if errors := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
            raise acks_error(errors, len(outcomes))

    async def _without_removed(self, topic: str, request: AckRequest) -> AckRequest:
        """The request without what was removed with its segment: it is acknowledged, or can no longer be received.
        Raises TXN_CONFLICT for a single message inside a transaction, as for any that is acknowledged already."""
        known = (await self._broker.topic(topic)).segments
        unknown = [each for each in request.segments if each not in known]
        if not unknown:
            return request
        stored = (await self._broker.topics.get(topic)).topic
        removed = [each for each in unknown if stored.had(each)]
        if removed and request.ids and request.txn_id is not None:
            raise errors.TransactionConflict(
                f"messages of segment {removed[0]} cannot be acknowledged: all of them were dropped with it",
                action="Abort, and do the work again in a new transaction without these messages.",
                segment=removed[0],
            )
        return request.within(set(request.segments) - set(removed))

    async def redeliver(
        self, topic: str, name: str, ids: Sequence[MessageId] | None, authorization: str | None = None
    ) -> Redelivered:
        """Redeliver these messages, or all that consumers hold. Raises INVALID_ARGUMENT, STORE_UNAVAILABLE."""
        if ids is None:
            shares = await self._shares(topic, name, authorization)
            shares.assert_complete()
            return sum(await asyncio.gather(*(share.redeliver(None) for share in shares.all)), Redelivered())
        having = await self._having(
            topic, name, list(dict.fromkeys(each.segment for each in ids)), "message_ids", authorization
        )
        returned = await asyncio.gather(
            *(share.redeliver(ids_within(ids, segments)) for share, segments in having.items())
        )
        return sum(returned, Redelivered())

    async def _having(
        self, topic: str, name: str, segments: Collection[str], field: str, authorization: str | None
    ) -> dict[LocalShare | RemoteShare, list[str]]:
        """See `SubscriptionShares.having`. That a segment is not of the topic is only believed of the layout in the
        store: another broker may have delivered a message of a child that this broker has not heard of."""
        shares = await self._shares(topic, name, authorization)
        if not shares.knows(segments):
            self._broker.forget_topic(topic)
            shares = await self._shares(topic, name, authorization)
        return shares.having(segments, field)

    async def _shares(self, topic: str, name: str, authorization: str | None = None) -> SubscriptionShares:
        known = self._known.get((topic, name))
        if known is not None:
            try:
                return await shares_of(self._broker, known, self._dead_letters, authorization)
            except errors.NotFound:
                self._known.pop((topic, name), None)
        found = self._known[topic, name] = await self._definitions.get(topic, name)
        try:
            return await shares_of(self._broker, found, self._dead_letters, authorization)
        except errors.NotFound as error:  # it has been dropped or moved in between
            raise await self._definitions.reason(found, error) from None

    # -- what other brokers ask for ----------------------------------------------------------------------------

    async def share(
        self, topic: str, name: str, segments: Sequence[str] | None = None, incarnation: int | None = None
    ) -> LocalShare:
        """This broker's share. Raises NOT_FOUND if the `incarnation` is gone, and STORE_UNAVAILABLE if one of
        `segments` is not here."""
        shares = await self._shares(topic, name)
        if incarnation is not None and shares.definition.record.incarnation != incarnation:
            self._known.pop((topic, name), None)
            shares = await self._shares(topic, name)
            if shares.definition.record.incarnation != incarnation:
                raise shares.definition.missing()
        shares.here.assert_serves(segments or ())
        return shares.here

    async def take(self, topic: str, name: str, incarnation: int, wanted: TakeRequest) -> TakeAnswer:
        """Take messages for the subscription's home. Raises as `share`, and STORE_UNAVAILABLE for a broker that is not
        the home."""
        share = await self.share(topic, name, wanted.segments, incarnation)
        if not share.knows_home(wanted.home):
            await self._assert_home(topic, wanted.home)
        return await share.take(wanted)

    async def _assert_home(self, topic: str, home: Home) -> None:
        """Check that this broker is the home. The layout is read from the store: the first segment may have been
        removed."""
        first = (await self._broker.topics.get(topic)).topic.home
        owner = await self._broker.store.get(paths.segment_owner(first))
        generation = OwnerRecord.decode(owner.value).generation if owner is not None else None
        if home != (number_of_segment(first), generation):
            raise errors.StoreUnavailable(
                f"the broker that asks for messages of topic {topic} is not the home of its subscriptions now",
                action="Try again in a moment; nothing happened.",
                topic=topic,
            )

    async def drop_share(self, topic: str, name: str) -> None:
        """Delete the records of dropped incarnations on segments that are served here. Raises NOT_FOUND if the
        subscription never existed."""
        await self._drop_here(await self._definitions.get_or_tombstone(topic, name))

    async def _drop_here(self, definition: Definition) -> list[errors.MetatxnError]:
        """Delete records. Returns the errors of segments that are not here."""
        topic, name = definition.topic, definition.name
        known = self._at_home.get((topic, name))
        if known is not None and known.definition.record.incarnation <= definition.last_dropped:
            self._at_home.pop((topic, name)).close(definition.missing() if definition.record.deleted else None)
        elsewhere = []
        self._broker.forget_topic(topic)  # it may have been created again, with other segments
        for segment_id in (await self._broker.topic(topic)).segments:
            try:
                segment = await self._broker.segment(segment_id)
            except errors.MetatxnError as error:
                elsewhere.append(error)
                continue
            await subscriptions_of(segment).drop(definition)
        return elsewhere

    # -- dead letters ------------------------------------------------------------------------------------------

    async def _publish(self, topic: str, messages: Sequence[Message], txn_id: TxnId) -> object:
        """Publish as the broker itself: the creator of the subscription had the right to produce to the topic. It is
        all that is published in this transaction, so a request that arrives twice is recognized by its sequence."""
        options = PublishOptions(txn_id, DEAD_LETTERS, 1, authorization=self._broker.authorization)
        return await self._messages.publish(topic, messages, options)
