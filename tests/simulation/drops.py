"""What the store says when messages are dropped: written down at that moment, and judged by `checkers.kept`.

Policies, cursors and sizes are read here from the records themselves, because what a broker makes of them is judged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from metastore.keys import escape, unescape
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metastore.types import Changes
from metatxn.wire.names import namespace_of
from tests.simulation.checkers.refusals import topic_of
from tests.simulation.client import parse_position
from tests.simulation.history import Dropped, Expired, History
from tests.simulation.store import StoreServer

SETTINGS = ("retention_ms", "retention_bytes", "retention", "ttl_ms", "backlog", "backlog_ms", "backlog_bytes")


class Witness:
    """Hears of every drop in a segment of a topic, and of what expires for the subscription `unused`, for which nobody
    acknowledges anything. `clock` tells the seconds that have really passed."""

    def __init__(self, store: StoreServer, history: History, clock: Callable[[], float], unused: str) -> None:
        self._unused = f"/{escape(unused)}/"
        self._marks: dict[str, tuple[int, int]] = {}
        self._store = store
        self._history = history
        self._clock = clock
        self._sealed_bytes: dict[tuple[str, int], int] = {}
        """Of each ledger as it was sealed: a rewriting leaves out what nobody could read."""
        store.listeners.append(self._hear)

    def _hear(self, changes: Changes) -> None:
        for event in changes.events:
            if event.key.startswith(paths.SEGMENTS) and event.record is not None:
                segment, record = unescape(event.key.removeprefix(paths.SEGMENTS)), json.loads(event.record.value)
                for ledger in record.get("ledgers", []):
                    place = segment, ledger["id"]
                    self._sealed_bytes[place] = max(self._sealed_bytes.get(place, 0), ledger.get("bytes") or 0)
                first = parse_position(record.get("first_position") or "0:-1")
                before = self._history.trimmed.get(segment, (0, -1))
                if first > before:
                    self._history.trimmed[segment] = first
                    self._write_down(record["topic"], segment, before, first, changes.revision)
            elif self._unused in event.key and event.key.endswith("/mark-delete") and event.record is not None:
                self._hear_mark(event.key, json.loads(event.record.value)["before"])

    def _hear_mark(self, key: str, place: str) -> None:
        segment = unescape(key.removeprefix(paths.CURSORS).partition("/")[0])
        ledger, entry, _ = map(int, place.split(":"))
        before, self._marks[segment] = self._marks.get(segment, (0, -1)), (ledger, entry)
        topic = topic_of(segment)
        policy = self.policy(topic)
        evicts = policy.get("backlog") == "evict"
        self._history.expired.append(
            Expired(
                segment,
                before,
                (ledger, entry),
                self._clock(),
                policy.get("ttl_ms", -1),
                self._history.trimmed.get(segment, (0, -1)),
                policy.get("backlog_ms", -1) if evicts else -1,
                policy.get("backlog_bytes", -1) if evicts else -1,
            )
        )

    def _write_down(
        self, topic: str, segment: str, before: tuple[int, int], first: tuple[int, int], revision: int
    ) -> None:
        policy = self.policy(topic)
        self._history.dropped.append(
            Dropped(
                segment,
                before,
                first,
                revision,
                self._clock(),
                policy.get("retention_ms", -1),
                policy.get("retention_bytes", -1),
                policy.get("retention") == "hard",
                sum(
                    self._sealed_bytes.get((each, ledger["id"]), 0)
                    for each, row in self.ledgers(topic).items()
                    for ledger in row
                ),
                dict(self.marks(topic, segment)),
            )
        )

    def policy(self, topic: str) -> dict[str, Any]:
        """What counts for the topic: its own, else its namespace's, else the cluster's."""
        found: dict[str, Any] = {}
        for key in (paths.CLUSTER_POLICY, paths.namespace_policy(namespace_of(topic)), paths.topic(topic)):
            record = self._record(key) or {}
            told = (record.get("policy") or {}) if key == paths.topic(topic) else record
            found |= {name: told[name] for name in SETTINGS if told.get(name) is not None}
        return found

    def ledgers(self, topic: str) -> dict[str, list[dict[str, Any]]]:
        """By segment, from the oldest on."""
        found = {}
        for segment in (self._record(paths.topic(topic)) or {})["segments"]:
            found[segment] = (self._record(paths.segment(segment)) or {}).get("ledgers", [])
        return found

    def can_be_emptied(self, segment: str) -> bool:
        """Whether the policy may drop everything of the segment, which is sealed, and something is left of it."""
        told = self._record(paths.segment(segment))
        record = SegmentRecord.model_validate(told) if told is not None else None
        return record is not None and record.state == "sealed" and not record.is_bare

    def marks(self, topic: str, segment: str) -> Iterator[tuple[str, tuple[int, int]]]:
        """Of each subscription the entry up to which it has acknowledged everything, that one not included."""
        for stored in self._store.records(paths.subscriptions(topic)):
            name, told = unescape(stored.key.rpartition("/")[2]), json.loads(stored.value)
            if told.get("deleted"):
                continue
            mark = self._record(paths.cursor_mark(segment, name, told["incarnation"]))
            place = mark["before"] if mark is not None else (told.get("starts") or {}).get(segment, "0:0:0")
            ledger, entry, _ = map(int, place.split(":"))
            yield name, (ledger, entry)

    def _record(self, key: str) -> dict[str, Any] | None:
        stored = next((each for each in self._store.records(key) if each.key == key), None)
        found: dict[str, Any] | None = json.loads(stored.value) if stored is not None else None
        return found


def over(witness: Witness, topic: str, now_ms: int) -> Iterator[str]:
    """The oldest ledgers of segments that the policy frees and that are there. The last one of a segment stays."""
    policy = witness.policy(topic)
    kept_ms, kept_bytes = policy.get("retention_ms", -1), policy.get("retention_bytes", -1)
    rows = witness.ledgers(topic)
    left = sum(ledger.get("bytes") or 0 for row in rows.values() for ledger in row)
    ages = {
        segment: row[0].get("last_ms") or 0
        for segment, row in rows.items()
        if len(row) > 1 or witness.can_be_emptied(segment)
    }
    for segment, row in rows.items():
        if len(row) < 2:
            continue
        ledger = row[0]
        marks = [] if policy.get("retention") == "hard" else [place for _, place in witness.marks(topic, segment)]
        if ledger.get("entries") is None or min(marks, default=(ledger["id"] + 1, 0)) < (
            ledger["id"],
            ledger["entries"],
        ):
            continue
        old = kept_ms != -1 and ages[segment] + kept_ms < now_ms
        oldest = ages[segment] == min(ages.values())
        if old or (oldest and kept_bytes != -1 and left - (ledger.get("bytes") or 0) >= kept_bytes):
            yield f"ledger {ledger['id']} of {segment}, of {ledger.get('bytes')} of {left} bytes, at {ages[segment]}"
