"""What was asked, what was answered, and what the store has seen: all that the checkers judge by.

Clients write down each call before they make it and after it was answered; a call of a client that died stays without
an answer, and may have happened. The store's own record of every decision is taken at the moment it takes effect, so
nothing a service says about itself is believed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import zip_longest
from math import inf
from typing import Any

from metastore.keys import unescape
from metastore.txn import paths
from metastore.txn.records.transactions import GcHorizon, Header, TransactionKey
from metastore.types import Changes, Event, Revision
from tests.simulation.efforts import Effort
from tests.simulation.transport import Stays

_WITH_STATES = (
    paths.TOPICS,
    paths.SEGMENTS,
    paths.SUBSCRIPTIONS,
    paths.PREPARED,
    paths.SEGMENT_OWNERS,
    paths.EXCLUSIVE_PRODUCERS,
    paths.READ_HOLDS,
)
_COUNTED = (paths.SUBSCRIPTIONS, paths.TRANSACTION_KEYS, paths.EXCLUSIVE_PRODUCERS)
_THERE = "there"


def held_under(epoch: int) -> str:
    """The state of a topic that a producer has for itself."""
    return f"held under epoch {epoch}"


def connection(key: str, epoch: int) -> str:
    """How a client that has connected names itself in what it begins."""
    return f"epoch {epoch} of {key}"


class Outcome(StrEnum):
    OK = "ok"
    FAILED = "failed"  # certainly nothing happened, nor will it
    UNKNOWN = "unknown"  # also: not answered yet


@dataclass(eq=False, slots=True)
class Write:
    """One entry that a client has published. `id` is in its payload, and in no other."""

    id: str
    txn_id: str | None
    writer: str | None
    topic: str
    key: str
    amount: int
    client: str
    begun: float
    ended: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    segment: str | None = None
    """None: the client was told only where in its segment the entry is."""
    position: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Browsed:
    """What a reader has seen of a topic, page by page, to its end, since it was last told that it has missed something;
    or since the topic was empty."""

    topic: str
    seen: list[str]
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Claimed:
    """A leader was told at this time that it has the topic for itself."""

    topic: str
    epoch: int
    answered: float


@dataclass(eq=False, slots=True)
class HeldRead:
    """Who holds `topic` under the record `key` has read it as a snapshot at `revision`, twice if nothing failed.
    `ended` is the revision of the store then, and `refused` the code of the refusal that has ended it."""

    key: str
    topic: str
    revision: Revision
    reads: list[list[Seen]] = field(default_factory=list)
    """Of each that has reached the end."""
    ended: Revision = 0
    refused: str | None = None


@dataclass(eq=False, slots=True)
class End:
    """A commit or abort that a client has asked for. `answers` are all that it was told, with the code of errors."""

    txn_id: str
    commit: bool
    client: str
    writers: tuple[str, ...] | None = None
    remembered: tuple[str, ...] | None = None
    """The writers that count because it was said so before, when `writers` does not say."""
    outcome: Outcome = Outcome.UNKNOWN
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One frame as a reader got it."""

    segment: str
    position: tuple[int, int]
    txn_id: str | None
    writer: str | None
    id: str
    key: str
    amount: int
    index: int = 0
    """Which one of the messages of its entry."""


@dataclass(frozen=True, slots=True)
class Retold:
    """The answer when something that was acknowledged is sent again under its sequence: where it lies, or the `code` of
    a refusal that says that it will be refused again."""

    write: Write
    segment: str | None = None
    position: tuple[int, int] | None = None
    index: int = 0
    code: str | None = None


@dataclass(eq=False, slots=True)
class Read:
    """One segment read from `after` to `next`; `revision` of a snapshot. `at_revision` is the store's own when the
    answer arrived: what is decided later must not be in it. `floor` is the store's when it was asked. `txn_id` of the
    transaction that goes by what was read."""

    client: str
    segment: str
    isolation: str
    after: tuple[int, int]
    next: tuple[int, int]
    end: bool
    revision: Revision | None
    floor: Revision
    at_revision: Revision
    frames: list[Seen]
    txn_id: str | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """What a begin was answered with: `by` is the property that says who began it, and `asked` what the caller gave."""

    txn_id: str
    asked: str
    by: str | None


@dataclass(frozen=True, slots=True)
class HandedOut:
    """A transaction that the library has handed out, `ahead` if it was begun before the program asked for it."""

    txn_id: str
    at_revision: Revision
    ahead: bool


@dataclass(frozen=True, slots=True)
class HorizonSeen:
    """How far readers might go in a segment, told by a broker between two times."""

    segment: str
    server: str
    asked: float
    answered: float
    max_read_position: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Decision:
    """The header when it became final, and at which revision."""

    header: Header
    revision: Revision

    @property
    def committed(self) -> bool:
        return self.header.state == "COMMITTED"

    def counts(self, writer: str | None) -> bool:
        """Whether readers may see what this writer wrote."""
        counted = self.header.writers
        return self.committed and (counted is None or writer is None or writer in counted)


@dataclass(eq=False, repr=False, slots=True)
class Asked:
    """A request that changes something, or a read that was refused for its place: `verb` is the last part of its path
    that is no name, or else its method, and what it names is what it is about.

    `code` is that of a definite refusal; `floor` and `at_revision` are the store's revisions when the attempt that was
    refused was sent, and when it was answered. `outcome` is of all attempts: an earlier one may have had no answer.
    """

    verb: str
    floor: Revision
    txn_id: str | None = None
    by: str | None = None
    """Of a begin the property that says who begins."""
    key: str | None = None
    epoch: int | None = None
    topic: str | None = None
    segment: str | None = None
    subscription: str | None = None
    sequence: tuple[str, int, str] | None = None
    """Of a publish its producer and sequence, and what it holds."""
    cumulative: bool = False
    at_revision: Revision = 0
    outcome: Outcome = Outcome.UNKNOWN
    code: str | None = None
    argument: str | None = None
    """Which one is invalid, as the refusal tells."""
    holder: str | None = None
    """The transaction that is in the way, as the refusal tells."""
    holders: tuple[str, ...] = ()
    """All of them, of a seek."""
    never_given: bool = False
    """As the refusal tells, nobody was given what was to be acknowledged."""
    detail: str | None = None
    began: Revision = field(init=False)
    """The store's revision when the first attempt was sent."""

    def __post_init__(self) -> None:
        self.began = self.floor

    def __repr__(self) -> str:
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        return f"Asked({', '.join(f'{name}={value}' for name, value in told.items() if value not in (None, False))})"

    def refuse(self, code: str, detail: str, problem: Mapping[str, Any], outcome: Outcome, revision: Revision) -> None:
        """Written down when it is told."""
        self.code, self.detail, self.outcome, self.at_revision = code, detail, outcome, revision
        self.argument, self.holder = problem.get("field"), problem.get("holder")
        self.holders = tuple(problem.get("holders", ()))
        self.segment = problem.get("segment", self.segment)
        self.never_given = problem.get("never_given", False)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A policy has dropped the entries of a segment from `before` on, so that `first` is the first one that is left.
    The rest is what the store said at that moment: what the policy keeps, of which -1 says that there is no bound;
    `left_bytes` of all closed ledgers of the topic; and by subscription the place before which all is acknowledged."""

    segment: str
    before: tuple[int, int]
    first: tuple[int, int]
    revision: Revision
    at: float
    kept_ms: int
    kept_bytes: int
    hard: bool
    left_bytes: int
    marks: Mapping[str, tuple[int, int]]


@dataclass(eq=False, slots=True)
class Delivered:
    """What a consumer of a subscription that is shared by key was given in one answer: by message its key, in order.
    The store's revisions and the times are those when it asked, and when it was answered."""

    consumer: str
    floor: Revision
    at_revision: Revision
    asked: float
    answered: float
    keys: dict[str, str]
    copied: bool = False
    """Copies of its requests may have been answered with other messages."""


@dataclass(eq=False, slots=True)
class Returned:
    """Messages that a consumer of such a subscription has returned, when it asked for that, and when it was told."""

    ids: list[str]
    asked: float
    answered: float | None = None


@dataclass(frozen=True, slots=True)
class Expired:
    """Of a subscription that nobody uses, everything from `before` up to `mark` counts as acknowledged from now on, as
    the store says. `ttl_ms` is then the policy's, -1 if there is none; what is before `trimmed` is gone. So are
    `evicts_ms` and `evicts_bytes`, if the policy evicts."""

    segment: str
    before: tuple[int, int]
    mark: tuple[int, int]
    at: float
    ttl_ms: int
    trimmed: tuple[int, int]
    evicts_ms: int = -1
    evicts_bytes: int = -1


@dataclass(eq=False, slots=True)
class KafkaRecords:
    """What clients of Kafka have sent, were told and have read. Records are (offset, value), by topic and partition."""

    inputs: str
    outputs: str
    sent: set[bytes] = field(default_factory=set)
    acknowledged: set[bytes] = field(default_factory=set)
    read: list[tuple[int, int, bytes | None]] = field(default_factory=list)
    """Of the outputs: partition, offset and value."""
    committed: dict[tuple[str, int], list[tuple[int, bytes | None]]] = field(default_factory=dict)
    uncommitted: dict[tuple[str, int], list[tuple[int, bytes | None]]] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)
    """Refusals that a client which keeps the rules never gets."""

    def values(self, topic: str) -> list[bytes]:
        places = [found for (name, _), found in self.committed.items() if name == topic]
        return [value for found in places for _, value in found if value is not None]


@dataclass(slots=True)
class History:
    kafka: KafkaRecords | None = None
    writes: list[Write] = field(default_factory=list)
    retold: list[Retold] = field(default_factory=list)
    claims: list[Claimed] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    answered_begins: list[Begun] = field(default_factory=list)
    handed_out: list[HandedOut] = field(default_factory=list)
    efforts: list[Effort] = field(default_factory=list)
    """Of each request to a coordinator."""
    stays: list[Stays] = field(default_factory=list)
    """Of each client of the library."""
    reads: list[Read] = field(default_factory=list)
    snapshots: list[list[Read]] = field(default_factory=list)
    """Each is all pages of all segments at one revision."""
    final_reads: list[Read] = field(default_factory=list)
    """What everybody sees once the faults have stopped and everything is done."""
    decisions: dict[str, Decision] = field(default_factory=dict)
    begun: dict[str, Revision] = field(default_factory=dict)
    begun_by: dict[str, str] = field(default_factory=dict)
    """Of each of them the property that says who has begun it."""
    under_keys: dict[str, Header] = field(default_factory=dict)
    """As they began, those under a transaction key."""
    closed: dict[str, float] = field(default_factory=dict)
    """When somebody was told first that a transaction is prepared or has ended: it takes nothing any more."""
    horizons: list[HorizonSeen] = field(default_factory=list)
    collected: dict[str, tuple[Revision, Revision]] = field(default_factory=dict)
    """Of each transaction whose header is gone, when it went, and where `/gc/horizon` was then."""
    gc_horizons: list[Revision] = field(default_factory=lambda: [0])
    """The values it had, one after the other."""
    pipes: list[tuple[str, str]] = field(default_factory=list)
    """Topics of which the second has one output for each entry of the first, by the entry's id."""
    letters: dict[str, Counter[str]] = field(default_factory=dict)
    """Of the first topic of such a pair, by the ids of its entries: how many dead letters there are in the end."""
    again: dict[str, set[str]] = field(default_factory=dict)
    max_redeliveries: dict[str, int] = field(default_factory=dict)
    """Of such a first topic: how often its messages are redelivered before they are given up."""
    given: Counter[str] = field(default_factory=Counter)
    """By the ids of its entries: how often consumers were given them."""
    early: dict[str, set[str]] = field(default_factory=dict)
    """By topic, what an uncommitted subscription has delivered."""
    """By topic, the entries that a subscription delivered after it was moved to the beginning in the end."""
    delivered: list[Delivered] = field(default_factory=list)
    ack_timeout_s: float = inf
    """Of that subscription."""
    returned: list[Returned] = field(default_factory=list)
    due_s: dict[str, float] = field(default_factory=dict)
    """When messages are to be delivered, of those of that topic that say so."""
    taken: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """What consumers of such a subscription have acknowledged, by transaction; and when they were told that it is."""
    browsed: dict[str, Browsed] = field(default_factory=dict)
    """Of each that follows a topic from page to page: the topic, and the entries that it has seen in the end, since it
    was last told that it had missed some."""
    asked: list[Asked] = field(default_factory=list)
    given_to_nobody: list[str] = field(default_factory=list)
    """Acknowledgements in transactions that were taken, of messages that nobody can have been given."""
    marks: str | None = None
    """The topic of marks: entries whose key names a segment and a place, up to which it was acknowledged with them."""
    mark_deletes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Where the subscription to the marked segments stands in the end."""
    trimmed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each segment the place below which all entries were dropped, or somebody has asked for it."""
    compacted: set[str] = field(default_factory=set)
    """Topics of which only the latest entry of each key need be there."""
    held_reads: list[HeldRead] = field(default_factory=list)
    compactions: list[tuple[Revision, str]] = field(default_factory=list)
    """When a compaction of which segment has left something out."""
    dropped: list[Dropped] = field(default_factory=list)
    expired: list[Expired] = field(default_factory=list)
    clocks_differ_s: float = 0.0
    """By how much clocks may differ."""
    not_freed: list[str] = field(default_factory=list)
    """What is there in the end although the last policies free it."""
    epochs: dict[str, list[tuple[Revision, int]]] = field(default_factory=dict)
    """Of each transaction key, when it came to which epoch."""
    forgotten_keys: dict[str, list[Revision]] = field(default_factory=dict)
    """Of each transaction key, when its record went."""
    counted: dict[str, list[tuple[Revision, int]]] = field(default_factory=dict)
    """Of each subscription, transaction key and exclusive producer, by the key of its record, when it came to which
    incarnation or epoch: each change of the number, and the first one after the record was gone."""
    _gone: set[str] = field(default_factory=set)
    layouts: dict[str, list[str]] = field(default_factory=dict)
    """Of each topic its segments in the end, parents before their children."""
    states: dict[str, list[tuple[Revision, str | None]]] = field(default_factory=dict)
    """Of each topic, segment, owner, subscription, exclusive producer, read hold and prepare, by the key of its record,
    when it came to which state: None when it was deleted."""
    revision: Revision = 0
    """Of the store's latest change."""
    broken: list[str] = field(default_factory=list)
    """Laws of the store that were found broken while it ran; see `checkers.laws`."""
    left: dict[str, Any] = field(default_factory=dict)
    """What was left, and where, when everything was done."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """The number of outcomes that the store remembered of each segment then."""
    few_outcomes: int = 0
    """A segment that is idle has fewer than so many."""
    _compacted: dict[str, Revision] = field(default_factory=dict)
    bare: list[str] = field(default_factory=list)
    """The segments that were left then although nothing was left in them and nothing needed them."""
    tombstones: list[str] = field(default_factory=list)
    """The records of deleted topics and dropped subscriptions that were left then, although they were to be forgotten
    soon."""

    @property
    def aborted(self) -> set[str]:
        return {txn_id for txn_id, decision in self.decisions.items() if not decision.committed}

    def committed_reads(self) -> Iterator[Read]:
        """Every read that must show decided entries and no others."""
        yield from self.reads
        yield from (page for pages in self.snapshots for page in pages)
        yield from self.final_reads_committed()

    def final_reads_committed(self) -> Iterator[Read]:
        return (read for read in self.final_reads if read.isolation == "read_committed")

    def visible_in(self, topic: str) -> Iterator[Seen]:
        """The entries of a topic in the end."""
        segments = set(self.layouts[topic])
        for read in self.final_reads_committed():
            if read.segment in segments:
                yield from read.frames

    def is_trimmed(self, segment: str | None, position: tuple[int, int] | None) -> bool:
        """It may be gone."""
        trimmed = self.trimmed.get(segment or "")
        return trimmed is not None and (position is None or position < trimmed)

    def latest_by_key(self) -> dict[tuple[str, str], tuple[int, int]]:
        """By segment and key, the last place in compacted topics that everybody sees in the end."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for topic in self.compacted & self.layouts.keys():
            for seen in self.visible_in(topic):
                found[seen.segment, seen.key] = max(found.get((seen.segment, seen.key), (0, -1)), seen.position)
        return found

    def epoch_at(self, key: str, revision: Revision) -> int | None:
        """Of a transaction key, as it was before the change at `revision`."""
        before = [epoch for changed, epoch in self.epochs.get(key, ()) if changed < revision]
        return before[-1] if before else None

    def was(self, key: str, states: Collection[str | None], since: Revision, until: Revision) -> bool:
        """Whether a record was in one of these states at some time between two revisions."""
        changes = [(0, None), *self.states.get(key, ())]
        ends = [revision for revision, _ in changes[1:]]
        return any(
            state in states and began <= until and (end is None or end > since)
            for (began, state), end in zip_longest(changes, ends)
        )

    def hear(self, changes: Changes) -> None:
        """Every change of the store, when it takes effect."""
        self.revision = changes.revision
        for event in changes.events:
            if event.key.startswith(_WITH_STATES):
                self._hear_state(event, changes.revision)
            if event.key.startswith(_COUNTED):
                self._hear_number(event, changes.revision)
            if event.key.startswith(paths.SEGMENTS):
                self._hear_compaction(event, changes.revision)
            if event.key == paths.GC_HORIZON and event.record is not None:
                self.gc_horizons.append(GcHorizon.decode(event.record.value).revision)
            elif event.key.startswith(paths.HEADERS):
                self._hear_header(event, changes.revision)
            elif event.key.startswith(paths.TRANSACTION_KEYS):
                _, key = paths.parse_transaction_key(event.key)
                if event.record is None:
                    self.forgotten_keys.setdefault(key, []).append(changes.revision)
                else:
                    epoch = TransactionKey.decode(event.record.value).epoch
                    self.epochs.setdefault(key, []).append((changes.revision, epoch))

    def was_held(self, topic: str, revision: Revision) -> str | None:
        """A hold of the topic that was there before the change at `revision`, and after it."""
        keys = [key for key in self.states if key.startswith(paths.read_holds(topic))]
        return next((key for key in keys if self.was(key, {_THERE}, revision, revision - 1)), None)

    def _hear_compaction(self, event: Event, revision: Revision) -> None:
        record = json.loads(event.record.value) if event.record is not None else {}
        compacted = (record.get("compaction") or {}).get("revision", 0)
        if compacted > self._compacted.get(event.key, 0):
            self._compacted[event.key] = compacted
            self.compactions.append((revision, unescape(event.key.removeprefix(paths.SEGMENTS))))

    def _hear_number(self, event: Event, revision: Revision) -> None:
        if event.record is None:
            self._gone.add(event.key)
            return
        record = json.loads(event.record.value)
        number = record["incarnation"] if "incarnation" in record else record["epoch"]
        known = self.counted.setdefault(event.key, [])
        if not known or known[-1][1] != number or event.key in self._gone:
            known.append((revision, number))
        self._gone.discard(event.key)

    def _hear_state(self, event: Event, revision: Revision) -> None:
        record = json.loads(event.record.value) if event.record is not None else {"deleted": True}
        known = self.states.setdefault(event.key, [])
        state = str(record.get("state") or record.get("generation", _THERE))
        if record.get("session") is not None:
            state = held_under(record["epoch"])
        now = None if record.get("deleted") or state == "deleted" else state
        if not known or known[-1][1] != now:
            known.append((revision, now))

    def _hear_header(self, event: Event, revision: Revision) -> None:
        txn_id = event.key.removeprefix(paths.HEADERS)
        if event.record is None:
            self.collected[txn_id] = (revision, self.gc_horizons[-1])
            if txn_id not in self.decisions:
                self.broken.append(f"the header of {txn_id} was deleted before it was decided")
            return
        header = Header.decode(event.record.value)
        if txn_id in self.decisions:
            self.broken.append(f"{txn_id} was decided, and written again as {header.state} at {revision}")
        elif header.state.final:
            self.decisions[txn_id] = Decision(header, revision)
        elif txn_id in self.begun:
            self.broken.append(f"{txn_id} was begun twice, again at {revision}")
        else:
            self.begun[txn_id] = revision
            self.begun_by[txn_id] = (header.properties or {}).get("by", "")
            if header.key is not None:
                self.under_keys[txn_id] = header
