"""Consuming a subscription: messages until they are acknowledged, in a transaction or for good."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from metatxn.connection import Connection, parsed, post
from metatxn.errors import MetatxnError
from metatxn.http import Call, json_body, json_of, path_of
from metatxn.reader import Message, message_of
from metatxn.transaction import Transaction
from participants.api.models import ReceiveAnswer

PREFETCH_MESSAGES = 100
WAIT_MS = 1000
SIGN_OF_LIFE_S = 10.0
"""A third of the time after which a broker takes a silent consumer for gone."""
MAX_IDS = 10_000


def subscription_path(topic: str, subscription: str, *more: str) -> str:
    return path_of("topics", topic, "subscriptions", subscription, *more)


class Consumer:
    """Use it from one thread, and close it: what it holds then returns at once. Made by `Client.subscribe`.

    Iterating waits for messages for ever. The broker takes a consumer that shows no sign of life for gone and gives
    its messages to others, so a thread shows one for as long as this object lives.
    """

    def __init__(self, connection: Connection, topic: str, subscription: str, name: str | None = None) -> None:
        self.topic = topic
        self.subscription = subscription
        self.name = name or f"consumer-{uuid.uuid4().hex}"
        self._given_name = name
        self._connection = connection
        self._received: deque[Message] = deque()
        self._closed = threading.Event()
        self._alive: threading.Thread | None = None

    # -- receiving ---------------------------------------------------------------------------------------------

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message, waited for; None when there was none within `timeout_s`.

        Raises `AlreadyExists` while another consumer has an exclusive subscription, `NotFound` once it is dropped.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._received:
            left_ms = WAIT_MS if deadline is None else int(1000 * (deadline - time.monotonic()))
            self._received.extend(self._fetch(PREFETCH_MESSAGES, max(0, min(WAIT_MS, left_ms))))
            if not self._received and left_ms <= 0:
                return None
        return self._received.popleft()

    def __iter__(self) -> Iterator[Message]:
        while not self._closed.is_set():
            if (message := self.receive()) is not None:
                yield message

    def _fetch(self, limit: int, wait_ms: int) -> list[Message]:
        self._stay_alive()
        try:
            answer = self._request(limit, wait_ms)
        except MetatxnError as error:
            if error.definite:
                raise
            self._start_over()
            return []
        return [message_of(self.topic, each, each.redelivery_count) for each in answer.messages]

    def _request(self, limit: int, wait_ms: int) -> ReceiveAnswer:
        body = {"consumer": self.name, "max": limit, "wait_ms": wait_ms}
        path = subscription_path(self.topic, self.subscription, "receive")
        call = Call("POST", path, content=json_body(body), idempotent=False, wait_s=wait_ms / 1000)
        return parsed(ReceiveAnswer, json_of(self._connection.home_of(self.topic, call)))

    def _start_over(self) -> None:
        """An answer was lost, and perhaps messages in it, which the broker believes to be here. So leave, and come
        back under another name; what was given returns, the messages that nobody has looked at yet too."""
        self._received.clear()
        with contextlib.suppress(MetatxnError):
            self._leave()
        self.name = f"{self._given_name or 'consumer'}-{uuid.uuid4().hex}"

    def _stay_alive(self) -> None:
        if self._alive is None:
            arguments = (weakref.ref(self), self._closed)
            self._alive = threading.Thread(target=_show_life, args=arguments, name="metatxn consumer", daemon=True)
            self._alive.start()

    # -- acknowledging -----------------------------------------------------------------------------------------

    def acknowledge(
        self, message: Message | Sequence[Message], txn: Transaction | None = None, writer: str | None = None
    ) -> None:
        """These messages, durably; inside `txn` they count once it is committed, and return when it is aborted.

        Raises `TransactionConflict`, `ExpiredTransaction`; whatever is raised, `txn` cannot be committed any more.
        """
        messages = [message] if isinstance(message, Message) else list(message)
        for start in range(0, len(messages), MAX_IDS):
            self._acknowledge("individual", messages[start : start + MAX_IDS], txn, writer)

    def acknowledge_cumulative(
        self, message: Message, txn: Transaction | None = None, writer: str | None = None
    ) -> None:
        """This message and all before it in its segment. As `acknowledge`."""
        self._acknowledge("cumulative", [message], txn, writer)

    def _acknowledge(self, kind: str, messages: Iterable[Message], txn: Transaction | None, writer: str | None) -> None:
        body: dict[str, Any] = {"kind": kind, "message_ids": [each.message_id for each in messages], "writer": writer}
        if txn is not None:
            txn.check_takes_operations()
            body["txn_id"] = txn.id
        try:
            self._connection.home_of(self.topic, post(subscription_path(self.topic, self.subscription, "acks"), body))
        except BaseException as failure:
            if txn is not None:
                txn.failed(failure)
            raise

    def negative_acknowledge(self, message: Message | Sequence[Message]) -> None:
        """Give these messages again, to this consumer or another one."""
        messages = [message] if isinstance(message, Message) else list(message)
        for start in range(0, len(messages), MAX_IDS):
            ids = [each.message_id for each in messages[start : start + MAX_IDS]]
            path = subscription_path(self.topic, self.subscription, "redeliver")
            self._connection.home_of(self.topic, post(path, {"message_ids": ids}))

    # -- life --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """What is not acknowledged returns at once. Idempotent."""
        if not self._closed.is_set():
            self._closed.set()
            self._received.clear()
            self._leave()

    def _leave(self) -> None:
        path = subscription_path(self.topic, self.subscription, "consumers", self.name)
        self._connection.home_of(self.topic, Call("DELETE", path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with contextlib.suppress(MetatxnError) if error is not None else contextlib.nullcontext():
            self.close()


def _show_life(reference: weakref.ref[Consumer], closed: threading.Event) -> None:
    """Until the consumer is closed, or forgotten by its user."""
    while not closed.wait(SIGN_OF_LIFE_S):
        consumer = reference()
        if consumer is None:
            return
        with contextlib.suppress(MetatxnError):
            consumer._request(0, 0)
        del consumer
