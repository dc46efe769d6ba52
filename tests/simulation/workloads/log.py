"""Producers that append to keys, outside of any transaction, while segments are split and merged under them.

Each sends the next entry of a key when the one before was answered, and sends an entry again, under its sequence, until
it is, first to the segment that it was sent to (DESIGN §5.13). One that was started again since does not know which one
that was: it sends the entry to the one who has the key now. So every entry is there once, and those of a key in the
order in which they were sent.

Others publish requests of some messages to the topic, through any broker, which divides them among the segments. They
too send again what was not answered, and what was acknowledged long ago, through whichever broker and whatever became
of its segments: the answer must be where each message lies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import Any

from metastore.txn import paths
from metatxn.wire.names import MessageId
from tests.simulation.client import Doubtful, Refused
from tests.simulation.history import Outcome, Retold, Write
from tests.simulation.workloads.base import Actor, Workload, whatever_comes
from tests.simulation.workloads.importing import Importer

PRODUCERS = 2
KEYS = 5
PATIENCE_S = (0.0, 1.0)
REMEMBERED = 200
"""This many requests a producer may send again: fewer than a broker remembers of it."""
_OF_THE_MOMENT = ("STORE_UNAVAILABLE", "UNREACHABLE", "OUTCOME_UNKNOWN", "STORAGE_FULL")
"""Refusals that say that it may be taken later."""
AWAY_S = 6.0
"""How long a producer takes, at most, until it is started again."""


class Log(Workload):
    name = "log"
    aims = (paths.TOPICS, paths.SEGMENTS, paths.SEGMENT_STATES)

    async def set_up(self) -> None:
        await self.create_topic("log", self.world.generator("log"))

    def start(self) -> None:
        for number in range(PRODUCERS):
            self.employ(f"producer-{number}", Producer)
            self.employ(f"requester-{number}", Requester)
        self.employ("importer", Importer)


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


@dataclass(frozen=True, slots=True)
class Request:
    """Messages that are published together under one sequence; those whose key is None go to one segment."""

    sequence: int
    writes: list[Write]
    keys: list[str | None]


class Requester(Actor):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sequences = count()
        self._unanswered: Request | None = None
        self._acknowledged: deque[Request] = deque(maxlen=REMEMBERED)

    async def act(self) -> None:
        if self._acknowledged and self.random.random() < 0.4:
            await self._send_again(self.random.choice(self._acknowledged))
            return
        if self._unanswered is not None and self.random.random() < 0.5:
            await self._until_the_layout_is_another()
        request = self._unanswered or self._new_request()
        try:
            ids = await self._publish(request)
        except (Doubtful, Refused) as error:
            if self._unanswered is not None or isinstance(error, Doubtful) or error.doubtful:
                self._unanswered = request
            else:
                for write in request.writes:
                    write.outcome = Outcome.FAILED
            raise
        for write, told in zip(request.writes, ids, strict=True):
            write.segment, write.position = told.segment, (told.position.ledger, told.position.entry)
            write.outcome, write.ended = Outcome.OK, self.workload.world.loop.time()
            self.history.retold.append(_retold(write, told))
        self._unanswered = None
        self._acknowledged.append(request)

    async def _until_the_layout_is_another(self) -> None:
        """A part of the request may have been appended, before the segments were split or merged."""
        (topic,) = self.workload.topics
        await whatever_comes(self.client.change_layout(topic))
        await asyncio.sleep(self.random.uniform(0, AWAY_S))

    def _new_request(self) -> Request:
        (topic,) = self.workload.topics
        sequence = next(self._sequences)
        together = f"{self.name}-{sequence}"
        names = (None, *(f"key-{number}" for number in range(KEYS)))
        keys = [self.random.choice(names) for _ in range(self.random.randint(1, 5))]
        writes = [self.note(topic, together if key is None else key, 0, None, None) for key in keys]
        return Request(sequence, writes, keys)

    async def _send_again(self, request: Request) -> None:
        try:
            ids = await self._publish(request)
        except Refused as refused:
            if refused.code not in _OF_THE_MOMENT:
                self.history.retold += [Retold(write, code=str(refused)) for write in request.writes]
            raise
        self.history.retold += map(_retold, request.writes, ids)

    async def _publish(self, request: Request) -> list[MessageId]:
        (topic,) = self.workload.topics
        messages = [
            {"key": key, "value": {"id": write.id, "key": write.key, "amount": 0}}
            for write, key in zip(request.writes, request.keys, strict=True)
        ]
        patience_s = self.random.choice(PATIENCE_S)
        return await self.client.publish_to_topic(topic, messages, self.name, request.sequence, patience_s)


def _retold(write: Write, told: MessageId) -> Retold:
    return Retold(write, told.segment, (told.position.ledger, told.position.entry), told.index)
