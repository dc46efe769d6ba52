"""Sending messages: JSON values or bytes, routed by key, batched while an earlier batch is on its way."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from metatxn.connection import Connection
from metatxn.delivery import Delivery
from metatxn.errors import MetatxnError
from metatxn.topics import Layout
from metatxn.transaction import Transaction
from participants.api.models import MESSAGES_MEDIA_TYPE

MAX_ENTRY_BYTES = 1024 * 1024
MAX_ENTRY_MESSAGES = 1000
STICKY_MESSAGES = 100
"""So many messages without a key go to one segment before the next one's turn, so that they share entries."""


@dataclass(slots=True)
class Outgoing:
    key: str | None
    encoded: bytes
    turn: int
    future: Future[str]


class MessageFormat:
    content_type = MESSAGES_MEDIA_TYPE

    def size(self, item: Outgoing) -> int:
        return len(item.encoded) + 1

    def split(self, item: Outgoing, layout: Layout) -> Iterable[tuple[str, Outgoing]]:
        if item.key is None:
            return [(layout.any_segment(item.turn // STICKY_MESSAGES), item)]
        return [(layout.segment_of(item.key), item)]

    def encode(self, items: list[Outgoing]) -> tuple[bytes, int]:
        return b"[" + b",".join(item.encoded for item in items) + b"]", len(items)

    def done(self, items: list[Outgoing], outcome: str | MetatxnError) -> None:
        for item in items:
            if isinstance(outcome, str):
                item.future.set_result(outcome)
            else:
                item.future.set_exception(outcome)


class Producer:
    """Usable from any thread. Messages of one key (and one transaction) are appended in the order sent; those of
    different transactions are ordered only by waiting for the futures, or by `flush`."""

    def __init__(
        self, connection: Connection, topic: str, name: str | None, max_entry_messages: int = MAX_ENTRY_MESSAGES
    ) -> None:
        self.topic = topic
        self.name = name
        self._turns = itertools.count()
        self._delivery = Delivery(
            connection,
            topic,
            MessageFormat(),
            name=name,
            max_entry_bytes=MAX_ENTRY_BYTES,
            max_entry_items=max_entry_messages,
        )

    def send(
        self,
        value: Any,
        key: str | None = None,
        txn: Transaction | None = None,
        properties: dict[str, str] | None = None,
    ) -> Future[str]:
        """Queue one message; the future holds the position of its entry once that is durable.

        `value` is anything JSON can hold, or bytes. Waits while 32 MiB are pending. Raises `TypeError` or
        `ValueError` for a value that is not JSON, `NotFound` for a topic that does not exist, and the transaction's
        first failure if it has one: such a transaction cannot be committed.
        """
        message: dict[str, Any] = {"key": key, "properties": properties}
        message = {name: part for name, part in message.items() if part is not None}
        if isinstance(value, bytes | bytearray | memoryview):
            message["value_base64"] = base64.b64encode(value).decode()
        else:
            message["value"] = value
        encoded = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
        outgoing = Outgoing(key, encoded, next(self._turns), Future())
        outgoing.future.set_running_or_notify_cancel()  # what is queued cannot be taken back
        if txn is not None:
            txn.joined_by(self._delivery)
        self._delivery.put(outgoing, txn.id if txn else None)
        return outgoing.future

    def flush(self) -> None:
        """Wait until everything sent so far is durable. Raises the first failure since the last flush; that of a
        transaction is also raised by its commit."""
        self._delivery.flush(everything=True)

    def close(self) -> None:
        """`flush`, and take no more messages."""
        self._delivery.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with contextlib.suppress(MetatxnError) if error is not None else contextlib.nullcontext():
            self.close()
