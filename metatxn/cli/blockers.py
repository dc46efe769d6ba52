"""Which transactions hold back the readers of which segments."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import metatxn
from metatxn.cli.output import print_note, print_rows
from metatxn.wire.broker import OpenTransaction, SegmentDetail
from metatxn.wire.coordinator import TransactionHeader
from metatxn.words import duration, short_id

BLOCKER_COLUMNS = ("BLOCKED_BY", "AGE", "OWNER", "KEY", "SEGMENT", "FIRST_ENTRY_AFTER")


@dataclass(frozen=True, slots=True)
class Blocker:
    """A transaction that holds back the readers of a segment after the position `after`. `owner` and `key` are None,
    too, if the caller may not see the transaction."""

    txn_id: str
    segment: str
    after: str
    age_ms: int
    owner: str | None
    key: str | None

    @property
    def row(self) -> Sequence[Any]:
        return short_id(self.txn_id), duration(self.age_ms), self.owner, self.key, self.segment, self.after

    def as_object(self) -> dict[str, Any]:
        return {
            "txn_id": self.txn_id,
            "segment": self.segment,
            "after": self.after,
            "age_ms": self.age_ms,
            "owner": self.owner,
            "transaction_key": self.key,
        }


def details(client: metatxn.Client, segments: Iterable[str]) -> dict[str, SegmentDetail | None]:
    """The segments as their owners see them; None for one that is not served now, or that the caller may not read."""
    return {segment: detail_of(client, segment) for segment in segments}


def detail_of(client: metatxn.Client, segment: str, max_open: int | None = None) -> SegmentDetail | None:
    """The same of one, with at most `max_open` of its open transactions."""
    try:
        return client.segment(segment, max_open=max_open)
    except (metatxn.NotFound, metatxn.NotAllowed, metatxn.StoreUnavailable, metatxn.ServiceUnreachable):
        return None


def blockers(
    client: metatxn.Client, segments: Iterable[SegmentDetail | None], clock: Callable[[], float] = time.time
) -> list[Blocker]:
    """The open transactions on these segments, the one that has been open longest first."""
    now_ms = int(clock() * 1000)
    headers: dict[str, TransactionHeader | None] = {}
    found = []
    for segment in segments:
        for waiting in segment.open_transactions if segment is not None else ():
            if waiting.txn_id not in headers:
                headers[waiting.txn_id] = _header(client, waiting.txn_id)
            found.append(_blocker(segment, waiting, headers[waiting.txn_id], now_ms))
    return sorted(found, key=lambda each: each.age_ms, reverse=True)


def _header(client: metatxn.Client, txn_id: str) -> TransactionHeader | None:
    try:
        return client.attach(txn_id).header
    except (metatxn.TransactionNotFound, metatxn.NotAllowed):
        return None


def _blocker(
    segment: SegmentDetail | None, waiting: OpenTransaction, header: TransactionHeader | None, now_ms: int
) -> Blocker:
    assert segment is not None
    since_ms = header.created_ms if header is not None and header.created_ms is not None else waiting.since_ms
    owner, key = (header.owner, header.transaction_key) if header is not None else (None, None)
    age_ms = max(0, now_ms - since_ms)
    return Blocker(waiting.txn_id, segment.segment, waiting.max_read_position, age_ms, owner, key)


def print_blockers(found: Sequence[Blocker]) -> None:
    """Print the blockers as a table, or nothing if there are none."""
    if found:
        print()
        print_rows(BLOCKER_COLUMNS, [each.row for each in found])


def note(topic: str, found: Sequence[Blocker], subscription: str | None = None) -> str | None:
    """One line for a person who reads the topic and gets nothing more, or None if nothing is held back. With a
    subscription it does not name the isolation that would read on."""
    if not found:
        return None
    first = found[0]
    who = "".join(f", {name} {value}" for name, value in (("owner", first.owner), ("key", first.key)) if value)
    number = len({each.txn_id for each in found})
    others = f", and {number - 1} more" if number > 1 else ""
    names = f"`metatxn topic show {shlex.quote(topic)}` names the segments"
    return (
        f"an open transaction holds back what follows: {short_id(first.txn_id)} "
        f"(open for {duration(first.age_ms)}{who}){others}. "
        f"{names}{'; `--isolation read_uncommitted` reads it anyway' if subscription is None else ''}."
    )


def held_back(client: metatxn.Client, topic: str) -> list[Blocker]:
    """The open transactions on all segments of a topic."""
    return blockers(client, details(client, (each.segment for each in client.topic(topic).segments)).values())


def say_what_holds_back(client: metatxn.Client, topic: str, subscription: str | None) -> None:
    """Everything that can be read now was read. If there is more, say why it cannot be read."""
    try:
        said = note(topic, held_back(client, topic), subscription)
    except metatxn.MetatxnError:
        return  # what was asked for was done
    if said is not None:
        print_note(said)
