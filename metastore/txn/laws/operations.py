"""Operations with their index entries, and the outcomes that remain of them on segments."""

from __future__ import annotations

from metastore.keys import escape, unescape
from metastore.txn import paths
from metastore.txn.laws.law import POSITION, Law, MalformedKeyError, Problems, View, decoded, parsed_key, parsed_number
from metastore.txn.laws.remedies import DELETE, RESTORE
from metastore.txn.laws.subscriptions import of_subscription
from metastore.txn.records.operations import AckOp, OffsetOp, Outcome, WriteOp, decode_op
from metastore.txn.records.segments import OwnerRecord, SegmentRecord
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import INDEXES
from metastore.types import Record
from metatxn.wire.ids import TxnId


def op_law(record: Record, view: View) -> Problems:
    text, _, seq = record.key.removeprefix(paths.OPS).partition("/")
    txn_id = parsed_key(f"{paths.OPS}{text}", lambda: TxnId.parse(text), lambda parsed: f"{paths.OPS}{parsed}")
    op = decoded(record, decode_op)
    yield from _op_key(record.key, seq, op, view)
    if isinstance(op, WriteOp):
        if not POSITION.fullmatch(op.after):
            yield f"`after` is not a position: {op.after!r}", RESTORE
        if op.count < 0:
            yield f"the count {op.count} is negative", RESTORE
    elif isinstance(op, AckOp):
        yield from _ack(op, view)
    else:
        yield from _offset(op, view)
    for index in INDEXES:
        if record.key.startswith(index.prefix):
            for entry in sorted(index.keys(record.key, record.value)):
                if view.get(entry) is None:
                    yield f"the operation is missing in its index: {entry}", f"Put {entry} with an empty value."
    if view.get(paths.header(txn_id)) is None:
        problem = f"the header of transaction {txn_id} is gone, but its operation is left"
        yield problem, "It counts as committed. Restart the segment's broker; its recovery deletes what is left."
    if not isinstance(op, OffsetOp) and view.get(paths.segment(op.segment)) is None:
        yield f"the operation is on segment {op.segment}, which does not exist", RESTORE


def _ack(op: AckOp, view: View) -> Problems:
    if not POSITION.fullmatch(op.position):
        yield f"`position` is not a position: {op.position!r}", RESTORE
    if op.batch_index is not None and not 0 <= op.batch_index < (op.batch_size or 0):
        yield f"the entry has no message {op.batch_index}: it contains {op.batch_size}", RESTORE
    if op.batch_last is not None and not (op.batch_index or 0) < op.batch_last < (op.batch_size or 0):
        yield f"the last message {op.batch_last} is not behind the first one, or not in the entry", RESTORE
    segment = view.decode(SegmentRecord, paths.segment(op.segment))
    if segment is not None:
        yield from of_subscription("acknowledgement", segment.topic, op.subscription, op.incarnation, view)


def _offset(op: OffsetOp, view: View) -> Problems:
    """Its segment may have been deleted with its topic."""
    if op.offset < 0:
        yield f"the offset {op.offset} is negative", RESTORE
    if view.get(paths.group(op.group)) is None:
        yield f"the offset is of group {op.group}, which does not exist", RESTORE


def _op_key(key: str, seq: str, op: WriteOp | AckOp | OffsetOp, view: View) -> Problems:
    """`<segment>:w:<generation>:<counter>`, `<segment>:a:<subscription>:<generation>:<counter>` or
    `<segment>:o:<group>`."""
    if isinstance(op, OffsetOp):
        if seq != (expected := f"{escape(op.segment)}:o:{escape(op.group)}"):
            yield f"the key says {seq} but the value {expected}", RESTORE
        return
    where = [escape(op.segment), "w"] if isinstance(op, WriteOp) else [escape(op.segment), "a", escape(op.subscription)]
    parts = seq.split(":")
    if len(parts) != len(where) + 2:
        raise MalformedKeyError(f"the operation's number {seq!r} has {len(parts)} parts instead of {len(where) + 2}")
    if parts[: len(where)] != where:
        yield f"the key says {':'.join(parts[: len(where)])} but the value {':'.join(where)}", RESTORE
    try:
        generation, _ = map(parsed_number, parts[-2:])
    except ValueError as error:
        raise MalformedKeyError(str(error)) from error
    owner = view.decode(OwnerRecord, paths.segment_owner(op.segment))
    if owner is None or owner.generation < generation:
        known = f"at generation {owner.generation}" if owner else "absent"
        yield (
            f"the operation was written by generation {generation}, but the segment's owner record is {known}",
            RESTORE,
        )


def op_entry(root: str, kind: str, names: int) -> Law:
    """An entry is `<segment>/[<subscription>/]<txnId>/<seq>`, or begins with the group: `names` parts, then those of
    the operation's key."""

    def law(record: Record, view: View) -> Problems:
        parts = record.key.removeprefix(root).split("/")
        if len(parts) != names + 2:
            raise MalformedKeyError(f"{len(parts)} parts instead of {names + 2}")
        path = paths.OPS + "/".join(parts[names:])
        op = view.op(path)
        if op is None:
            yield f"the index entry has no operation: {path}", DELETE
            return
        expected = _indexed_by(op)
        if op.kind != kind or expected != parts[:names]:
            yield f"the index entry does not fit its operation, a {op.kind} on {op.segment}: {path}", DELETE

    return law


def _indexed_by(op: WriteOp | AckOp | OffsetOp) -> list[str]:
    match op:
        case OffsetOp():
            return [escape(op.group)]
        case AckOp():
            return [escape(op.segment), escape(op.subscription)]
    return [escape(op.segment)]


def outcome_law(record: Record, view: View) -> Problems:
    def parse() -> tuple[str, TxnId]:
        segment, kind, txn_id = record.key.removeprefix(paths.SEGMENT_STATES).split("/")
        if kind != "outcome":
            raise ValueError(f"{kind!r} is not a kind of segment state")
        return unescape(segment), TxnId.parse(txn_id)

    segment, txn_id = parsed_key(record.key, parse, lambda parts: paths.outcome(*parts))
    outcome = decoded(record, Outcome.decode)
    if not POSITION.fullmatch(outcome.highest):
        yield f"`highest` is not a position: {outcome.highest!r}", RESTORE
    if bool(outcome.aborted) == (outcome.counted_writers is not None):
        yield "the outcome must say either that it is aborted or which writers count", RESTORE
    if view.get(paths.segment(segment)) is None:
        yield f"the outcome is on segment {segment}, which does not exist", DELETE
    header = view.decode(Header, paths.header(txn_id))
    if header is None:
        return  # collected: the outcome outlives it
    if outcome.aborted and header.state is not TxnState.ABORTED:
        yield f"the segment hides transaction {txn_id} as aborted, but it is {header.state}", RESTORE
    counted = outcome.counted_writers
    if counted is not None and not (header.writers is not None and set(counted) <= set(header.writers)):
        yield f"the segment counts other writers of transaction {txn_id} than its header", RESTORE
