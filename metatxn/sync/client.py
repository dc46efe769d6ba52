"""`Client`: the blocking counterpart of `AsyncClient`."""

from __future__ import annotations

import atexit
import contextlib
import random
import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, overload

import pyarrow as pa

from metatxn.client import AsyncClient, connect_async
from metatxn.reader import Message
from metatxn.sync.background import Background, Facade, blocking, blocking_making, iterating, making
from metatxn.sync.consumer import Consumer
from metatxn.sync.producer import Producer
from metatxn.sync.read_hold import ReadHold
from metatxn.sync.reader import Reader
from metatxn.sync.table_writer import TableWriter
from metatxn.sync.topics_consumer import TopicsConsumer
from metatxn.sync.transaction import Transaction
from metatxn.table_writer import DEFAULT_ENTRY_BYTES
from metatxn.tables import OnError
from metatxn.transport.api import Transport
from metatxn.wire.broker import DEFAULT_MAX_REDELIVERIES, Isolation
from metatxn.wire.record_batches import Codec

_OPEN: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close all clients: what was sent must not be lost because no one waited for it."""
    with contextlib.ExitStack() as stack:
        for client in list(_OPEN):
            stack.callback(client.close)


def connect(
    url: str,
    token: str | None = None,
    request_timeout_s: float = 30,
    *,
    ca: str | None = None,
    listener: str | None = None,
    transport: Transport | None = None,
    randomness: random.Random | None = None,
) -> Client:
    """A blocking client; the parameters are those of `connect_async`."""
    options: dict[str, Any] = {"ca": ca, "listener": listener, "transport": transport, "randomness": randomness}
    core = connect_async(url, token, request_timeout_s, **options)
    return Client(core, Background(core.let_go))


class Client(Facade[AsyncClient]):
    """The client for threads, made by `connect`. It may be used from any thread, but not after a fork. Every method may
    raise any `MetatxnError`; the docstrings name the errors to expect. A client that is still open when the program
    ends is closed then."""

    def __init__(self, core: AsyncClient, background: Background) -> None:
        super().__init__(core, background)
        _OPEN.add(self)

    begin = blocking_making(AsyncClient.begin, Transaction)
    transaction = begin
    """`begin` for use with `with`, which commits on leaving, and aborts on an exception or a failed send."""
    attach = making(AsyncClient.attach, Transaction)
    transactions = iterating(AsyncClient.transactions)
    hanging = iterating(AsyncClient.hanging)
    stored_messages = iterating(AsyncClient.stored_messages)
    hanging_costs = blocking(AsyncClient.hanging_costs)
    operations = iterating(AsyncClient.operations)
    transaction_work = blocking(AsyncClient.transaction_work)
    transaction_records = iterating(AsyncClient.transaction_records)
    stored_records = iterating(AsyncClient.stored_records)
    check_store = iterating(AsyncClient.check_store)
    accepted_tokens = iterating(AsyncClient.accepted_tokens)
    audit_log = iterating(AsyncClient.audit_log)
    broker_segments = iterating(AsyncClient.broker_segments)

    connect_key = blocking(AsyncClient.connect_key)
    keys = iterating(AsyncClient.keys)
    key = blocking(AsyncClient.key)
    fence_key = blocking(AsyncClient.fence_key)
    delete_key = blocking(AsyncClient.delete_key)

    quota = blocking(AsyncClient.quota)
    set_quota = blocking(AsyncClient.set_quota)
    quotas = iterating(AsyncClient.quotas)

    create_topic = blocking(AsyncClient.create_topic)
    topic = blocking(AsyncClient.topic)
    topics = iterating(AsyncClient.topics)
    count_topics = blocking(AsyncClient.count_topics)
    delete_topic = blocking(AsyncClient.delete_topic)
    topic_policy = blocking(AsyncClient.topic_policy)
    set_topic_policy = blocking(AsyncClient.set_topic_policy)
    namespace_policy = blocking(AsyncClient.namespace_policy)
    set_namespace_policy = blocking(AsyncClient.set_namespace_policy)
    cluster_policy = blocking(AsyncClient.cluster_policy)
    set_cluster_policy = blocking(AsyncClient.set_cluster_policy)
    topic_schema = blocking(AsyncClient.topic_schema)
    schema = blocking(AsyncClient.schema)
    check_schema = blocking(AsyncClient.check_schema)
    set_schema = blocking(AsyncClient.set_schema)
    segment = blocking(AsyncClient.segment)
    position_at = blocking(AsyncClient.position_at)
    position_before = blocking(AsyncClient.position_before)
    split_segment = blocking(AsyncClient.split_segment)
    merge_segments = blocking(AsyncClient.merge_segments)
    seal_segment = blocking(AsyncClient.seal_segment)
    trim_segment = blocking(AsyncClient.trim_segment)
    delete_segment = blocking(AsyncClient.delete_segment)
    horizons = blocking(AsyncClient.horizons)
    cluster = blocking(AsyncClient.cluster)
    service_status = blocking(AsyncClient.service_status)
    throughput = blocking(AsyncClient.throughput)
    broker = blocking(AsyncClient.broker)
    drain_broker = blocking(AsyncClient.drain_broker)
    undrain_broker = blocking(AsyncClient.undrain_broker)
    access = blocking(AsyncClient.access)
    upgrade_status = blocking(AsyncClient.upgrade_status)
    finalize_upgrade = blocking(AsyncClient.finalize_upgrade)

    producer = making(AsyncClient.producer, Producer)
    exclusive_producer = blocking_making(AsyncClient.exclusive_producer, Producer)
    read_hold = blocking_making(AsyncClient.read_hold, ReadHold)
    read_holds = blocking(AsyncClient.read_holds)
    reader = blocking_making(AsyncClient.reader, Reader)
    subscribe = blocking_making(AsyncClient.subscribe, Consumer)
    subscribe_topics = blocking_making(AsyncClient.subscribe_topics, TopicsConsumer)
    create_subscription = blocking(AsyncClient.create_subscription)
    subscriptions = iterating(AsyncClient.subscriptions)
    all_subscriptions = iterating(AsyncClient.all_subscriptions)
    consumer = making(AsyncClient.consumer, Consumer)
    subscription = blocking(AsyncClient.subscription)
    publish = blocking(AsyncClient.publish)
    seek = blocking(AsyncClient.seek)
    preview_seek = blocking(AsyncClient.preview_seek)
    redrive = blocking(AsyncClient.redrive)
    preview_redrive = blocking(AsyncClient.preview_redrive)
    drop_subscription = blocking(AsyncClient.drop_subscription)
    read_segment = iterating(AsyncClient.read_segment)
    read_frames = blocking(AsyncClient.read_frames)
    decode_entry = staticmethod(AsyncClient.decode_entry)

    def acknowledge_up_to(self, topic: str, subscription: str, positions: Mapping[str, str], txn: Transaction) -> None:
        """See `AsyncClient.acknowledge_up_to`."""
        self._background.run(self._core.acknowledge_up_to(topic, subscription, positions, txn.core))

    def retry_later(
        self,
        consumer: Consumer | TopicsConsumer,
        message: Message | Sequence[Message],
        after: timedelta,
        retry_topic: str,
        *,
        max_retries: int = DEFAULT_MAX_REDELIVERIES,
        dead_letter_topic: str | None = None,
        txn: Transaction | None = None,
    ) -> None:
        """See `AsyncClient.retry_later`."""
        self._background.run(
            self._core.retry_later(
                consumer.core,
                message,
                after,
                retry_topic,
                max_retries=max_retries,
                dead_letter_topic=dead_letter_topic,
                txn=txn.core if txn else None,
            )
        )

    def table_writer(
        self,
        topic: str,
        txn: Transaction | str | None = None,
        writer: str | None = None,
        key_column: str | None = None,
        max_entry_bytes: int = DEFAULT_ENTRY_BYTES,
        compression: Codec | None = None,
    ) -> TableWriter:
        """See `AsyncClient.table_writer`."""
        inside = txn.core if isinstance(txn, Transaction) else txn
        core = self._core.table_writer(topic, inside, writer, key_column, max_entry_bytes, compression)
        return TableWriter(core, self._background)

    @overload
    def read_table(
        self,
        topic: str,
        isolation: Isolation = ...,
        revision: int | None = ...,
        include_metadata: bool = ...,
        on_error: OnError = ...,
        columns: Sequence[str] | None = ...,
    ) -> pa.Table: ...

    @overload
    def read_table(
        self,
        topic: list[str],
        isolation: Isolation = ...,
        revision: int | None = ...,
        include_metadata: bool = ...,
        on_error: OnError = ...,
        columns: Sequence[str] | None = ...,
    ) -> dict[str, pa.Table]: ...

    def read_table(
        self,
        topic: str | list[str],
        isolation: Isolation = "read_committed",
        revision: int | None = None,
        include_metadata: bool = False,
        on_error: OnError = "raise",
        columns: Sequence[str] | None = None,
    ) -> pa.Table | dict[str, pa.Table]:
        """See `AsyncClient.read_table`."""
        topics = [topic] if isinstance(topic, str) else topic
        tables = self._background.run(
            self._core.read_table(topics, isolation, revision, include_metadata, on_error, columns)
        )
        return tables[topic] if isinstance(topic, str) else tables

    def close(self) -> None:
        """Flush every producer, abort the transactions that were begun and used here and never committed, then close
        the connections. Raises the first failure of a send. An abort that does not succeed within five seconds is left
        to the transaction's timeout. Idempotent."""
        self.__exit__(None, None, None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self._background.running:
                super().__exit__(kind, error, at)
        finally:
            self._background.close()
            _OPEN.discard(self)
