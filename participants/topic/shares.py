"""Where the segments of a subscription are: here, at other brokers, or nowhere for the moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from metatxn.wire import errors
from metatxn.wire.names import MessageId
from participants.broker.broker import Broker
from participants.subscription.dead_letters import DeadLetters
from participants.subscription.definitions import Definition
from participants.subscription.segment_subscription import SegmentSubscription
from participants.subscription.segment_subscriptions import subscriptions_of
from participants.subscription.share import LocalShare
from participants.topic.remote_share import RemoteShare


@dataclass(frozen=True, slots=True)
class SubscriptionShares:
    """One look at it. `missing` are segments that nobody serves now, and why."""

    definition: Definition
    parts: Mapping[str, SegmentSubscription]
    elsewhere: Sequence[RemoteShare]
    missing: Mapping[str, errors.MetatxnError]

    @property
    def here(self) -> LocalShare:
        return LocalShare(self.parts)

    @property
    def all(self) -> list[LocalShare | RemoteShare]:
        """Those that have any segments, this broker's first."""
        return [*([self.here] if self.parts else []), *self.elsewhere]

    def knows(self, segments: Iterable[str]) -> bool:
        """They are all of this topic, as far as was seen."""
        return {*self.missing, *(each for share in self.all for each in share.segments)}.issuperset(segments)

    def having(self, segments: Iterable[str], named: str) -> dict[LocalShare | RemoteShare, list[str]]:
        """The shares that have these, and which of them each has.

        Raises INVALID_ARGUMENT for the field `named` when one is no segment of this topic, and why one is missing.
        """
        found: defaultdict[LocalShare | RemoteShare, list[str]] = defaultdict(list)
        owners = {segment_id: share for share in self.all for segment_id in share.segments}
        for segment_id in segments:
            if segment_id in self.missing:
                raise self.missing[segment_id]
            if segment_id not in owners:
                problem = f"{named}: {segment_id} is not in topic {self.definition.topic}"
                raise errors.InvalidArgument(problem, field=named)
            found[owners[segment_id]].append(segment_id)
        return found

    def assert_complete(self) -> None:
        """Raises why a segment is missing."""
        for error in self.missing.values():
            raise error


def ids_within(ids: Iterable[MessageId], segments: Iterable[str]) -> list[MessageId]:
    """Those that lie in these segments."""
    wanted = frozenset(segments)
    return [each for each in ids if each.segment in wanted]


async def shares_of(
    broker: Broker, definition: Definition, dead_letters: DeadLetters, authorization: str | None = None
) -> SubscriptionShares:
    """Raises NOT_FOUND when the topic or the subscription is gone, and the store's errors."""

    async def once() -> SubscriptionShares:
        return await _look(broker, definition, dead_letters, authorization)

    return await broker.in_layout(definition.topic, once)


async def _look(
    broker: Broker, definition: Definition, dead_letters: DeadLetters, authorization: str | None
) -> SubscriptionShares:
    parts: dict[str, SegmentSubscription] = {}
    elsewhere: defaultdict[str, list[str]] = defaultdict(list)
    missing: dict[str, errors.MetatxnError] = {}
    for segment_id in (await broker.topic(definition.topic)).segments:
        try:
            segment = await broker.segment(segment_id)
        except errors.NotOwner as error:
            elsewhere[error.owner_url].append(segment_id)
            continue
        except errors.StoreUnavailable as error:
            missing[segment_id] = error
            continue
        part = parts[segment_id] = await subscriptions_of(segment).get(definition)
        part.on_dead = dead_letters.send
    remote = [RemoteShare(broker.peer(url, authorization), definition, found) for url, found in elsewhere.items()]
    return SubscriptionShares(definition, parts, remote, missing)
