"""The records of segments: what they are, who owns them, and whose retries they know."""

from __future__ import annotations

from typing import Literal

from metastore.txn.records.json_record import JsonRecord
from metatxn.wire.position import Position

DedupRun = tuple[int, int, int, int, int, tuple[tuple[int, int], ...] | None]


class LedgerRecord(JsonRecord):
    """One ledger of a segment. `entries` is its final length, known once it is sealed; `storage` the only storage
    that holds it."""

    id: int
    storage: str
    entries: int | None = None

    @property
    def last(self) -> Position | None:
        """Its last entry, or the place before the first one when it has none; None while its length is not known."""
        return Position(self.id, self.entries - 1) if self.entries is not None else None


class DedupSnapshot(JsonRecord):
    """A complete snapshot of a segment's dedup table: the chunks `/segment-state/<segment>/dedup/<name>/<n>`.

    What the ledgers up to and including `through` tell is in it, so they need not be read for that again.
    """

    name: str
    chunks: int
    through: int


class MergeClaim(JsonRecord):
    """Two neighbours are being merged: each is to be sealed, then `child` takes over from both (DESIGN §5.14)."""

    other: str
    child: str
    claimed_ms: int


class SegmentRecord(JsonRecord):
    """`/segment/<id>`: its place in the topic, and its ledgers in order.

    Only the last ledger may be unsealed, or the last two while the segment goes on from one to the other. `planned` is
    the number of a ledger that may have been created and holds nothing: it is in the record before it is anywhere else,
    so a number is used once and no ledger is left behind.

    Entries below `first_position` are trimmed; `trimmed` are ledgers that held only such, until their bytes are gone.
    Of a deleted segment the record stays until its storage has deleted the ledgers.
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

    @property
    def newest_ledger(self) -> int:
        """The highest number that a ledger of this segment bears, or may bear; 0 when there was none."""
        numbers = [ledger.id for ledger in (*self.ledgers, *self.trimmed)]
        return max([*numbers, self.planned or 0])

    @property
    def trimmed_up_to(self) -> Position | None:
        """The last entry that must not be read any more."""
        first = Position.parse(self.first_position)
        return None if first.entry < 0 else first.before


class OwnerRecord(JsonRecord):
    """`/segment-owner/<id>`: written once per generation; every apply of the owner checks it (DESIGN §5.2).

    Without a `broker` nobody owns it: the last owner gave it up. Of a deleted segment a tombstone stays, at a
    generation that nobody has.
    """

    broker: str
    url: str
    generation: int
    deleted: bool | None = None


class DedupRow(JsonRecord):
    """Sequences of one scope, of entries in one segment: `segment`, when they were inherited from it.

    A run is `[sequence, length, messages, ledger, entry, ranges?]`: `length` sequences from `sequence` on, in entries
    one after another from `ledger:entry` on, of so many messages each; of those that hash into `ranges`
    (`[[lo, hi], …]`), unless that is the segment's whole range.
    """

    txn_id: str | None = None
    writer: str | None = None
    producer: str | None = None
    segment: str | None = None
    runs: tuple[DedupRun, ...]


class DedupChunk(JsonRecord):
    """`/segment-state/<segment>/dedup/<name>/<chunk>`: a part of a segment's dedup table."""

    rows: tuple[DedupRow, ...]
