"""What holds back a person who follows a topic, told while nothing comes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Self, TypeVar

import metatxn
from metatxn.cli.blockers import held_back, note
from metatxn.cli.output import print_note

FIRST_LOOK_S = 2.0
LONGEST_PAUSE_S = 30.0

T = TypeVar("T")


class FollowingNote:
    """Inside its `with`, a note says which transaction holds the topic back when no message has come for a while, and
    again when it is another one. The pauses between two looks double up to half a minute. A thread looks, because the
    caller waits for messages."""

    def __init__(self, client: metatxn.Client, topic: str, subscription: str | None) -> None:
        self._client = client
        self._topic = topic
        self._subscription = subscription
        self._news = threading.Event()
        self._ended = False
        self._told: str | None = None
        self._thread = threading.Thread(target=self._look, name="what holds readers back", daemon=True)

    def over(self, messages: Iterable[T]) -> Iterator[T]:
        """The messages, as they come."""
        for message in messages:
            self._news.set()
            yield message

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._news.set()

    def _look(self) -> None:
        pause_s = FIRST_LOOK_S
        while not self._ended:
            if self._news.wait(pause_s):
                self._news.clear()
                pause_s = FIRST_LOOK_S
                continue
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            with suppress(metatxn.MetatxnError):  # the reader meets it, too, and tells of it
                self._tell()

    def _tell(self) -> None:
        found = held_back(self._client, self._topic)
        first = found[0].txn_id if found else None
        said = note(self._topic, found, self._subscription)
        if said is not None and first != self._told and not self._ended:
            print_note(said)
        self._told = first
