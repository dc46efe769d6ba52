"""The applies of one store that have no answer yet, and the deadline of each: what both group commits share."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from metastore.backends.joining import Footprint
from metastore.errors import MetastoreError, OutcomeUnknown, StoreUnavailable
from metastore.types import Applied


@dataclass(slots=True, eq=False, kw_only=True)
class PendingApply:
    """An apply that waits or is in flight."""

    footprint: Footprint
    cost: int
    size_bytes: int
    deadline: float
    answer: asyncio.Future[Applied]

    def succeed(self, applied: Applied) -> None:
        if not self.answer.done():
            self.answer.set_result(applied)

    def fail(self, error: MetastoreError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


P = TypeVar("P", bound=PendingApply)


class PendingApplies(ABC, Generic[P]):
    """Each apply gets an answer by its deadline. `server` is what the errors name."""

    def __init__(self, server: str, deadline_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._deadline_s = deadline_s
        self._queue: deque[P] = deque()
        self._expiry: asyncio.TimerHandle | None = None

    @abstractmethod
    def _unavailable(self, what: str) -> StoreUnavailable: ...

    @abstractmethod
    def _sent(self) -> Iterable[P]:
        """The applies in flight."""

    def _unsent(self) -> Iterable[P]:
        """The applies that wait."""
        return self._queue

    def _unanswered(self) -> Iterator[P]:
        return (one for one in chain(self._sent(), self._unsent()) if not one.answer.done())

    def _deadline(self) -> float:
        """The deadline of an apply that is called now."""
        return self._loop.time() + self._deadline_s

    def _enqueue(self, pending: P) -> None:
        self._queue.append(pending)
        if self._expiry is None:
            self._expiry = self._loop.call_at(pending.deadline, self._expire)

    async def _all_answered(self) -> None:
        while waiting := [pending.answer for pending in self._unanswered()]:
            await asyncio.wait(waiting)
        if self._expiry:
            self._expiry.cancel()

    def _expire(self) -> None:
        """Answer the applies whose deadline has passed, and look again when the next one passes."""
        now = self._loop.time()
        for pending in self._sent():
            if pending.deadline <= now:
                pending.fail(OutcomeUnknown(f"no answer from {self._server}"))
        for pending in self._unsent():
            if pending.deadline <= now:
                pending.fail(self._unavailable("the write was not sent"))
        self._queue = deque(pending for pending in self._queue if not pending.answer.done())
        next_deadline = min((pending.deadline for pending in self._unanswered()), default=None)
        self._expiry = self._loop.call_at(next_deadline, self._expire) if next_deadline is not None else None
