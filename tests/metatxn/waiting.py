"""Participants learn of a decision a moment after it was made; tests wait for what becomes visible."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import metatxn


def values(client: metatxn.Client, topic: str, **options: Any) -> list[Any]:
    return [message.value for message in client.reader(topic, **options)]


def eventually(read: Callable[[], Any], expected: Any, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while (found := read()) != expected:
        assert time.monotonic() < deadline, f"expected {expected!r}, and it stayed {found!r}"
        time.sleep(0.02)
