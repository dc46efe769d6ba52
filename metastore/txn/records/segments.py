"""The records of segments: their place and ledgers, their owners, and the sequences by which they recognize retries."""

from __future__ import annotations

from typing import Literal

from metastore.txn.records.json_record import JsonRecord
from metatxn.wire.position import Position

DedupRun = tuple[int, int, int, int, int, tuple[tuple[int, int], ...] | None]


class LedgerRecord(JsonRecord):
    """One ledger of a segment. `entries` is its final length, which is known once it is sealed; `storage` is the only
    storage that has it.

    `hidden` is the generation of its index of hidden entries, 0 if nothing is hidden in it. Without it the outcomes say
    what is hidden. `bytes` is the size of its frames, and no message in it was published after `last_ms`. Both are
    measured once a policy asks for them, unless they are known when it is sealed.

    `form` is the form of it that counts (generation and number), if that is not the ledger as it was sealed; `former`
    tells that the bytes of an earlier form may still be there. `hidden_bytes` is the size of the hidden entries in the
    form that counts.

    `first_offset` is the offset of its first message, in a segment of a topic with the format `kafka`. It is known once
    the ledger is sealed. No record in it has a later timestamp than `latest_record_ms`; where that is missing, the
    records say it.
    """

    id: int
    storage: str
    entries: int | None = None
    hidden: int | None = None
    bytes: int | None = None
    last_ms: int | None = None
    hidden_bytes: int | None = None
    form: tuple[int, int] | None = None
    former: bool | None = None
    first_offset: int | None = None
    latest_record_ms: int | None = None

    @property
    def last(self) -> Position | None:
        """The position of its last entry, or the one before the first entry if it has none; None while its length is
        not known."""
        return Position(self.id, self.entries - 1) if self.entries is not None else None


class DedupSnapshot(JsonRecord):
    """A complete snapshot of a segment's deduplication table: the chunks `/segment-state/<segment>/dedup/<name>/<n>`.

    It covers the ledgers up to and including `through`, so they need not be read for it again.
    """

    name: str
    chunks: int
    through: int


class Compaction(JsonRecord):
    """What compaction has left out of the ledgers of a segment (DESIGN §5.19).

    Everything up to `through` was compacted. Of what was decided up to `revision`, something may be left out because it
    was replaced by then: a snapshot of an earlier revision can no longer be read.
    """

    through: str
    revision: int


class MergeClaim(JsonRecord):
    """Two neighbours are being merged: both are sealed first, and then `child` takes over from both (DESIGN §5.14)."""

    other: str
    child: str
    claimed_ms: int


class SegmentRecord(JsonRecord):
    """`/segment/<id>`: its place in the topic, and its ledgers in order.

    Only the last ledger may be unsealed, or the last two while the segment continues from one to the other. `planned`
    is the number of a ledger that may have been created and is empty: the number is in the record before it is used
    anywhere else, so each number is used once and no ledger is left behind.

    Entries below `first_position` are trimmed; `trimmed` are ledgers with only such entries, or with none that is left,
    until their bytes are deleted. The record of a deleted segment remains until its storage has deleted the ledgers.

    `parents` never changes. Those that were removed from the topic are in `removed_parents`, each with the position of
    its last entry.

    `next_offset` is the offset behind the ledgers that are recorded as sealed, and so the first one of the ledger that
    follows. Only a segment of a topic with the format `kafka` has it (DESIGN §5.20).

    `created_ms` and `sealed_ms` say when, by the clock of the broker that did it. They are only shown, and missing
    where a release before this one did it.
    """

    topic: str
    range: tuple[int, int]
    storage: str
    state: Literal["active", "sealed", "deleted"] = "active"
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    ledgers: tuple[LedgerRecord, ...] = ()
    first_position: str = "0:-1"
    trimmed: tuple[LedgerRecord, ...] = ()
    planned: int | None = None
    dedup: DedupSnapshot | None = None
    merge: MergeClaim | None = None
    compaction: Compaction | None = None
    removed_parents: dict[str, str] | None = None
    next_offset: int | None = None
    created_ms: int | None = None
    sealed_ms: int | None = None

    @property
    def existing_parents(self) -> frozenset[str]:
        """The parents that were not removed from the topic."""
        return frozenset(self.parents) - (self.removed_parents or {}).keys()

    @property
    def is_bare(self) -> bool:
        """Whether nothing can be read and nothing will be: it is sealed, and every entry is trimmed."""
        if self.state != "sealed":
            return False
        up_to = self.trimmed_up_to
        return all(
            each.entries == 0 or (each.last is not None and up_to is not None and each.last <= up_to)
            for each in self.ledgers
        )

    @property
    def newest_ledger(self) -> int:
        """The highest number that a ledger of this segment has, or may have; 0 if there was none."""
        numbers = [ledger.id for ledger in (*self.ledgers, *self.trimmed)]
        return max([*numbers, self.planned or 0])

    @property
    def trimmed_up_to(self) -> Position | None:
        """The last entry that must no longer be read."""
        first = Position.parse(self.first_position)
        return None if first.entry < 0 else first.before


class OwnerRecord(JsonRecord):
    """`/segment-owner/<id>`: written once per generation; every apply of the owner checks it (DESIGN §5.2).

    Without a `broker` it has no owner: the last one gave it up. Of a segment that was removed, or deleted with its
    topic, a tombstone remains, at a generation that no broker has, until nothing else is left of it.

    `listeners` are the other addresses of the broker, by the names of the listeners that clients use.
    """

    broker: str
    url: str
    generation: int
    deleted: bool | None = None
    listeners: dict[str, str] | None = None


class DedupRow(JsonRecord):
    """Sequences of one scope, for entries in one segment: `segment`, if they were inherited from it.

    A run is `[sequence, length, messages, ledger, entry, ranges?]`: `length` sequences from `sequence` on, in
    consecutive entries from `ledger:entry` on, with this number of messages each; these are the messages that hash into
    `ranges` (`[[lo, hi], …]`), unless that is the segment's whole range.
    """

    txn_id: str | None = None
    writer: str | None = None
    producer: str | None = None
    segment: str | None = None
    runs: tuple[DedupRun, ...]


class DedupChunk(JsonRecord):
    """`/segment-state/<segment>/dedup/<name>/<chunk>`: a part of a segment's deduplication table."""

    rows: tuple[DedupRow, ...]
