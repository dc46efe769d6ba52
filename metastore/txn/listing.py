"""Slices of the transaction records in the order of one key range, for lists that are paged and never loaded whole.

Every function takes `after`, the position of the last row seen ("" to begin), and returns rows with their positions in
order; fewer than `limit` rows mean that the range has ended. A position is the part of the key after its prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

from metastore.api import MetadataStore
from metastore.keys import number, prefix_end
from metastore.txn import paths
from metastore.txn.records.operations import decode_op
from metastore.txn.states import TxnState
from metatxn.wire.ids import TxnId

_OPERATIONS_PER_JUMP = 20
WINDOWS_MS = (100, 1_000, 10_000, 600_000)
_FEWEST_IDS = 1_000
_FAR_IDS = 64 * _FEWEST_IDS


@dataclass(frozen=True, slots=True)
class Row:
    """One transaction in a range; `position` is where the next slice continues."""

    txn_id: TxnId
    position: str

    @property
    def at_ms(self) -> int:
        """The time of a row in an index by time: the deadline in force, or the time of the decision, when it was
        read."""
        return int(self.position.partition("/")[0])


async def open_by_deadline(
    store: MetadataStore, *, after: str = "", until_ms: int | None = None, limit: int
) -> list[Row]:
    """Open transactions, the oldest deadline first; with `until_ms` only deadlines at or before it."""
    end = None if until_ms is None else paths.DEADLINE_INDEX + number(until_ms + 1)
    return await _rows(store, paths.DEADLINE_INDEX, after, limit, end)


async def decided_by_time(
    store: MetadataStore, state: TxnState, *, after: str = "", until_ms: int | None = None, limit: int
) -> list[Row]:
    """Decided transactions in one final state, the oldest decision first; with `until_ms` only those at or before."""
    root = f"{paths.FINAL_STATE_INDEX}{state}/"
    end = None if until_ms is None else root + number(until_ms + 1)
    return await _rows(store, root, after, limit, end)


async def by_id(store: MetadataStore, *, after: str = "", limit: int) -> list[Row]:
    """Every transaction, in the order of the ids."""
    return await _rows(store, paths.HEADERS, after, limit)


async def latest_first(
    store: MetadataStore,
    state: TxnState,
    *,
    now_ms: int,
    latest_open_ms: int | None = None,
    after: str = "",
    limit: int,
) -> list[Row]:
    """Transactions in one state, the latest time first: of open ones the deadline, of others the decision.

    `now_ms` only saves work, and so does `latest_open_ms`, a deadline at or behind which there may be enough open ones.
    """
    if state is TxnState.OPEN:
        return await _rows_before(store, paths.DEADLINE_INDEX, after, limit, latest_open_ms)
    return await _rows_before(store, f"{paths.FINAL_STATE_INDEX}{state}/", after, limit, now_ms)


async def next_ids(store: MetadataStore, *, above: int = -1, limit: int) -> list[TxnId]:
    """For each coordinator id above `above` the lowest id that it has not leased yet, in their order."""
    found = await store.range(paths.id_sequence(above + 1), prefix_end(paths.ID_SEQUENCES), limit=limit)
    return [paths.next_id(record.key, record.value) for record in found.records]


async def before_id(store: MetadataStore, txn_id: TxnId, *, limit: int) -> list[TxnId]:
    """The transactions of the same coordinator id whose ids are lower, the highest one first; fewer than `limit` are
    all.

    Between two ids there may be thousands that are not in use, and etcd sorts all rows that it reads backwards, and
    counts all of a range. So this looks at more and more ids; and where none of the next ones is in use, as at the end
    of a block, it first finds one that is. If that takes it far, it looks whether there are only a few transactions.
    """
    above, width = txn_id, _FEWEST_IDS
    while True:
        start = paths.header(TxnId(above.coordinator, max(0, above.sequence - width)))
        found = (await store.range(start, paths.header(above), limit=limit, keys_only=True, reverse=True)).records
        if len(found) == limit or width >= above.sequence:
            break
        is_gap = not found and width == _FEWEST_IDS
        if is_gap and (nearer := await _above_next(store, above, _FAR_IDS)):
            above = nearer
            continue
        if is_gap or width == _FAR_IDS:
            first = paths.header(TxnId(above.coordinator, 0))
            few = await store.range(first, paths.header(above), limit=limit, keys_only=True)
            if not few.more:
                found = few.records[::-1]
                break
        if is_gap and (nearer := await _above_next(store, above, above.sequence)):
            above = nearer
            continue
        width *= 4
    return [paths.txn_id_of_header(record.key) for record in found]


async def _above_next(store: MetadataStore, txn_id: TxnId, at_most: int) -> TxnId | None:
    """The id with the next lower one that is in use at most `_FEWEST_IDS` below it; None if none of that many ids below
    `txn_id` is in use. None of the first `_FEWEST_IDS` is."""

    async def is_unused(width: int) -> bool:
        start = paths.header(TxnId(txn_id.coordinator, max(0, txn_id.sequence - width)))
        return not (await store.range(start, paths.header(txn_id), limit=1, keys_only=True)).records

    unused, enough = _FEWEST_IDS, 4 * _FEWEST_IDS
    while await is_unused(enough):
        if enough >= at_most:
            return None
        unused, enough = enough, 4 * enough
    while enough - unused > _FEWEST_IDS:
        middle = (unused + enough) // 2
        if await is_unused(middle):
            unused = middle
        else:
            enough = middle
    return TxnId(txn_id.coordinator, txn_id.sequence - unused)


async def writing_to_segment(store: MetadataStore, segment: str, *, after: str = "", limit: int) -> list[Row]:
    """Transactions that have write operations recorded on a segment, each once, in the order of the ids.

    One transaction can have very many entries, so the range jumps over the rest of the last one it has seen.
    """
    root = f"/idx/writes-by-segment/{paths.writes_by_segment(segment)}"
    rows: dict[str, Row] = {}
    while len(rows) < limit:
        start = prefix_end(f"{root}{after}/") if after else root
        found = await store.range(start, prefix_end(root), limit=limit, keys_only=True)
        for record in found.records:
            after = record.key.removeprefix(root).partition("/")[0]
            rows[after] = Row(TxnId.parse(after), after)
        if not found.more:
            break
    return list(rows.values())[:limit]


@dataclass(frozen=True, slots=True)
class Participant:
    """A segment, or a subscription or consumer group on it, that has operation records of a transaction. `after` is
    that of the first write: where the transaction may hold back the segment's readers."""

    segment: str
    subscription: str | None
    after: str | None
    group: str | None = None


async def participants(store: MetadataStore, txn_id: TxnId, *, limit: int) -> list[Participant]:
    """Up to `limit` participants, each once, however many operations it has: as above, the range jumps over the
    others."""
    root = paths.ops_of_transaction(txn_id)
    found: dict[str, Participant] = {}
    start = root
    while len(found) < limit:
        operations = await store.range(start, prefix_end(root), limit=_OPERATIONS_PER_JUMP)
        for record in operations.records:
            segment, subscription, prefix = paths.participant_of_op(record.key)
            start = prefix_end(prefix)
            if prefix not in found:
                op = decode_op(record.value)
                after, group = op.after if op.kind == "write" else None, op.group if op.kind == "offset" else None
                found[prefix] = Participant(segment, subscription, after, group)
        if not operations.more:
            break
    return list(found.values())[:limit]


async def _rows_before(store: MetadataStore, root: str, before: str, limit: int, latest_ms: int | None) -> list[Row]:
    """The last rows, backwards. etcd sorts all rows that such a read covers: 100,000 of them take 160 ms. So what is
    behind the last seconds before `before`, or before `latest_ms`, is looked at by itself, as long as it is enough."""
    end = f"{root}{before}" if before else prefix_end(root)
    tops = [latest_ms] if latest_ms is not None else []
    tops += [int(before.partition("/")[0])] if before else []
    starts = [root + number(max(0, min(tops) - window_ms)) for window_ms in WINDOWS_MS] if tops else []
    for start in (*starts, root):
        found = await store.range(start, end, limit=limit, keys_only=True, reverse=True)
        if len(found.records) == limit:
            break
    positions = [record.key.removeprefix(root) for record in found.records]
    return [Row(TxnId.parse(position.rpartition("/")[2]), position) for position in positions]


async def _rows(store: MetadataStore, root: str, after: str, limit: int, end: str | None = None) -> list[Row]:
    start = f"{root}{after}\0" if after else root
    found = await store.range(start, end or prefix_end(root), limit=limit, keys_only=True)
    positions = [record.key.removeprefix(root) for record in found.records]
    return [Row(TxnId.parse(position.rpartition("/")[2]), position) for position in positions]
