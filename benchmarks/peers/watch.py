"""A reader in a process of its own: when it had all messages of each transaction. See `work.Watched`."""

from __future__ import annotations

import importlib
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.peers.work import hear, number_of, say

Watch = Callable[[str, list[str], Callable[[], None], Callable[[str], bool]], None]
"""Reads topics from their ends: says when it is ready, and hands over each message until it is told that this was the
last one."""


def main() -> None:
    asked: dict[str, Any] = json.loads(hear())
    missing = Counter(dict.fromkeys(range(asked["transactions"]), asked["messages"]))
    complete: dict[int, float] = {}

    def take(value: str) -> bool:
        number = number_of(value)
        missing[number] -= 1
        if missing[number] == 0:
            complete[number] = time.monotonic()
        return bool(len(complete) == asked["transactions"])

    watch: Watch = importlib.import_module(f"benchmarks.peers.{asked['client']}_work").watch
    watch(asked["address"], asked["topics"], lambda: say("ready"), take)
    say(json.dumps([complete[number] for number in sorted(complete)]))


if __name__ == "__main__":
    main()
