"""Subscriptions and their cursors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from metastore.keys import unescape
from metastore.txn import paths
from metastore.txn.laws.law import PLACE, Problems, View, decoded, parsed_key, parsed_number
from metastore.txn.laws.remedies import DELETE, RESTORE
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.subscriptions import AckedBucket, DeliveryCountsRecord, MarkDelete, SubscriptionRecord
from metastore.types import Record


def subscription_law(record: Record, view: View) -> Problems:
    def parse() -> tuple[str, str]:
        topic, name = record.key.removeprefix(paths.SUBSCRIPTIONS).split("/")
        return unescape(topic), unescape(name)

    topic, _ = parsed_key(record.key, parse, lambda parts: paths.subscription(*parts))
    found = decoded(record, SubscriptionRecord.decode)
    if found.incarnation < 1:
        yield f"the incarnation {found.incarnation} is not valid: incarnations begin with 1", RESTORE
    if not found.deleted and view.get(paths.topic(topic)) is None:
        yield f"the subscription is on topic {topic}, which does not exist", RESTORE
    for segment, place in (found.starts or {}).items():
        if not PLACE.fullmatch(place):
            yield f"it begins on {segment} at {place!r}, which is not a place", RESTORE
    for ranges in (found.acked or {}).values():
        yield from _places_law([place for each in ranges for place in each])


def cursor_law(record: Record, view: View) -> Problems:
    """The law of `…/<incarnation>/mark-delete`, `…/<incarnation>/deliveries` and
    `…/<incarnation>/acked/<ledger>:<entry>:<index>`."""
    parts = record.key.removeprefix(paths.CURSORS).split("/")

    def parse() -> tuple[str, str, int, str, list[int]]:
        segment, subscription, incarnation, kind, *bucket = parts
        if (kind, len(bucket)) not in (("mark-delete", 0), ("deliveries", 0), ("acked", 1)):
            raise ValueError(f"{kind!r} is not a kind of cursor record")
        start = [parsed_number(part) for part in bucket[0].split(":")] if bucket else []
        return unescape(segment), unescape(subscription), parsed_number(incarnation), kind, start

    def build(found: tuple[str, str, int, str, list[int]]) -> str:
        segment, subscription, incarnation, kind, start = found
        if kind == "acked":
            ledger, entry, index = start
            return paths.cursor_bucket(segment, subscription, incarnation, (ledger, entry, index))
        build_key = paths.cursor_mark if kind == "mark-delete" else paths.delivery_counts
        return build_key(segment, subscription, incarnation)

    segment_id, name, incarnation, kind, _ = parsed_key(record.key, parse, build)
    if kind == "deliveries":
        yield from _counts_law(decoded(record, DeliveryCountsRecord.decode))
    elif kind == "mark-delete":
        yield from _places_law([decoded(record, MarkDelete.decode).before])
    else:
        yield from _places_law([place for found in decoded(record, AckedBucket.decode).ranges for place in found])
    segment = view.decode(SegmentRecord, paths.segment(segment_id))
    if segment is None:
        yield f"the cursor is on segment {segment_id}, which does not exist", DELETE
    else:
        yield from of_subscription("cursor", segment.topic, name, incarnation, view)


def _places_law(places: Sequence[str], *, may_touch: bool = False) -> Problems:
    matches = [PLACE.fullmatch(place) for place in places]
    numbers = [tuple(map(int, match.groups())) for match in matches if match]
    if len(numbers) < len(places):
        yield f"a place is not ledger:entry:index: {places}", RESTORE
    elif may_touch and any(later < earlier for earlier, later in pairwise(numbers)):
        yield "the ranges overlap, or are not in order", RESTORE
    elif not may_touch and any(later <= earlier for earlier, later in pairwise(numbers)):
        yield "the acknowledged ranges overlap, touch, or are not in order", RESTORE


def _counts_law(found: DeliveryCountsRecord) -> Problems:
    yield from _places_law([found.through])
    yield from _places_law([place for counted in found.counts for place in counted[:2]], may_touch=True)
    for start, end, times in found.counts:
        if times < 1 or start == end:
            yield f"the range from {start} to {end} has no message, or none that was delivered: {times}", RESTORE


def of_subscription(what: str, topic: str, name: str, incarnation: int, view: View) -> Problems:
    """The remains of an earlier incarnation are about to be deleted; nothing can belong to a later one."""
    found = view.decode(SubscriptionRecord, paths.subscription(topic, name))
    if found is None or found.incarnation < incarnation:
        known = f"at incarnation {found.incarnation}" if found else "absent"
        yield f"the {what} belongs to incarnation {incarnation} of subscription {name}, which is {known}", RESTORE
