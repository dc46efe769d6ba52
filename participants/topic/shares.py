"""The shares of a subscription: which brokers serve its segments, if any."""

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
    """The shares as they were found at one time. `missing` are segments that are not served now, with the reason."""

    definition: Definition
    parts: Mapping[str, SegmentSubscription]
    elsewhere: Sequence[RemoteShare]
    missing: Mapping[str, errors.MetatxnError]

    @property
    def here(self) -> LocalShare:
        return LocalShare(self.parts)

    @property
    def all(self) -> list[LocalShare | RemoteShare]:
        """The shares that have any segments, this broker's first."""
        return [*([self.here] if self.parts else []), *self.elsewhere]

    def knows(self, segments: Iterable[str]) -> bool:
        """Whether all of these segments belong to the topic, as far as is known here."""
        return {*self.missing, *(each for share in self.all for each in share.segments)}.issuperset(segments)

    def having(self, segments: Iterable[str], named: str) -> dict[LocalShare | RemoteShare, list[str]]:
        """The shares of these segments, with the segments of each.

        Raises INVALID_ARGUMENT for the field `named` if one is not a segment of this topic, and the error of a missing
        one.
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
        """Raises the error of a missing segment."""
        for error in self.missing.values():
            raise error


def ids_within(ids: Iterable[MessageId], segments: Iterable[str]) -> list[MessageId]:
    """The ids of messages in these segments."""
    wanted = frozenset(segments)
    return [each for each in ids if each.segment in wanted]


async def shares_of(
    broker: Broker, definition: Definition, dead_letters: DeadLetters, authorization: str | None = None
) -> SubscriptionShares:
    """Find the shares. Raises NOT_FOUND if the topic or the subscription is gone, and the store's errors."""

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
    remote = [
        RemoteShare(broker.peer(url, authorization), definition, found, broker.version)
        for url, found in elsewhere.items()
    ]
    return SubscriptionShares(definition, parts, remote, missing)
