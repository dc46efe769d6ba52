"""`metatxn topic list --sizes`: how much each topic has, what goes through it, and where readers are held back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import metatxn
from metatxn.cli.blockers import detail_of
from metatxn.cli.options import ServiceOptions
from metatxn.cli.output import as_json, print_json, print_more, print_rows
from metatxn.cli.progress import each_of
from metatxn.topic_totals import TopicTotals, active_segments
from metatxn.wire.broker import TopicInfo
from metatxn.words import size_text

COLUMNS = ("TOPIC", "SEGMENTS", "ENTRIES", "SIZE", "IN", "OUT", "HELD_BACK", "NOT_KNOWN")


def print_sizes(session: ServiceOptions, client: metatxn.Client, found: Iterator[TopicInfo], limit: int) -> None:
    """Print the first `limit` topics with the totals of their active segments, which are asked a few at a time."""
    listed = list(itertools.islice(found, limit))
    names = [active_segments(topic) for topic in listed]
    wanted = list(itertools.chain.from_iterable(names))
    answers = iter(each_of("segments", partial(detail_of, client, max_open=0), wanted))
    rows = []
    for topic, segments in zip(listed, names, strict=True):
        details = [detail for detail in itertools.islice(answers, len(segments)) if detail is not None]
        rows.append(TopicTotals(topic, len(segments), details))
    if session.json:
        print_json([_object(row) for row in rows])
    else:
        print_rows(COLUMNS, map(_cells, rows))
    print_more(found, len(listed), limit)


def _object(row: TopicTotals) -> dict[str, Any]:
    sizes = {name: row.total(name) for name in ("entries", "size_bytes", "waiting_entries", "waiting_bytes")}
    counts = {"segments": row.active, "held_back": row.held, "not_known": row.missing}
    return {"name": row.topic.name} | counts | sizes | {"rates": as_json(row.rates)}


def _cells(row: TopicTotals) -> tuple[Any, ...]:
    rates, size_bytes = row.rates, row.total("size_bytes")
    speeds = (f"{rates.messages_in:.1f}/s", f"{rates.messages_out:.1f}/s") if rates is not None else (None, None)
    size = size_text(size_bytes) if size_bytes is not None else None
    return row.topic.name, row.active, row.total("entries"), size, *speeds, row.held or None, row.missing or None
