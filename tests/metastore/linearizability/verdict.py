"""Is a history what one atomic store would have told? Every way in which it is not, with the evidence.

registers    each one by itself is linearizable, reads of several being reads of each
lists        all of them together are strictly serializable
versions     a value has one version, which is the revision of the apply that wrote it
revisions    a call never sees an older revision than one that was answered before it began, and what was read at a
             revision has everything that was applied at or before it, and nothing later
refusals     the record that made a check fail does make it fail
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.histories.appends import Transaction, append_fault
from tests.histories.calls import Call, Outcome
from tests.histories.registers import Action, CompareAndSet, Read, Write, register_fault

REGISTER = re.compile(r"/register/|.*/old$")


def verdict(calls: Sequence[Call]) -> dict[str, str]:
    """What is wrong, and the evidence for it; empty when all is well. Raises `Undecided`."""
    keys = sorted({key for call in calls for key in _keys(call)})
    seen = [_with_absent(call, keys) for call in calls]
    found: dict[str, str | None] = {
        "lists are not strictly serializable": append_fault(_transactions(seen)),
        "a version is not that of the value": _version_fault(calls),
        "a revision went back": _time_fault(calls),
        "a read does not belong to its revision": _snapshot_fault(calls),
        "a check did hold": _refusal_fault(calls),
    }
    for key, of_key in sorted(_register_calls(seen).items()):
        found[f"{key} is not linearizable"] = register_fault(of_key)
    return {what: evidence for what, evidence in found.items() if evidence is not None}


def _keys(call: Call) -> Iterator[str]:
    yield from call.action.get("read", ())
    yield from call.action.get("expected", ())
    yield from call.action.get("writes", ())
    if call.outcome is Outcome.OK:
        yield from _records(call)


def _records(call: Call) -> dict[str, Any]:
    """What an answer says is there: `[value, version]`, or None for what is not."""
    records: dict[str, Any] = call.result.get("records") or call.result.get("lost") or {}
    return records


def _with_absent(call: Call, keys: Sequence[str]) -> Call:
    """A range also tells what is not there: all keys of the history (sorted) that it does not have."""
    if "range" not in call.action or call.outcome is not Outcome.OK:
        return call
    start, end = call.action["range"]
    absent: dict[str, Any] = dict.fromkeys(keys[bisect_left(keys, start) : bisect_left(keys, end)])
    return replace(call, result=call.result | {"records": absent | _records(call)})


def _value(record: Any) -> str | None:
    return None if record is None else record[0]


def _is_write(call: Call) -> bool:
    """An apply, unless it lost a check: then it is a look at what is there."""
    return "writes" in call.action and not (call.outcome is Outcome.OK and "lost" in call.result)


# -- registers --------------------------------------------------------------------------------------------------


def _register_calls(calls: Sequence[Call]) -> dict[str, list[Call]]:
    """What was done to each register, by itself."""
    found: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        for key, action in _register_actions(call):
            found[key].append(replace(call, action=action, result=None))
    return found


def _register_actions(call: Call) -> Iterator[tuple[str, Action]]:
    if _is_write(call):
        expected = call.action["expected"]
        for key, value in call.action["writes"].items():
            if REGISTER.match(key):
                yield key, CompareAndSet(expected[key], value) if expected else Write(value)
    elif call.outcome is Outcome.OK:
        for key, record in _records(call).items():
            if REGISTER.match(key):
                yield key, Read(_value(record))


# -- lists ------------------------------------------------------------------------------------------------------


def _transactions(calls: Sequence[Call]) -> list[Call]:
    found = []
    for call in calls:
        if _is_write(call):
            reads = {key: _elements(value) for key, value in call.action["expected"].items() if _is_list(key)}
            written = {key: _elements(value) for key, value in call.action["writes"].items() if _is_list(key)}
            assert all(made[:-1] == reads[key] for key, made in written.items())
            transaction = Transaction(reads, {key: made[-1] for key, made in written.items()})
        elif call.outcome is Outcome.OK:
            transaction = Transaction(
                {key: _elements(_value(record)) for key, record in _records(call).items() if _is_list(key)}
            )
        else:
            continue
        if transaction.reads:
            found.append(replace(call, action=transaction, result=None))
    return found


def _is_list(key: str) -> bool:
    return not REGISTER.match(key)


def _elements(value: str | None) -> tuple[str, ...]:
    return tuple(value.split()) if value else ()


# -- versions and revisions -------------------------------------------------------------------------------------


def _answered(calls: Sequence[Call]) -> list[Call]:
    return [call for call in calls if call.outcome is Outcome.OK]


def _revision(call: Call) -> int:
    revision: int = call.result["applied"] if "applied" in call.result else call.result["revision"]
    return revision


def _applied(calls: Sequence[Call]) -> list[Call]:
    return [call for call in _answered(calls) if "applied" in call.result]


def _version_fault(calls: Sequence[Call]) -> str | None:
    versions: dict[tuple[str, str], tuple[int, Call]] = {}
    for call in _applied(calls):
        for key, value in call.action["writes"].items():
            if value is not None:
                versions[key, value] = (_revision(call), call)
    for call in _answered(calls):
        for key, record in _records(call).items():
            if record is not None:
                version, witness = versions.setdefault((key, record[0]), (record[1], call))
                if version != record[1]:
                    return f"{key}:\n    {witness}\n    {call}"
    return None


def _time_fault(calls: Sequence[Call]) -> str | None:
    """A sweep over time: what had been answered when a call began."""
    answered = sorted(_answered(calls), key=lambda call: call.returned)
    newest: Call | None = None
    place = 0
    for call in sorted(_answered(calls), key=lambda call: call.invoked):
        while answered[place].returned < call.invoked:
            if newest is None or _revision(answered[place]) > _revision(newest):
                newest = answered[place]
            place += 1
        if newest is not None and _revision(call) < _revision(newest):
            return f"    {newest}\n    {call}"
    return None


def _snapshot_fault(calls: Sequence[Call]) -> str | None:
    writers: defaultdict[str, dict[int, Call]] = defaultdict(dict)
    for call in _applied(calls):
        for key in call.action["writes"]:
            writers[key][_revision(call)] = call
    revisions = {key: sorted(of_key) for key, of_key in writers.items()}
    for call in _answered(calls):
        for key, record in _records(call).items():
            if record is None:
                continue
            if record[1] > _revision(call):
                return f"{key} is of a later revision:\n    {call}"
            written = revisions.get(key, [])
            place = bisect_right(written, _revision(call))
            if place and written[place - 1] > record[1]:
                return f"{key} is older than:\n    {writers[key][written[place - 1]]}\n    {call}"
    return None


def _refusal_fault(calls: Sequence[Call]) -> str | None:
    for call in _answered(calls):
        for key, record in call.result.get("lost", {}).items():
            if _value(record) == call.action["expected"][key]:
                return f"    {call}"
    return None
