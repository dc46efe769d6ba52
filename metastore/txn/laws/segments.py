"""Topics and segments, their owners, and the producers' sequences that segments remember."""

from __future__ import annotations

from itertools import pairwise

from metastore.keys import unescape
from metastore.txn import paths
from metastore.txn.laws.law import POSITION, Problems, View, decoded, named, parsed_key, parsed_number
from metastore.txn.laws.operations import outcome_law
from metastore.txn.laws.remedies import DELETE, RESTORE
from metastore.txn.records.segments import OwnerRecord, SegmentRecord
from metastore.txn.records.topics import ExclusiveProducerRecord, PulsarSchemaRecord, ReadHoldRecord, TopicRecord
from metastore.txn.records.transactions import GcHorizon
from metastore.types import Record
from metatxn.wire.names import number_of_segment


def topic_law(record: Record, view: View) -> Problems:
    name = named(record.key, paths.topic)
    topic = decoded(record, TopicRecord.decode)
    if topic.name != name:
        yield f"the topic calls itself {topic.name!r}", RESTORE
    if topic.next_segment < len(topic.segments) or len(set(topic.segments)) < len(topic.segments):
        problem = f"there are {len(topic.segments)} segments, but the next one has number {topic.next_segment}"
        yield f"{problem}: an id is repeated or would be reused", RESTORE
    first = topic.first_segment
    if first is not None and any(number_of_segment(each) < first for each in topic.segments):
        yield f"a segment has a lower number than the first one that the topic had, {first}", RESTORE
    active = []
    for segment_id in topic.segments:
        segment = view.decode(SegmentRecord, paths.segment(segment_id))
        if segment is None:
            if not topic.deleted:
                yield f"the topic's segment {segment_id} does not exist", RESTORE
        elif segment.state == "active":
            active.append((segment.range, segment_id))
    for (lower, one), (upper, other) in pairwise(sorted(active)):
        if upper[0] <= lower[1]:
            yield f"the hash ranges of the active segments {one} and {other} overlap", RESTORE


def exclusive_producer_law(record: Record, view: View) -> Problems:
    name = named(record.key, paths.exclusive_producer)
    producer = decoded(record, ExclusiveProducerRecord.decode)
    topic = view.decode(TopicRecord, paths.topic(name))
    if topic is None:
        yield f"the topic {name} has an exclusive producer but does not exist", RESTORE
    elif topic.deleted and producer.held:
        yield f"the topic {name} is deleted but still has an exclusive producer", RESTORE
    if producer.epoch < 1:
        yield f"the epoch {producer.epoch} is not valid: epochs begin with 1", RESTORE
    if producer.held and producer.until_ms is None:
        yield "the topic is held without a time until which it is", RESTORE


def read_hold_law(record: Record, view: View) -> Problems:
    name, _ = parsed_key(record.key, lambda: paths.parse_read_hold(record.key), lambda parts: paths.read_hold(*parts))
    hold = decoded(record, ReadHoldRecord.decode)
    if view.get(paths.topic(name)) is None:
        yield f"the topic {name} has a read hold but does not exist", DELETE
    horizon = view.decode(GcHorizon, paths.GC_HORIZON)
    if horizon is None or horizon.revision > hold.revision:
        reached = horizon.revision if horizon is not None else "missing"
        yield f"revision {hold.revision} is held, but the horizon of collected decisions is {reached}", DELETE


def pulsar_schema_law(record: Record, view: View) -> Problems:
    name, version = parsed_key(
        record.key, lambda: paths.parse_pulsar_schema(record.key), lambda parts: paths.pulsar_schema(*parts)
    )
    schema = decoded(record, PulsarSchemaRecord.decode)
    decoded(record, lambda _: schema.content)
    if schema.type < 1:
        yield f"version {version} has the type {schema.type}, which no schema has", RESTORE
    topic = view.decode(TopicRecord, paths.topic(name))
    if topic is None or (topic.deleted and not topic.segments):
        problem = "does not exist" if topic is None else "is deleted"
        yield f"the topic {name} has a schema of Pulsar's clients but {problem}", DELETE
    elif topic.format != "pulsar":
        yield f"the topic {name} has a schema of Pulsar's clients, but not the format pulsar", DELETE


def segment_law(record: Record, view: View) -> Problems:
    segment_id = named(record.key, paths.segment)
    segment = decoded(record, SegmentRecord.decode)
    if segment.state == "deleted":
        return  # it waits for its storage, and its topic may have been created again
    topic = view.decode(TopicRecord, paths.topic(segment.topic))
    if topic is None or segment_id not in topic.segments:
        problem = "does not list it" if topic else "does not exist"
        yield f"the segment belongs to topic {segment.topic}, which {problem}", RESTORE
    if not 0 <= segment.range[0] <= segment.range[1]:
        yield f"the hash range {list(segment.range)} is empty", RESTORE
    yield from _ledgers(segment)
    for parent, end in (segment.removed_parents or {}).items():
        if parent not in segment.parents or not POSITION.fullmatch(end):
            yield f"{parent} is said to be removed, ending at {end!r}: one of these is not valid", RESTORE
    if not POSITION.fullmatch(segment.first_position):
        yield f"`first_position` is not a position: {segment.first_position!r}", RESTORE
    if segment.state == "sealed":
        if any(ledger.entries is None for ledger in segment.ledgers):
            yield "the segment is sealed, but one of its ledgers has no final length", RESTORE
        if segment.children and segment.merge is not None:
            yield "the segment has children but is still claimed by a merge", RESTORE
    elif segment.children:
        yield "the segment has children but is not sealed, so keys have two destinations", RESTORE
    yield from _family(segment_id, segment, view)
    yield from _snapshot_chunks(segment_id, segment, view)


def _ledgers(segment: SegmentRecord) -> Problems:
    """They are in order, with gaps where some were dropped (DESIGN §5.18)."""
    numbers = [ledger.id for ledger in segment.ledgers]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        yield f"the ledgers are not in order: {numbers}", RESTORE
    if deleted := sorted({ledger.id for ledger in segment.trimmed} & set(numbers)):
        yield f"ledgers are listed, and to be deleted: {deleted}", RESTORE
    if any(ledger.entries is None for ledger in segment.ledgers[:-2]):
        yield "a ledger before the last two is not sealed", RESTORE
    for ledger in segment.ledgers:
        indexed, hidden, size = ledger.hidden is not None, ledger.hidden_bytes, ledger.bytes
        if indexed and ledger.entries is None:
            yield f"ledger {ledger.id} has an index of what is hidden in it, but no final length", RESTORE
        if ledger.form is not None and ledger.entries is None:
            yield f"ledger {ledger.id} has another form, but no final length", RESTORE
        if hidden is not None and not ledger.hidden:
            yield f"{hidden} bytes of ledger {ledger.id} are hidden, but no index says which", RESTORE
        if hidden is not None and size is not None and hidden > size:
            yield f"{hidden} bytes of ledger {ledger.id} are hidden, but it has {size}", RESTORE


def _family(segment_id: str, segment: SegmentRecord, view: View) -> Problems:
    """Parent and child name each other, and the children cover exactly the range of their parents."""
    for parent_id in segment.parents:
        parent = view.decode(SegmentRecord, paths.segment(parent_id))
        if parent_id not in segment.existing_parents:
            if parent is not None and parent.state != "deleted":
                yield f"the segment's parent {parent_id} is said to be removed, but exists", RESTORE
        elif parent is None or segment_id not in parent.children:
            problem = "does not name it as a child" if parent else "does not exist"
            yield f"the segment's parent {parent_id} {problem}", RESTORE
        elif not _overlap(parent.range, segment.range):
            yield f"the range of the segment does not overlap that of its parent {parent_id}", RESTORE
    if segment.merge is not None:
        other = view.decode(SegmentRecord, paths.segment(segment.merge.other))
        if other is None or other.merge is None or other.merge.other != segment_id:
            yield (
                f"the segment is claimed by a merge with {segment.merge.other}, which is not part of that merge",
                RESTORE,
            )
    covered = []
    for child_id in segment.children:
        child = view.decode(SegmentRecord, paths.segment(child_id))
        if child is None or segment_id not in child.parents:
            problem = "does not name it as a parent" if child else "does not exist"
            yield f"the segment's child {child_id} {problem}", RESTORE
        else:
            covered.append(child.range)
    if len(covered) == len(segment.children) > 0 and not _cover(covered, segment.range):
        yield f"the ranges of its children {sorted(covered)} do not cover all of {list(segment.range)}", RESTORE


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _cover(parts: list[tuple[int, int]], whole: tuple[int, int]) -> bool:
    ordered = sorted(parts)
    joined = all(upper[0] == lower[1] + 1 for lower, upper in pairwise(ordered))
    return joined and ordered[0][0] <= whole[0] and whole[1] <= ordered[-1][1]


def _snapshot_chunks(segment_id: str, segment: SegmentRecord, view: View) -> Problems:
    for chunk in range(segment.dedup.chunks if segment.dedup else 0):
        assert segment.dedup is not None
        key = paths.dedup_chunk(segment_id, segment.dedup.name, chunk)
        if view.get(key) is None:
            yield f"a part of the segment's deduplication table is missing: {key}", RESTORE


def owner_law(record: Record, view: View) -> Problems:
    segment_id = named(record.key, paths.segment_owner)
    owner = decoded(record, OwnerRecord.decode)
    if owner.generation < 1:
        yield f"the generation {owner.generation} is not valid: generations begin with 1", RESTORE
    if view.get(paths.segment(segment_id)) is None and not owner.deleted:
        yield f"the segment {segment_id} has an owner but does not exist", RESTORE


def segment_state_law(record: Record, view: View) -> Problems:
    kind = record.key.removeprefix(paths.SEGMENT_STATES).split("/")[1:2]
    yield from (_dedup if kind == ["dedup"] else outcome_law)(record, view)


def _dedup(record: Record, view: View) -> Problems:
    """A snapshot that its segment does not name is being written, or about to be deleted."""

    def parse() -> tuple[str, str, int]:
        segment, _, name, chunk = record.key.removeprefix(paths.SEGMENT_STATES).split("/")
        return unescape(segment), unescape(name), parsed_number(chunk)

    segment_id, name, chunk = parsed_key(record.key, parse, lambda parts: paths.dedup_chunk(*parts))
    segment = view.decode(SegmentRecord, paths.segment(segment_id))
    if segment is None:
        yield f"the sequences belong to segment {segment_id}, which does not exist", DELETE
    elif segment.dedup is not None and segment.dedup.name == name and chunk >= segment.dedup.chunks:
        yield f"the snapshot {name} has {segment.dedup.chunks} chunks, but this is a further one", RESTORE
