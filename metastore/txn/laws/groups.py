"""Consumer groups of Kafka's clients, and the offsets that they have committed."""

from __future__ import annotations

from metastore.keys import unescape
from metastore.txn import paths
from metastore.txn.laws.law import Problems, View, decoded, named, parsed_key
from metastore.txn.laws.remedies import RESTORE
from metastore.txn.records.groups import CommittedOffset, GroupRecord
from metastore.types import Record


def group_law(record: Record, view: View) -> Problems:
    named(record.key, paths.group)
    if (generation := decoded(record, GroupRecord.decode).generation) < 0:
        yield f"the generation {generation} is negative", RESTORE


def group_offset_law(record: Record, view: View) -> Problems:
    """Its segment may have been deleted with its topic: ids are never reused, so it is never mistaken for another."""

    def parse() -> tuple[str, str]:
        group, segment = record.key.removeprefix(paths.GROUP_OFFSETS).split("/")
        return unescape(group), unescape(segment)

    group, _ = parsed_key(record.key, parse, lambda parts: paths.group_offset(*parts))
    if (offset := decoded(record, CommittedOffset.decode).offset) < 0:
        yield f"the offset {offset} is negative", RESTORE
    if view.get(paths.group(group)) is None:
        yield f"the offset is of group {group}, which does not exist", RESTORE
