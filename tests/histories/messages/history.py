"""A history of messages, as `calls.py` writes it down, sorted for those who judge it.

The `action` of a call, by what it does, and its result:

    {"do": "write", "id": "c1.7", "topic": "bank-0", "key": "3", "txn": "00…" | null, "amount": 5, "of": "c2.9" | null}
    {"do": "begin", "timeout_ms": 3000}         -> "00…"
    {"do": "init", "producer": "m1.p2", "transactional_id": "m"}, a producer of Kafka's clients
    {"do": "begin", "timeout_ms": 3000, "producer": "m1.p2"}    -> "m1.p2.t1", a name that only this history knows
    {"do": "offsets", "txn": "m1.p2.t1"}        of a consumer group, inside a transaction
    {"do": "end", "txn": "00…", "commit": true}
    {"do": "split", "segment": …}, {"do": "merge", "segments": [ … ]}
    {"do": "snapshot"}                          -> {"bank-0": ["c1.7", …], …}, all topics of the bank at one moment
    {"do": "read", "reader": "r1", "topic": …}  -> [["3", "c1.7"], …], what is new to this reader
    {"do": "read", "reader": "r1", "topic": …, "segment": 2}, of one that reads each segment by itself
    {"do": "final", "topic": …}                 -> [["3", "c1.7"], …], all there is when everything is quiet

A call that was refused for certain has the error as its result: its class, ": " and what it says. One of a client of
Kafka's that has failed is unknown, and its result is "Kafka ", the name of the error, ": " and what it says; one of
Pulsar's, "V5 " and the same. A message is known by its `id`, which is in its payload and in no other. `of` names the
message that it was made from. A write with `resends` is one of Pulsar's client, which makes another message of it if
its segment is sealed before the answer comes; the result says how many it has sent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.histories.calls import Call, Outcome


@dataclass(frozen=True, slots=True)
class Write:
    """A message that somebody sent; `txn` is None for a plain one."""

    id: str
    topic: str
    key: str
    txn: str | None
    amount: int
    of: str | None
    call: Call
    resends: bool = False

    @property
    def acknowledged(self) -> bool:
        return self.call.outcome is Outcome.OK

    @property
    def most(self) -> float:
        """How often it may be there. A transaction for which a message was sent again cannot be committed."""
        if not self.resends or self.txn is not None:
            return 1
        return float(self.call.result) if self.acknowledged else math.inf


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one topic after another showed, all at one revision."""

    topics: dict[str, list[str]]
    call: Call

    @property
    def ids(self) -> list[str]:
        return [message for ids in self.topics.values() for message in ids]


@dataclass(slots=True)
class History:
    writes: dict[str, Write] = field(default_factory=dict)
    begun: dict[str, Call] = field(default_factory=dict)
    """What began each transaction."""
    ends: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    """The attempts to end each transaction."""
    snapshots: list[Snapshot] = field(default_factory=list)
    reads: dict[tuple[str, str], list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    """(key, id) of everything that one reader saw of one topic, in the order in which it came."""
    segment_reads: dict[tuple[str, str, int], list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    """The same of everything that one reader saw of one segment of one topic."""
    final: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """(key, id) of what each topic shows in the end."""
    layouts: list[Call] = field(default_factory=list)
    """Splits and merges."""
    refused: list[Call] = field(default_factory=list)
    """Calls that certainly did nothing, with the error as their result."""
    producers: dict[str, Call] = field(default_factory=dict)
    """What has made each transactional producer of Kafka's clients, or has tried to."""
    kafka_errors: list[Call] = field(default_factory=list)
    """Calls of Kafka's clients that have failed, with the error as their result."""
    pulsar_errors: list[Call] = field(default_factory=list)
    """The same of Pulsar's clients."""

    @classmethod
    def of(cls, calls: Iterable[Call]) -> History:
        history = cls()
        for call in calls:
            history._take(call)
        return history

    def _take(self, call: Call) -> None:
        action = call.action
        if call.outcome is Outcome.FAILED:
            self.refused.append(call)
        if isinstance(call.result, str) and call.result.startswith("Kafka "):
            self.kafka_errors.append(call)
        if isinstance(call.result, str) and call.result.startswith("V5 "):
            self.pulsar_errors.append(call)
        match action["do"]:
            case "init":
                self.producers[action["producer"]] = call
            case "write":
                write = Write(**{name: value for name, value in action.items() if name != "do"}, call=call)
                assert write.id not in self.writes, f"{write.id} was sent twice"
                self.writes[write.id] = write
            case "begin" if call.outcome is Outcome.OK:
                self.begun[call.result] = call
            case "end":
                self.ends[action["txn"]].append(call)
            case "split" | "merge":
                self.layouts.append(call)
            case "snapshot" if call.outcome is Outcome.OK:
                self.snapshots.append(Snapshot(call.result, call))
            case "read" if call.result is not None:
                self._list_of_reader(action).extend((key, name) for key, name in call.result)
            case "final" if call.outcome is Outcome.OK:
                self.final[action["topic"]] = [(key, name) for key, name in call.result]

    def _list_of_reader(self, action: dict[str, Any]) -> list[tuple[str, str]]:
        if "segment" in action:
            return self.segment_reads[action["reader"], action["topic"], action["segment"]]
        return self.reads[action["reader"], action["topic"]]

    def transactions(self) -> dict[str, list[Write]]:
        """The writes of each transaction."""
        inside: dict[str, list[Write]] = defaultdict(list)
        for write in self.writes.values():
            if write.txn is not None:
                inside[write.txn].append(write)
        return inside

    def committed(self, txn: str) -> list[Call]:
        """The calls that were told so; they are never empty for a transaction that was known to be committed."""
        return self._told(txn, commit=True)

    def aborted(self, txn: str) -> list[Call]:
        return self._told(txn, commit=False)

    def _told(self, txn: str, *, commit: bool) -> list[Call]:
        ends = self.ends.get(txn, [])
        return [call for call in ends if call.outcome is Outcome.OK and call.action["commit"] is commit]

    def cannot_be_committed(self, txn: str) -> bool:
        """It is known to be aborted, or nobody ever asked for a commit without being refused for certain."""
        asked = [call for call in self.ends.get(txn, []) if call.action["commit"]]
        return bool(self.aborted(txn)) or all(call.outcome is Outcome.FAILED for call in asked)

    def visible(self) -> set[str]:
        """Everything that is seen in the end."""
        return {message for messages in self.final.values() for _, message in messages}

    def sightings(self) -> Iterable[tuple[str, str]]:
        """(where, id) of everything that anybody ever read."""
        for topic, messages in self.final.items():
            yield from ((f"in {topic} in the end", message) for _, message in messages)
        for (reader, topic), messages in self.reads.items():
            yield from ((f"in {topic} by {reader}", message) for _, message in messages)
        for (reader, topic, segment), messages in self.segment_reads.items():
            yield from ((f"in segment {segment} of {topic} by {reader}", message) for _, message in messages)
        for snapshot in self.snapshots:
            yield from ((f"in a snapshot of {snapshot.call.client}", message) for message in snapshot.ids)
