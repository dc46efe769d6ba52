"""The laws of the layout (see `metastore.txn.paths`): for each kind of record, what must hold between it and others.

A law is a pure function of one record and a `View` of the store at one revision. It asks the view for other records;
while one of them has not been read its verdict does not count, so whoever judges reads what was asked for and judges
again. A record that is missing is found by the records that point to it; every pair points in both directions:

    header ↔ deadline entry │ header ↔ final-state entry │ operation ↔ its index entries │ topic ↔ segment
    lease, prepared, writers → open header │ key ↔ open header │ header → id sequence
    operation → header, segment, owner │ outcome → segment, header │ owner → segment │ parent ↔ child
    acknowledgement → subscription │ cursor → segment, subscription │ subscription → topic

The records of topics belong to the brokers; of them only the shape is known here. Processes and group-commit markers
are looked at no closer than by their keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from metastore.keys import NUMBER_DIGITS, escape, unescape
from metastore.txn import paths
from metastore.txn.records.json_record import JsonRecord
from metastore.txn.records.operations import AckOp, Outcome, WriteOp, decode_op
from metastore.txn.records.processes import Incarnation
from metastore.txn.records.subscriptions import AckedBucket, MarkDelete, SubscriptionRecord
from metastore.txn.records.transactions import GcHorizon, Header, Lease, Prepared, RememberedWriters, TransactionKey
from metastore.txn.states import TxnState
from metastore.txn.store import INDEXES
from metastore.types import Record, Snapshot
from metatxn.wire.ids import TxnId

RESTORE = "Stop writing to this store and restore a backup; keep a dump for the analysis."
RECOVER = "Stop every process of this cluster and run `metatxn store recover`."
DELETE = "Delete this key with the store's own tools: nothing reads it."
_POSITION = re.compile(r"\d+:-?\d+", re.ASCII)
_PLACE = re.compile(r"(\d+):(\d+):(\d+)", re.ASCII)
_NUMBER = re.compile(rf"\d{{{NUMBER_DIGITS}}}", re.ASCII)

J = TypeVar("J", bound=JsonRecord)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not hold: at which record, what is wrong, and what to do about it."""

    key: str
    problem: str
    action: str


class _UnreadableError(Exception):
    """A value cannot be decoded. It is a finding at its own key and silences the laws that needed it."""

    def __init__(self, key: str, why: Exception) -> None:
        super().__init__(_first_line(why))
        self.key = key


def _first_line(why: Exception) -> str:
    if isinstance(why, ValidationError):
        first = why.errors()[0]
        field = ".".join(map(str, first["loc"]))
        return f"{field}: {first['msg']}" if field else first["msg"]
    return str(why).partition("\n")[0]


class _MalformedKeyError(Exception):
    """A key does not have the form that its prefix promises."""


class View:
    """Records as far as they have been read; remembers what else was asked for since `begin`."""

    def __init__(self, records: Mapping[str, Record | None]) -> None:
        self._records = dict(records)
        self.begin()

    def begin(self) -> None:
        self.asked: set[str] = set()
        self.unread: set[str] = set()

    def add(self, snapshot: Snapshot) -> None:
        self._records.update(snapshot.records)

    def get(self, key: str) -> Record | None:
        self.asked.add(key)
        if key not in self._records:
            self.unread.add(key)
        return self._records.get(key)

    def decode(self, kind: type[J], key: str) -> J | None:
        record = self.get(key)
        return None if record is None else _decoded(record, kind.decode)

    def op(self, key: str) -> WriteOp | AckOp | None:
        record = self.get(key)
        return None if record is None else _decoded(record, decode_op)


def judge(record: Record, view: View) -> list[Finding]:
    """Everything that is wrong with `record`, provided that nothing is left in `view.unread`."""
    law = next((law for prefix, law in _LAWS if record.key.startswith(prefix)), None)
    if law is None:
        action = "See who wrote it: a newer version keeps its records here, anything else wants a root of its own."
        return [Finding(record.key, "the key belongs to no part of the layout", action)]
    findings: list[Finding] = []
    try:
        for problem, action in law(record, view):
            findings.append(Finding(record.key, problem, action))
    except _MalformedKeyError as error:
        findings.append(Finding(record.key, f"the key is malformed: {error}", DELETE))
    except _UnreadableError as error:
        if error.key == record.key:
            findings.append(Finding(record.key, f"the value cannot be read: {error}", RESTORE))
    return findings


Problems = Iterator[tuple[str, str]]
Law = Callable[[Record, View], Problems]
D = TypeVar("D")


def _decoded(record: Record, decode: Callable[[bytes], D]) -> D:
    try:
        return decode(record.value)
    except ValueError as error:
        raise _UnreadableError(record.key, error) from error


def _parsed(key: str, parse: Callable[[], D], build: Callable[[D], str]) -> D:
    """What a key says; building the key from it again must give the same key."""
    try:
        found = parse()
        again = build(found)
    except (ValueError, AssertionError) as error:
        raise _MalformedKeyError(str(error) or "a number is out of range") from error
    if again != key:
        raise _MalformedKeyError(f"{again} would be right")
    return found


def _txn_of(key: str, prefix: str) -> TxnId:
    return _parsed(key, lambda: TxnId.parse(key.removeprefix(prefix)), lambda txn_id: f"{prefix}{txn_id}")


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is not a number of {NUMBER_DIGITS} digits")
    return int(text)


# -- transactions ------------------------------------------------------------------------------------------------


def _header(record: Record, view: View) -> Problems:
    txn_id = _txn_of(record.key, paths.HEADERS)
    header = _decoded(record, Header.decode)
    if header.state.final:
        yield from _final_header(record, txn_id, header, view)
    else:
        yield from _open_header(record, txn_id, header, view)
    sequence = view.get(paths.id_sequence(txn_id.coordinator))
    if sequence is None or _decoded(sequence, _sequence_value) <= txn_id.sequence:
        problem = f"its id has not been leased: {paths.id_sequence(txn_id.coordinator)} does not go beyond it"
        yield problem, "Stop the coordinators and set the sequence above the highest id, or ids will repeat."


def _open_header(record: Record, txn_id: TxnId, header: Header, view: View) -> Problems:
    if not record.first:
        yield "the header is OPEN but was written more than once", f"Nobody can decide it any more. {RESTORE}"
    if header.finalized_ms is not None:
        yield "the header is OPEN and has the time of a decision", RESTORE
    if view.get(paths.lease(txn_id)) and view.get(paths.prepared(txn_id)):
        yield "the transaction is prepared and has a keep-alive", f"Delete {paths.lease(txn_id)}: it counts no more."
    entry = paths.deadline_entry(_deadline_ms(txn_id, header, view), txn_id)
    if view.get(entry) is None:
        problem = f"the transaction is OPEN but missing in the deadline index: {entry}"
        yield problem, f"It would never time out: abort it with `metatxn txn abort {txn_id} --force`."
    if header.key is not None:
        yield from _held_by_key(txn_id, header, header.key, view)


def _held_by_key(txn_id: TxnId, header: Header, name: str, view: View) -> Problems:
    path = paths.transaction_key(header.owner, name)
    key = view.decode(TransactionKey, path)
    abort = f"It cannot commit: abort it with `metatxn txn abort {txn_id}`."
    if key is None or key.txn_id != str(txn_id):
        yield f"the transaction is OPEN but its transaction key does not hold it: {path}", abort
        return
    # A prepared transaction outlives its epoch: a newer connection is told of it and ends it.
    prepared = view.get(paths.prepared(txn_id)) is not None
    if header.epoch is None or (key.epoch < header.epoch if prepared else key.epoch != header.epoch):
        yield f"the transaction has epoch {header.epoch} and its transaction key epoch {key.epoch}: {path}", abort
    if header.version is not None and key.last_version is not None and header.version <= key.last_version:
        yield f"version {header.version} is OPEN, and {path} says that {key.last_version} was committed", abort


def _final_header(record: Record, txn_id: TxnId, header: Header, view: View) -> Problems:
    if record.first:
        yield f"the header is {header.state} but was written only once, so brokers take it for OPEN", RESTORE
    if header.finalized_ms is None:
        yield f"the header is {header.state} without the time of the decision", RESTORE
        return
    if header.state is not TxnState.COMMITTED and header.writers is not None:
        yield "the header is ABORTED and has a list of writers that count", "Harmless: the list is not read."
    if header.expired_by is not None and header.state is not TxnState.ABORTED:
        yield f"the header is {header.state} and says that it expired by {header.expired_by}", RESTORE
    entry = paths.final_state_entry(header.state, header.finalized_ms, str(txn_id))
    if view.get(entry) is None:
        problem = f"the transaction is {header.state} but missing in the index of final states: {entry}"
        yield problem, f"Put {entry} with an empty value: its header would never be collected."


def _deadline_ms(txn_id: TxnId, header: Header, view: View) -> int:
    """The deadline in force, as `TransactionRecords.deadline_ms`."""
    if prepared := view.decode(Prepared, paths.prepared(txn_id)):
        return prepared.deadline_ms
    lease = view.decode(Lease, paths.lease(txn_id))
    return lease.deadline_ms if lease else header.timeout_ms


def _beside_open_header(kind: type[JsonRecord], prefix: str) -> Law:
    def law(record: Record, view: View) -> Problems:
        txn_id = _txn_of(record.key, prefix)
        _decoded(record, kind.decode)
        header = view.decode(Header, paths.header(txn_id))
        if header is None or header.state.final:
            state = header.state if header else "without header"
            yield f"the record belongs to open transactions only, and {txn_id} is {state}", DELETE

    return law


def _deadline_entry(record: Record, view: View) -> Problems:
    def parse() -> tuple[int, TxnId]:
        deadline, _, txn_id = record.key.removeprefix(paths.DEADLINE_INDEX).partition("/")
        return _number(deadline), TxnId.parse(txn_id)

    deadline_ms, txn_id = _parsed(record.key, parse, lambda parts: paths.deadline_entry(*parts))
    header = view.decode(Header, paths.header(txn_id))
    if header is None or header.state.final:
        yield f"the deadline index lists {txn_id}, which is {header.state if header else 'without header'}", DELETE
    elif (in_force := _deadline_ms(txn_id, header, view)) != deadline_ms:
        yield f"the deadline index lists {txn_id} at {deadline_ms}, and its deadline is {in_force}", DELETE


def _final_state_entry(record: Record, view: View) -> Problems:
    def parse() -> tuple[TxnState, int, str]:
        state, _, rest = record.key.removeprefix(paths.FINAL_STATE_INDEX).partition("/")
        finalized, _, txn_id = rest.partition("/")
        return TxnState(state), _number(finalized), str(TxnId.parse(txn_id))

    state, finalized_ms, text = _parsed(record.key, parse, lambda parts: paths.final_state_entry(*parts))
    header = view.decode(Header, paths.header(TxnId.parse(text)))
    if header is None or (header.state, header.finalized_ms) != (state, finalized_ms):
        found = f"{header.state} at {header.finalized_ms}" if header else "without header"
        yield f"the index of final states lists {text} as {state} at {finalized_ms}, and it is {found}", DELETE


def _key(record: Record, view: View) -> Problems:
    owner, name = _parsed(
        record.key, lambda: paths.parse_transaction_key(record.key), lambda parts: paths.transaction_key(*parts)
    )
    key = _decoded(record, TransactionKey.decode)
    if key.epoch < 0:
        yield f"the epoch {key.epoch} is negative", RESTORE
    if key.txn_id is None:
        return
    if key.deleted:
        yield f"the transaction key is deleted and holds transaction {key.txn_id}", RESTORE
    try:
        header = view.decode(Header, paths.header(TxnId.parse(key.txn_id)))
    except ValueError as error:
        raise _UnreadableError(record.key, error) from error
    if header is None or header.state.final:
        state = header.state if header else "without header"
        action = "Harmless by itself, the next begin under the key clears it; whatever wrote it is not harmless."
        yield f"the transaction key holds {key.txn_id}, which is {state}", action
    elif (header.owner or None, header.key) != (owner, name):
        yield f"the transaction key holds {key.txn_id}, which belongs to another key", RESTORE


def _sequence_value(value: bytes) -> int:
    first = int(value)
    if first < 1:
        raise ValueError(f"the next free id is {first}")
    return first


def _sequence(record: Record, view: View) -> Problems:
    _parsed(record.key, lambda: _number(record.key.removeprefix(paths.ID_SEQUENCES)), paths.id_sequence)
    _decoded(record, _sequence_value)
    yield from ()


def _horizon(record: Record, view: View) -> Problems:
    if record.key != paths.GC_HORIZON:
        raise _MalformedKeyError(f"{paths.GC_HORIZON} would be right")
    horizon = _decoded(record, GcHorizon.decode)
    # The horizon is the version of a header that was read before, and later writes have higher versions.
    if not 0 <= horizon.revision < record.version:
        problem = f"the horizon {horizon.revision} lies in the future: it was written at revision {record.version}"
        yield problem, "Every snapshot would be refused. After a restore into a new store, delete this key."


def _incarnation(record: Record, view: View) -> Problems:
    if record.key != paths.INCARNATION:
        raise _MalformedKeyError(f"{paths.INCARNATION} would be right")
    incarnation = _decoded(record, Incarnation.decode)
    if incarnation.recovering:
        yield "the recovery of a restored store was begun and has not ended", RECOVER
    elif incarnation.went_back is not None:
        yield f"the store was restored from a backup: {incarnation.went_back}", RECOVER


# -- operations --------------------------------------------------------------------------------------------------


def _op(record: Record, view: View) -> Problems:
    text, _, seq = record.key.removeprefix(paths.OPS).partition("/")
    txn_id = _parsed(f"{paths.OPS}{text}", lambda: TxnId.parse(text), lambda parsed: f"{paths.OPS}{parsed}")
    op = _decoded(record, decode_op)
    yield from _op_key(record.key, seq, op, view)
    if isinstance(op, WriteOp):
        if not _POSITION.fullmatch(op.after):
            yield f"`after` is no position: {op.after!r}", RESTORE
        if op.count < 0:
            yield f"the count {op.count} is negative", RESTORE
    else:
        yield from _ack(op, view)
    for index in INDEXES:
        if record.key.startswith(index.prefix):
            for entry in sorted(index.keys(record.key, record.value)):
                if view.get(entry) is None:
                    yield f"the operation is missing in its index: {entry}", f"Put {entry} with an empty value."
    if view.get(paths.header(txn_id)) is None:
        problem = f"the header of transaction {txn_id} is gone, and its operation is left"
        yield problem, "It counts as committed. Restart the segment's broker: its recovery deletes what is left."
    if view.get(paths.segment(op.segment)) is None:
        yield f"the operation is on segment {op.segment}, which does not exist", RESTORE


def _ack(op: AckOp, view: View) -> Problems:
    if not _POSITION.fullmatch(op.position):
        yield f"`position` is no position: {op.position!r}", RESTORE
    if op.batch_index is not None and not 0 <= op.batch_index < (op.batch_size or 0):
        yield f"the entry has no message {op.batch_index}: it holds {op.batch_size}", RESTORE
    segment = view.decode(_Segment, paths.segment(op.segment))
    if segment is not None:
        yield from _of_subscription("acknowledgement", segment.topic, op.subscription, op.incarnation, view)


def _of_subscription(what: str, topic: str, name: str, incarnation: int, view: View) -> Problems:
    """What an earlier incarnation has left behind is on its way out; nothing can belong to a later one."""
    found = view.decode(SubscriptionRecord, paths.subscription(topic, name))
    if found is None or found.incarnation < incarnation:
        known = f"at incarnation {found.incarnation}" if found else "absent"
        yield f"the {what} is of incarnation {incarnation} of subscription {name}, which is {known}", RESTORE


def _op_key(key: str, seq: str, op: WriteOp | AckOp, view: View) -> Problems:
    """`<segment>:w:<generation>:<counter>` or `<segment>:a:<subscription>:<generation>:<counter>`."""
    where = [escape(op.segment), "w"] if isinstance(op, WriteOp) else [escape(op.segment), "a", escape(op.subscription)]
    parts = seq.split(":")
    if len(parts) != len(where) + 2:
        raise _MalformedKeyError(f"the operation's number {seq!r} has {len(parts)} parts instead of {len(where) + 2}")
    if parts[: len(where)] != where:
        yield f"the key says {':'.join(parts[: len(where)])} and the value {':'.join(where)}", RESTORE
    try:
        generation, _ = map(_number, parts[-2:])
    except ValueError as error:
        raise _MalformedKeyError(str(error)) from error
    owner = view.decode(_Owner, paths.segment_owner(op.segment))
    if owner is None or owner.generation < generation:
        known = f"at generation {owner.generation}" if owner else "absent"
        yield f"the operation was made by generation {generation}, and the segment's owner record is {known}", RESTORE


def _op_entry(root: str, kind: str, names: int) -> Law:
    """An entry is `<segment>/[<subscription>/]<txnId>/<seq>`: `names` parts, then those of the operation's key."""

    def law(record: Record, view: View) -> Problems:
        parts = record.key.removeprefix(root).split("/")
        if len(parts) != names + 2:
            raise _MalformedKeyError(f"{len(parts)} parts instead of {names + 2}")
        path = paths.OPS + "/".join(parts[names:])
        op = view.op(path)
        if op is None:
            yield f"the index entry has no operation: {path}", DELETE
            return
        expected = [escape(op.segment)] if isinstance(op, WriteOp) else [escape(op.segment), escape(op.subscription)]
        if op.kind != kind or expected != parts[:names]:
            yield f"the index entry does not fit its operation, a {op.kind} on {op.segment}: {path}", DELETE

    return law


def _segment_state(record: Record, view: View) -> Problems:
    kind = record.key.removeprefix(paths.SEGMENT_STATES).split("/")[1:2]
    yield from (_dedup if kind == ["dedup"] else _outcome)(record, view)


def _dedup(record: Record, view: View) -> Problems:
    """A snapshot that its segment does not name is being written, or on its way out."""

    def parse() -> tuple[str, str, int]:
        segment, _, name, chunk = record.key.removeprefix(paths.SEGMENT_STATES).split("/")
        return unescape(segment), unescape(name), _number(chunk)

    segment_id, name, chunk = _parsed(record.key, parse, lambda parts: paths.dedup_chunk(*parts))
    segment = view.decode(_Segment, paths.segment(segment_id))
    if segment is None:
        yield f"the sequences are of segment {segment_id}, which does not exist", DELETE
    elif segment.dedup is not None and segment.dedup.name == name and chunk >= segment.dedup.chunks:
        yield f"the snapshot {name} has {segment.dedup.chunks} chunks, and this is one more", RESTORE


def _outcome(record: Record, view: View) -> Problems:
    def parse() -> tuple[str, TxnId]:
        segment, kind, txn_id = record.key.removeprefix(paths.SEGMENT_STATES).split("/")
        if kind != "outcome":
            raise ValueError(f"{kind!r} is no state of a segment")
        return unescape(segment), TxnId.parse(txn_id)

    segment, txn_id = _parsed(record.key, parse, lambda parts: paths.outcome(*parts))
    outcome = _decoded(record, Outcome.decode)
    if not _POSITION.fullmatch(outcome.highest):
        yield f"`highest` is no position: {outcome.highest!r}", RESTORE
    if bool(outcome.aborted) == (outcome.counted_writers is not None):
        yield "the outcome must say either that it is aborted or which writers count", RESTORE
    if view.get(paths.segment(segment)) is None:
        yield f"the outcome is on segment {segment}, which does not exist", DELETE
    header = view.decode(Header, paths.header(txn_id))
    if header is None:
        return  # collected: the outcome outlives it
    if outcome.aborted and header.state is not TxnState.ABORTED:
        yield f"the segment hides transaction {txn_id} as aborted, and it is {header.state}", RESTORE
    counted = outcome.counted_writers
    if counted is not None and not (header.writers is not None and set(counted) <= set(header.writers)):
        yield f"the segment counts other writers of transaction {txn_id} than its header", RESTORE


# -- subscriptions and cursors -----------------------------------------------------------------------------------------


def _subscription(record: Record, view: View) -> Problems:
    def parse() -> tuple[str, str]:
        topic, name = record.key.removeprefix(paths.SUBSCRIPTIONS).split("/")
        return unescape(topic), unescape(name)

    topic, _ = _parsed(record.key, parse, lambda parts: paths.subscription(*parts))
    found = _decoded(record, SubscriptionRecord.decode)
    if found.incarnation < 1:
        yield f"the incarnation {found.incarnation} is none: they begin with 1", RESTORE
    if not found.deleted and view.get(paths.topic(topic)) is None:
        yield f"the subscription is on topic {topic}, which does not exist", RESTORE
    for segment, place in (found.starts or {}).items():
        if not _PLACE.fullmatch(place):
            yield f"it begins on {segment} at {place!r}, which is no place", RESTORE


def _cursor(record: Record, view: View) -> Problems:
    """`…/<incarnation>/mark-delete` or `…/<incarnation>/acked/<ledger>:<entry>:<index>`."""
    parts = record.key.removeprefix(paths.CURSORS).split("/")

    def parse() -> tuple[str, str, int, list[int] | None]:
        segment, subscription, incarnation, kind, *bucket = parts
        if (kind, len(bucket)) not in (("mark-delete", 0), ("acked", 1)):
            raise ValueError(f"{kind!r} is no record of a cursor")
        start = [_number(part) for part in bucket[0].split(":")] if bucket else None
        return unescape(segment), unescape(subscription), _number(incarnation), start

    def build(found: tuple[str, str, int, list[int] | None]) -> str:
        segment, subscription, incarnation, start = found
        if start is None:
            return paths.cursor_mark(segment, subscription, incarnation)
        ledger, entry, index = start
        return paths.cursor_bucket(segment, subscription, incarnation, (ledger, entry, index))

    segment_id, name, incarnation, start = _parsed(record.key, parse, build)
    if start is None:
        places = [_decoded(record, MarkDelete.decode).before]
    else:
        places = [place for found in _decoded(record, AckedBucket.decode).ranges for place in found]
    matches = [_PLACE.fullmatch(place) for place in places]
    numbers = [tuple(map(int, match.groups())) for match in matches if match]
    if len(numbers) < len(places):
        yield f"a place is not ledger:entry:index: {places}", RESTORE
    elif any(later <= earlier for earlier, later in pairwise(numbers)):
        yield "the acknowledged ranges overlap, touch, or are not in order", RESTORE
    segment = view.decode(_Segment, paths.segment(segment_id))
    if segment is None:
        yield f"the cursor is on segment {segment_id}, which does not exist", DELETE
    else:
        yield from _of_subscription("cursor", segment.topic, name, incarnation, view)


# -- topics and segments, by their shape ------------------------------------------------------------------------------


class _Topic(JsonRecord):
    name: str
    segments: tuple[str, ...]
    next_segment: int
    deleted: bool | None = None


class _Ledger(BaseModel):
    id: int
    storage: str
    entries: int | None = None


class _Snapshot(BaseModel):
    name: str
    chunks: int


class _Claim(BaseModel):
    other: str
    child: str


class _Segment(JsonRecord):
    topic: str
    range: tuple[int, int]
    state: str = "active"
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    ledgers: tuple[_Ledger, ...] = ()
    first_position: str = "0:-1"
    dedup: _Snapshot | None = None
    merge: _Claim | None = None


class _Owner(JsonRecord):
    broker: str
    url: str
    generation: int
    deleted: bool | None = None


def _named(key: str, build: Callable[[str], str]) -> str:
    return _parsed(key, lambda: unescape(key.rpartition("/")[2]), build)


def _topic(record: Record, view: View) -> Problems:
    name = _named(record.key, paths.topic)
    topic = _decoded(record, _Topic.decode)
    if topic.name != name:
        yield f"the topic calls itself {topic.name!r}", RESTORE
    if topic.next_segment < len(topic.segments) or len(set(topic.segments)) < len(topic.segments):
        problem = f"there are {len(topic.segments)} segments and the next one has number {topic.next_segment}"
        yield f"{problem}: an id repeats or would be used again", RESTORE
    active = []
    for segment_id in topic.segments:
        segment = view.decode(_Segment, paths.segment(segment_id))
        if segment is None:
            if not topic.deleted:
                yield f"the topic's segment {segment_id} does not exist", RESTORE
        elif segment.state == "active":
            active.append((segment.range, segment_id))
    for (lower, one), (upper, other) in pairwise(sorted(active)):
        if upper[0] <= lower[1]:
            yield f"the hash ranges of the active segments {one} and {other} overlap", RESTORE


def _segment(record: Record, view: View) -> Problems:
    segment_id = _named(record.key, paths.segment)
    segment = _decoded(record, _Segment.decode)
    if segment.state == "deleted":
        return  # it waits for its storage, and its topic may have been created again
    topic = view.decode(_Topic, paths.topic(segment.topic))
    if topic is None or segment_id not in topic.segments:
        problem = "does not list it" if topic else "does not exist"
        yield f"the segment belongs to topic {segment.topic}, which {problem}", RESTORE
    if not 0 <= segment.range[0] <= segment.range[1]:
        yield f"the hash range {list(segment.range)} is empty", RESTORE
    numbers = [ledger.id for ledger in segment.ledgers]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        yield f"the ledgers are not in order: {numbers}", RESTORE
    if any(ledger.entries is None for ledger in segment.ledgers[:-2]):
        yield "a ledger before the last two is not sealed", RESTORE
    if not _POSITION.fullmatch(segment.first_position):
        yield f"`first_position` is no position: {segment.first_position!r}", RESTORE
    if segment.state == "sealed":
        if any(ledger.entries is None for ledger in segment.ledgers):
            yield "the segment is sealed and one of its ledgers has no final length", RESTORE
        if segment.children and segment.merge is not None:
            yield "the segment has children and is still claimed by a merge", RESTORE
    elif segment.children:
        yield "the segment has children and is not sealed: keys go two ways", RESTORE
    yield from _family(segment_id, segment, view)
    yield from _snapshot_chunks(segment_id, segment, view)


def _family(segment_id: str, segment: _Segment, view: View) -> Problems:
    """Parent and child name each other, and the children cover exactly what their parents did."""
    for parent_id in segment.parents:
        parent = view.decode(_Segment, paths.segment(parent_id))
        if parent is None or segment_id not in parent.children:
            problem = "does not name it as a child" if parent else "does not exist"
            yield f"the segment's parent {parent_id} {problem}", RESTORE
        elif not _overlap(parent.range, segment.range):
            yield f"no hash of the segment is one of its parent {parent_id}", RESTORE
    if segment.merge is not None:
        other = view.decode(_Segment, paths.segment(segment.merge.other))
        if other is None or other.merge is None or other.merge.other != segment_id:
            yield f"the segment is claimed by a merge with {segment.merge.other}, which is not", RESTORE
    covered = []
    for child_id in segment.children:
        child = view.decode(_Segment, paths.segment(child_id))
        if child is None or segment_id not in child.parents:
            problem = "does not name it as a parent" if child else "does not exist"
            yield f"the segment's child {child_id} {problem}", RESTORE
        else:
            covered.append(child.range)
    if len(covered) == len(segment.children) > 0 and not _cover(covered, segment.range):
        yield f"the ranges of its children {sorted(covered)} leave out a part of {list(segment.range)}", RESTORE


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _cover(parts: list[tuple[int, int]], whole: tuple[int, int]) -> bool:
    ordered = sorted(parts)
    joined = all(upper[0] == lower[1] + 1 for lower, upper in pairwise(ordered))
    return joined and ordered[0][0] <= whole[0] and whole[1] <= ordered[-1][1]


def _snapshot_chunks(segment_id: str, segment: _Segment, view: View) -> Problems:
    for chunk in range(segment.dedup.chunks if segment.dedup else 0):
        assert segment.dedup is not None
        key = paths.dedup_chunk(segment_id, segment.dedup.name, chunk)
        if view.get(key) is None:
            yield f"a part of what the segment remembers of its producers is missing: {key}", RESTORE


def _segment_owner(record: Record, view: View) -> Problems:
    segment_id = _named(record.key, paths.segment_owner)
    owner = _decoded(record, _Owner.decode)
    if owner.generation < 1:
        yield f"the generation {owner.generation} is none: they begin with 1", RESTORE
    if view.get(paths.segment(segment_id)) is None and not owner.deleted:
        yield f"the segment {segment_id} has an owner and does not exist", RESTORE


def _by_key_only(record: Record, view: View) -> Problems:
    if "//" in record.key or record.key.endswith("/"):
        raise _MalformedKeyError("a part of it is empty")
    yield from ()


_LAWS: tuple[tuple[str, Law], ...] = (
    (paths.HEADERS, _header),
    (paths.LEASES, _beside_open_header(Lease, paths.LEASES)),
    (paths.REMEMBERED_WRITERS, _beside_open_header(RememberedWriters, paths.REMEMBERED_WRITERS)),
    (paths.PREPARED, _beside_open_header(Prepared, paths.PREPARED)),
    (paths.OPS, _op),
    (paths.TRANSACTION_KEYS, _key),
    (paths.ID_SEQUENCES, _sequence),
    (paths.WRITES_INDEX, _op_entry(paths.WRITES_INDEX, "write", 1)),
    (paths.ACKS_INDEX, _op_entry(paths.ACKS_INDEX, "ack", 2)),
    (paths.DEADLINE_INDEX, _deadline_entry),
    (paths.FINAL_STATE_INDEX, _final_state_entry),
    (paths.SEGMENT_STATES, _segment_state),
    (paths.TOPICS, _topic),
    (paths.SEGMENTS, _segment),
    (paths.SEGMENT_OWNERS, _segment_owner),
    (paths.GC_HORIZON, _horizon),
    (paths.SUBSCRIPTIONS, _subscription),
    (paths.CURSORS, _cursor),
    (paths.COORDINATORS, _by_key_only),
    (paths.BROKERS, _by_key_only),
    (paths.INCARNATION, _incarnation),
    (paths.GROUP_COMMIT_MARKERS, _by_key_only),
)
