"""Producers that append to keys, outside of any transaction, while segments are split and merged under them.

Each sends the next entry of a key when the one before was answered, and sends an entry again, under its sequence, until
it is, first to the segment that it was sent to (DESIGN §5.13). One that was started again since does not know which one
that was: it sends the entry to whoever has the key now. So every entry is there once, and those of a key in the order
in which they were sent.
"""

from __future__ import annotations

import asyncio

from tests.simulation.client import Doubtful, Refused
from tests.simulation.history import Outcome, Write
from tests.simulation.workloads.base import Actor, Workload

PRODUCERS = 2
KEYS = 5
PATIENCE_S = (0.0, 1.0)
AWAY_S = 6.0
"""How long a producer takes, at most, until it is started again."""


class Log(Workload):
    name = "log"

    async def set_up(self) -> None:
        await self.create_topic("log", self.world.generator("log"))

    def start(self) -> None:
        for number in range(PRODUCERS):
            self.employ(f"producer-{number}", Producer)


class Producer(Actor):
    _unanswered: Write | None = None
    _knows_where = True
    """To which segment that one was sent first."""

    async def act(self) -> None:
        (topic,) = self.workload.topics
        if self._unanswered is not None and self.random.random() < 0.5:
            await self._start_again(topic, self._unanswered.key)
        write = self._unanswered or self.note(topic, f"key-{self.random.randrange(KEYS)}", 0, None, None)
        try:
            await self.send(write, self.name, self._numbers, patience_s=self.random.choice(PATIENCE_S))
        except (Doubtful, Refused) as error:
            if self._unanswered is not None or isinstance(error, Doubtful) or error.doubtful:
                self._unanswered = write
                write.outcome = Outcome.UNKNOWN
            raise
        if not self._knows_where:
            write.segment = None  # the position may be one in a parent
        self._unanswered, self._knows_where = None, True

    async def _start_again(self, topic: str, key: str) -> None:
        await asyncio.sleep(self.random.uniform(0, AWAY_S))
        await self.client.look_behind_splits(topic, key)
        self._knows_where = False
