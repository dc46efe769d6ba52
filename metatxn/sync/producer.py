"""`Producer`: the blocking counterpart of `AsyncProducer`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from datetime import datetime
from typing import Any

from metatxn.outgoing import Portion, Queued
from metatxn.producer import AsyncProducer
from metatxn.sync.background import Background, Facade, blocking
from metatxn.sync.transaction import Transaction
from metatxn.transaction import AsyncTransaction, inside


class Sent(Future[str]):
    """The future of a queued message, which cannot be withdrawn.

    A program that sends many messages looks at few of their futures. A future has a lock, a condition and two lists,
    and Python's garbage collector visits all of them as long as the message waits. So they are made when somebody
    first uses one of them, which `__getattr__` sees.
    """

    _outcome: str | BaseException | None = None
    _made = False
    _making = threading.RLock()

    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        with self._making:
            first, self._made = not self._made, True
            if first:
                super().__init__()
            outcome = self._outcome
        if first and outcome is not None:
            self._tell(outcome)
        return super().__getattribute__(name)

    def cancel(self) -> bool:
        return False

    def cancelled(self) -> bool:
        return False

    def set_result(self, result: str) -> None:
        with self._making:
            self._outcome = result
            made = self._made
        if made:
            super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        with self._making:
            self._outcome = exception
            made = self._made
        if made:
            super().set_exception(exception)

    def _tell(self, outcome: str | BaseException | None) -> None:
        if isinstance(outcome, str):
            super().set_result(outcome)
        else:
            super().set_exception(outcome)


class Producer(Facade[AsyncProducer]):
    """A producer of one topic, for any thread. Messages of one key in one transaction are appended in the order in
    which they were sent. To order messages of different transactions, wait for the futures, or use `flush`.

    Waking a loop in another thread costs more than encoding a message. So messages are collected here, and the loop is
    woken once for all that are here when it comes.
    """

    flush = blocking(AsyncProducer.flush)
    close = blocking(AsyncProducer.close)

    def __init__(self, core: AsyncProducer, background: Background) -> None:
        super().__init__(core, background)
        self._lock = threading.Lock()
        self._laid_down: list[tuple[AsyncTransaction | None, list[Queued]]] = []
        """By transaction, in order."""
        self._bytes = 0
        self._woken = False
        self._known: tuple[Transaction, AsyncTransaction, str] | None = None
        """The transaction of the last message, if it was in one that takes messages."""

    @property
    def topic(self) -> str:
        return self._core.topic

    @property
    def name(self) -> str | None:
        return self._core.name

    @property
    def epoch(self) -> int | None:
        """The epoch of an exclusive producer: a later one of the topic has a higher epoch."""
        return self._core.epoch

    def send(
        self,
        value: Any,
        key: str | None = None,
        txn: Transaction | None = None,
        properties: dict[str, str] | None = None,
        *,
        deliver_at: datetime | None = None,
        sequence: int | None = None,
    ) -> Future[str]:
        """Queue one message, waiting while too much is pending. The future returns the position of its entry once that
        is durable. A callback of the future must not wait for anything of this client.

        `value` is anything that JSON can hold, or bytes. With `deliver_at`, a time with a time zone, shared and
        key_shared subscriptions deliver the message at that time; others, and readers, do not wait. `sequence` is for
        a sequenced producer. Raises `TypeError` or `ValueError` for a value that is not JSON, `NotFound` for a topic
        that does not exist, and the transaction's first failure if it has one: such a transaction cannot be committed.
        """
        future = Sent()
        outgoing = self._core.outgoing(value, key, properties, future, deliver_at, sequence, inside=txn is not None)
        self._lay_down(deque((outgoing,)), txn)
        self._core.last_sequence = outgoing.sequence
        return future

    def send_many(
        self, values: Iterable[Any], keys: Iterable[str | None] | None = None, txn: Transaction | None = None
    ) -> Future[list[str]]:
        """Queue messages, those of each key in this order, as `send` does for each of them, and wait while too much is
        pending. `keys` has a key or None for each value. The future returns the positions of their entries, in the
        order of `values`, once all messages are durable, or raises the first failure; then others may be durable,
        unless they are in a transaction, which can no longer be committed.

        From some hundred messages for each segment on this takes a third of the CPU time of as many `send`. The whole
        list is encoded before anything is sent. If a value is not JSON, or `keys` has another length, nothing is
        sent. Raises the errors of `send`.
        """
        with inside(txn.core if txn is not None else None):
            self._wait_for_space()
        future: Future[list[str]] = Future()
        future.set_running_or_notify_cancel()  # the messages cannot be withdrawn
        self._lay_down(self._core.together(values, keys, future), txn)
        return future

    def _lay_down(self, messages: deque[Queued], txn: Transaction | None) -> None:
        """Lay messages down for the loop, waiting while too much is pending. Those behind the first one fail on the
        loop if they can no longer be sent."""
        delivery, core, txn_id = self._core.delivery, None, None
        if txn is not None:
            known = self._known
            if known is None or known[0] is not txn:
                if txn.core.already_committed:
                    txn.core.check_takes_operations()
                known = self._known = (txn, txn.core, txn.id)
            _, core, txn_id = known
        try:
            self._wait_for_space()
            delivery.check(txn_id)
            while messages:
                outgoing = messages.popleft()
                size = len(outgoing.payload if isinstance(outgoing, Portion) else outgoing.content)
                with self._lock:
                    if not self._woken:
                        # Under the lock, so that a call of this thread to the loop after its `send` comes after this.
                        self._background.call_soon(self._take_over)
                        self._woken = True
                    if not self._laid_down or self._laid_down[-1][0] is not core:
                        self._laid_down.append((core, []))
                    self._laid_down[-1][1].append(outgoing)
                    self._bytes += size
                if messages:
                    self._wait_for_space()
        except BaseException as failure:
            if core is not None:
                core.failed(failure)
            raise

    def _wait_for_space(self) -> None:
        delivery = self._core.delivery
        if delivery.layout is None or delivery.pending_bytes + self._bytes >= delivery.max_pending_bytes:
            self._background.run(self._taken_over())

    async def _taken_over(self) -> None:
        """Wait until the topic is known, the messages collected here are queued, and not too much is pending."""
        await self._core.delivery.open()
        self._take_over()
        await self._core.delivery.space()

    def _take_over(self) -> None:
        """Take over the collected messages. Runs on the loop."""
        with self._lock:
            taken, self._laid_down = self._laid_down, []
            self._bytes = 0
            self._woken = False
        for txn, messages in taken:
            if txn is not None:
                txn.joined_by(self._core.delivery)
            self._core.delivery.add(messages, txn.id if txn is not None else None)
