"""Where a running service remembers transactions: by walking everything that can be reached from it.

So a structure that is added tomorrow is looked at, too. The edges of the simulation are not walked into, nor what a
coroutine has in its variables: a task that never ends is found by its name.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Iterator
from types import MethodType
from typing import Any

from coordinator.presumed import Presumed
from metatxn.wire.ids import TxnId
from participants.common.transaction_work import RecentWork

_BOUNDED = (RecentWork, Presumed)
"""Remembers what has been, for people or to save reads, within a bound that has a test of its own."""
_OURS = ("coordinator", "metastore", "metatxn", "participants", "sortedcontainers")
_HEX = re.compile(r"[0-9a-f]{32}")


def transactions_in(service: object, txn_ids: Collection[str]) -> Counter[str]:
    """How often one of these is named, by itself or in a key, at which path, like `.broker._segments[].buffer`."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    ahead = deque([*_members(service)])
    while ahead:
        path, value = ahead.popleft()
        if isinstance(value, TxnId | str):
            found[path] += any(name in txn_ids for name in _HEX.findall(str(value)))
        elif id(value) not in seen:
            seen.add(id(value))
            ahead.extend((path + step, held) for step, held in _held_by(value))
    return +found


def _held_by(value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from (("[]", each) for pair in value.items() for each in pair)
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from (("[]", each) for each in value)
    elif isinstance(value, MethodType):
        yield "", value.__self__
    elif isinstance(value, _BOUNDED):
        return
    elif type(value).__module__.partition(".")[0] in _OURS:
        yield from _members(value)


def _members(value: object) -> Iterator[tuple[str, Any]]:
    slots = [name for kind in type(value).__mro__ for name in _named(kind.__dict__.get("__slots__", ()))]
    for name in (*getattr(value, "__dict__", ()), *slots):
        if hasattr(value, name):
            yield f".{name}", getattr(value, name)


def _named(slots: str | tuple[str, ...]) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else slots
