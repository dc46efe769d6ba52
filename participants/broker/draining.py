"""What a drain of a broker means to its clients: how far it is, where new topics go, and which broker to ask."""

from __future__ import annotations

import heapq

from metastore.keys import prefix_end, unescape
from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord
from metatxn.wire import errors
from metatxn.wire.listeners import address_for
from metatxn.wire.models import BrokerInfo, BrokerSegment, BrokerSegmentPage
from metatxn.wire.names import page_token, topic_of_segment
from participants.broker.broker import Broker
from participants.broker.placement import wanted
from participants.segment.segment import Segment


def broker_info(broker: Broker, listener: str | None = None) -> BrokerInfo:
    draining, segments = broker.announcement.draining, len(broker.kept)
    return BrokerInfo(
        id=broker.id,
        url=address_for(listener, broker.url, broker.listeners),
        storage=broker.storage.storage_id,
        shared=not broker.storage.exclusive,
        state="serving" if not draining else "draining" if segments else "drained",
        segments=segments,
        waiting_for=_lacks(broker) if draining and segments else None,
    )


def segments_page(broker: Broker, after: str, limit: int) -> BrokerSegmentPage:
    """The segments whose names are greater than `after`, in their order."""
    names = heapq.nsmallest(limit + 1, (name for name in broker.kept if name > after))
    items = [_segment(name, broker.serving(name), broker.why_not(name)) for name in names[:limit]]
    return BrokerSegmentPage(items=items, next_page_token=page_token(names[limit - 1]) if len(names) > limit else None)


def _segment(name: str, segment: Segment | None, why: str) -> BrokerSegment:
    topic = topic_of_segment(name)
    if segment is None:
        return BrokerSegment(segment=name, topic=topic, waiting_for=why)
    ledgers = segment.ledgers
    return BrokerSegment(
        segment=name, topic=topic, state=segment.record.state, entries=ledgers.entries, size_bytes=ledgers.size_bytes
    )


def _lacks(broker: Broker) -> str | None:
    """Why the broker's segments cannot go, if that is so."""
    if broker.storage.exclusive:
        return "its segments are in local files and stay; it takes no new topics"
    if not broker.can_leave:
        return f"no other broker that is not draining has storage {broker.storage.storage_id} open"
    return None


async def assert_asked(broker: Broker, broker_id: str) -> None:
    """Send the caller elsewhere: raises NOT_OWNER with the broker of this id, or NOT_FOUND if there is none."""
    if broker_id == broker.id:
        return
    known = await _announced(broker)
    if broker_id not in known:
        raise errors.NotFound(
            f"no broker with the id {broker_id!r} is running",
            action="See `metatxn broker list`.",
            broker=broker_id,
        )
    url, listeners = known[broker_id].url, known[broker_id].listeners
    raise errors.NotOwner(f"broker {broker_id} is at {url}", broker=broker_id, owner_url=url).reached_at(listeners)


async def assert_takes_topics(broker: Broker, topic: str) -> None:
    """While this broker is being drained and could never give the segments of a new topic away, raises NOT_OWNER with
    another broker, or STORE_UNAVAILABLE if there is none."""
    if not (broker.announcement.draining and broker.storage.exclusive):
        return
    others = {key: record for key, record in (await _announced(broker)).items() if not record.draining}
    if name := wanted(topic, others):
        url, listeners = others[name].url, others[name].listeners
        refusal = errors.NotOwner(f"this broker is being drained; {url} takes new topics", owner_url=url)
        raise refusal.reached_at(listeners)
    raise errors.StoreUnavailable(
        "this broker is being drained and takes no new topics, and there is no other broker",
        action=f"Start another broker, or end the drain: metatxn broker undrain {broker.id}",
        broker=broker.id,
    )


async def _announced(broker: Broker) -> dict[str, BrokerRecord]:
    found = await broker.store.range(paths.BROKERS, prefix_end(paths.BROKERS))
    return {unescape(each.key.removeprefix(paths.BROKERS)): BrokerRecord.decode(each.value) for each in found.records}
