"""Producers that append to keys, outside of any transaction, while segments are split and merged under them.

Each sends the next entry of a key when the one before was answered, and sends an entry again, under its sequence, until
it is, first to the segment that it was sent to (DESIGN §5.13). So every entry is there once, and those of a key in the
order in which they were sent.
"""

from __future__ import annotations

from tests.simulation.client import Doubtful, Refused
from tests.simulation.history import Outcome, Write
from tests.simulation.workloads.base import Actor, Workload

PRODUCERS = 2
KEYS = 5
PATIENCE_S = 1.0


class Log(Workload):
    name = "log"

    async def set_up(self) -> None:
        await self.create_topic("log", self.world.generator("log"))

    def start(self) -> None:
        for number in range(PRODUCERS):
            self.employ(f"producer-{number}", Producer)


class Producer(Actor):
    _unanswered: Write | None = None

    async def act(self) -> None:
        (topic,) = self.workload.topics
        write = self._unanswered or self.note(topic, f"key-{self.random.randrange(KEYS)}", 0, None, None)
        try:
            await self.send(write, self.name, self._numbers, patience_s=PATIENCE_S)
        except (Doubtful, Refused) as error:
            if self._unanswered is not None or isinstance(error, Doubtful) or error.doubtful:
                self._unanswered = write
                write.outcome = Outcome.UNKNOWN
            raise
        self._unanswered = None
