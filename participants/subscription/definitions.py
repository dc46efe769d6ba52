"""The stored definitions of subscriptions: create, find, seek, drop. Each is one record on its topic (see
`SubscriptionRecord`).

Every write on a segment for a subscription checks this record. So one apply drops the subscription everywhere at once,
and its other records are deleted afterwards. A seek is one such apply, too: the subscription becomes its next
incarnation, which begins at other places.

Both creating and seeking write the topic's record again, as it was. Dropping messages that no subscription needs
checks the version of that record, so it cannot overlook one that has begun to need them.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from metastore.api import MetadataStore
from metastore.errors import CheckFailed
from metastore.keys import prefix_end, unescape
from metastore.txn import paths
from metastore.txn.forgetting import beginning
from metastore.txn.records.subscriptions import SubscriptionRecord
from metastore.types import AtVersion, Record
from metatxn.service.patience import Patience
from metatxn.wire import errors
from participants.subscription.places import START, Place, Span, Start

SETTINGS = (
    *("type", "initial", "dead_letter_topic", "max_redeliveries"),
    *("ack_timeout_ms", "redelivery_delay_ms", "max_redelivery_delay_ms", "isolation"),
)
"""What the creator of a subscription asked for, by the names of the fields."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One incarnation of a subscription. `check` holds until it is dropped."""

    topic: str
    name: str
    record: SubscriptionRecord
    check: AtVersion

    @property
    def last_dropped(self) -> int:
        """The last incarnation that was dropped, or 0."""
        return self.record.incarnation - (0 if self.record.deleted else 1)

    @property
    def as_dropped(self) -> Definition:
        """The same, as it is once it was dropped."""
        return replace(self, record=self.record.model_copy(update={"deleted": True}))

    @property
    def uncommitted(self) -> bool:
        """Whether its consumers see messages of transactions that are open or aborted."""
        return self.record.isolation == "read_uncommitted"

    def start_on(self, segment: str) -> Place:
        """The place where the subscription begins on a segment. On a segment that was created later this is never
        `latest`, because no other subscription covers its messages."""
        start = (self.record.starts or {}).get(segment)
        return Place.parse(start) if start is not None else START

    def acked_on(self, segment: str) -> list[Span]:
        """What counts as acknowledged on a segment from the beginning of this incarnation on, after `start_on`."""
        ranges = (self.record.acked or {}).get(segment, ())
        return [Span(Place.parse(start), Place.parse(end)) for start, end in ranges]

    def missing(self) -> errors.MetatxnError:
        return _not_found(self.topic, self.name)

    def ended(self, current: SubscriptionRecord | None) -> errors.MetatxnError:
        """The error for a request of this incarnation, which has ended, given the record as it is now. If there is a
        later incarnation, the request can be repeated with that one."""
        if current is None or current.deleted:
            return self.missing()
        return errors.StoreUnavailable(
            f"subscription {self.name} has begun again, at another position",
            action="Try again in a moment; nothing happened.",
            topic=self.topic,
            subscription=self.name,
        )


def _not_found(topic: str, name: str) -> errors.MetatxnError:
    return errors.NotFound(
        f"topic {topic} has no subscription {name}",
        action=f"Create it first: metatxn subscription create {shlex.join((topic, name))}.",
        topic=topic,
        subscription=name,
    )


def definition_of(topic: str, record: Record) -> Definition:
    """The subscription with this record."""
    name = unescape(record.key.rpartition("/")[2])
    return Definition(topic, name, SubscriptionRecord.decode(record.value), AtVersion(record.key, record.version))


class Definitions:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def of_topic(self, topic: str) -> list[Definition]:
        """All subscriptions of a topic, including dropped ones."""
        found = await self._store.scan(paths.subscriptions(topic))
        return [definition_of(topic, record) for record in found.records]

    async def page(self, topic: str, after: str | None, limit: int) -> tuple[list[Definition], bool]:
        """The subscriptions of a topic by name, after the one named `after`, including dropped ones; and whether there
        are more."""
        prefix = paths.subscriptions(topic)
        start = paths.subscription(topic, after) + "\0" if after is not None else prefix
        found = await self._store.range(start, prefix_end(prefix), limit=limit)
        return [definition_of(topic, record) for record in found.records], found.more

    async def page_of_all(self, after: tuple[str, str] | None, limit: int) -> tuple[list[Definition], bool]:
        """The subscriptions of all topics in the order of their keys, after the one with this topic and this name,
        including dropped ones; and whether there are more."""
        start = paths.subscription(*after) + "\0" if after is not None else paths.SUBSCRIPTIONS
        found = await self._store.range(start, prefix_end(paths.SUBSCRIPTIONS), limit=limit)
        return [definition_of(unescape(record.key.split("/")[2]), record) for record in found.records], found.more

    async def get(self, topic: str, name: str) -> Definition:
        """Raises NOT_FOUND."""
        found = await self.get_or_tombstone(topic, name)
        if found.record.deleted:
            raise found.missing()
        return found

    async def get_or_tombstone(self, topic: str, name: str) -> Definition:
        """The subscription, which may be dropped. Raises NOT_FOUND if it never existed."""
        record = await self._store.get(paths.subscription(topic, name))
        if record is None:
            raise _not_found(topic, name)
        return definition_of(topic, record)

    async def reason(self, ended: Definition, error: errors.NotFound) -> errors.MetatxnError:
        """Why a request fails that has found that its incarnation ended: with `error`, or, if a later incarnation
        serves, that it can be repeated with that one."""
        current = await self._store.get(ended.check.key)
        why = ended.ended(current and SubscriptionRecord.decode(current.value))
        return error if isinstance(why, errors.NotFound) else why

    async def create(
        self,
        topic: str,
        name: str,
        wanted: SubscriptionRecord,
        stored_topic: Callable[[], Awaitable[Record]],
        starts: Callable[[], Awaitable[Mapping[str, Start]]],
    ) -> Definition:
        """Create the subscription that `wanted` describes, or find the existing one if it is the same.

        `stored_topic` returns the topic's record or raises NOT_FOUND; nothing is created on a topic that has been
        deleted meanwhile. `starts` is only called if the subscription is created and begins with `latest`. Raises
        ALREADY_EXISTS if there is a different subscription of this name.
        """
        key = paths.subscription(topic, name)
        patience = Patience()
        while await patience.lasts():
            topic_record = await stored_topic()
            known = await self._store.get(key)
            before = SubscriptionRecord.decode(known.value) if known else None
            if known is not None and before is not None and not before.deleted:
                _check_same(topic, name, before, wanted)
                return definition_of(topic, known)
            found = await starts() if wanted.initial == "latest" else {}
            batch = self._store.batch().replace(topic_record, topic_record.value)
            if known is not None and before is not None:
                record = _begun(wanted, before.incarnation + 1, found)
                batch.replace(known, record.encode())
            else:
                first = await beginning(self._store)
                record = _begun(wanted, max(first.number, 1), found)
                batch.check(first.check).create(key, record.encode())
            try:
                applied = await self._store.apply(batch)
            except CheckFailed:
                continue
            return Definition(topic, name, record, AtVersion(key, applied.revision))
        raise patience.over(f"topic {topic} or its subscription {name}")

    async def seek(
        self,
        topic: str,
        name: str,
        stored_topic: Callable[[], Awaitable[Record]],
        starts: Callable[[], Awaitable[Mapping[str, Start]]],
    ) -> Definition:
        """Begin again at `starts`, on every segment at once: everything before is acknowledged, and nothing after.

        Acknowledgements that are stored before this apply are those of an earlier incarnation, so they no longer count,
        whether or not their transaction is decided; those that arrive later are refused and can be repeated. Segments
        that are missing in `starts` begin with the earliest entry. Raises NOT_FOUND.
        """
        patience = Patience()
        while await patience.lasts():
            topic_record = await stored_topic()
            known = await self._store.get(paths.subscription(topic, name))
            if known is None:
                raise _not_found(topic, name)
            found = definition_of(topic, known)
            if found.record.deleted:
                raise found.missing()
            record = _begun(found.record, found.record.incarnation + 1, await starts())
            batch = self._store.batch().replace(topic_record, topic_record.value)
            try:
                applied = await self._store.apply(batch.replace(known, record.encode()))
            except CheckFailed:
                continue
            return Definition(topic, name, record, AtVersion(known.key, applied.revision))
        raise patience.over(f"topic {topic} or its subscription {name}")

    async def drop(self, topic: str, name: str, now_ms: int) -> Definition:
        """Drop the subscription: from now on nothing of it can be stored. Returns what was dropped, now or earlier.

        Raises NOT_FOUND if it never existed, or is forgotten.
        """
        patience = Patience()
        while await patience.lasts():
            known = await self._store.get(paths.subscription(topic, name))
            if known is None:
                raise _not_found(topic, name)
            found = definition_of(topic, known)
            if found.record.deleted:
                return found
            dropped = {"deleted": True, "deleted_ms": now_ms, "starts": None, "acked": None}
            tombstone = found.record.model_copy(update=dropped)
            try:
                await self._store.apply(self._store.batch().replace(known, tombstone.encode()))
            except CheckFailed:
                continue
            return found
        raise patience.over(f"subscription {name} of topic {topic}")


def _begun(wanted: SubscriptionRecord, incarnation: int, starts: Mapping[str, Start]) -> SubscriptionRecord:
    """The record of an incarnation that begins at these places."""
    places = {segment: str(start.place) for segment, start in starts.items()}
    acked = {
        segment: tuple((str(span.start), str(span.end)) for span in start.acked)
        for segment, start in starts.items()
        if start.acked
    }
    return wanted.model_copy(update={"incarnation": incarnation, "starts": places or None, "acked": acked or None})


def _check_same(topic: str, name: str, known: SubscriptionRecord, wanted: SubscriptionRecord) -> None:
    different = [field for field in SETTINGS if getattr(known, field) != getattr(wanted, field)]
    if different:
        raise errors.AlreadyExists(
            f"topic {topic} has a subscription {name} with another {', '.join(different)}",
            action="Use it as it is, drop it first, or choose another name.",
            topic=topic,
            subscription=name,
        )
