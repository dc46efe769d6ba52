"""A history: every call of every client, from the moment it was made to the moment it was answered.

    {"call": "a.7", "client": "a2", "event": "invoke", "at": 1200, "body": <what is asked>}
    {"call": "a.7", "client": "a2", "event": "ok",     "at": 1350, "body": <the answer>}

One JSON object a line, written before the call begins and after it has been answered, so that a process that is
killed leaves the truth behind. `at` is a monotonic clock, in ns, that all processes of the history share. The times
enclose the call: only what returned before another was invoked is known to have happened before it.

    ok        answered; its effect, if any, lies between the two moments
    failed    certainly nothing happened, nor will it
    unknown   it may have taken effect, or may at any time from its invocation on, or never

A call that was never answered, because its process died, is unknown.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `action` and `result` are what the model that judges it understands."""

    client: str
    action: Any
    outcome: Outcome
    invoked: int
    returned: int
    result: Any = None

    @property
    def latest(self) -> float:
        """The end of the time in which it can have taken effect."""
        return math.inf if self.outcome is Outcome.UNKNOWN else self.returned

    def precedes(self, other: Call) -> bool:
        """It was over before the other began, so every order must say so too."""
        return self.latest < other.invoked

    def __str__(self) -> str:
        answer = "" if self.result is None else f" -> {self.result}"
        return f"{self.invoked:>16} {self.returned:>16} {self.client:<12} {self.outcome:<8} {self.action}{answer}"


class Recorder:
    """Writes the calls of one process down. `sink` takes whole lines; what it was given must survive the process."""

    def __init__(self, sink: Callable[[bytes], object], process: str, clock: Callable[[], int]) -> None:
        self._sink = sink
        self._process = process
        self._clock = clock
        self._numbers = itertools.count()

    def invoke(self, client: str, action: Any) -> str:
        """To be called before the call is made. Returns its name, for `answer`."""
        call = f"{self._process}.{next(self._numbers)}"
        self._write(call, client, "invoke", action)
        return call

    def answer(self, call: str, client: str, outcome: Outcome, result: Any = None) -> None:
        """To be called after the call was answered."""
        self._write(call, client, outcome, result)

    def _write(self, call: str, client: str, event: str, body: Any) -> None:
        entry = {"call": call, "client": client, "event": event, "at": self._clock(), "body": body}
        self._sink(json.dumps(entry, separators=(",", ":")).encode() + b"\n")


def read_calls(lines: Iterable[bytes]) -> list[Call]:
    """The calls of a history, by the time they were made. The lines of several processes may be mixed."""
    begun: dict[str, dict[str, Any]] = {}
    calls: list[Call] = []
    end = 0
    for line in lines:
        entry = json.loads(line)
        end = max(end, entry["at"])
        if entry["event"] == "invoke":
            assert entry["call"] not in begun, f"{entry['call']} was made twice"
            begun[entry["call"]] = entry
            continue
        start = begun.pop(entry["call"])
        outcome = Outcome(entry["event"])
        calls.append(Call(start["client"], start["body"], outcome, start["at"], entry["at"], entry["body"]))
    calls += [Call(open_["client"], open_["body"], Outcome.UNKNOWN, open_["at"], end) for open_ in begun.values()]
    return sorted(calls, key=lambda call: call.invoked)
