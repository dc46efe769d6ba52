"""The client: one URL is enough to find everything else. Nothing is sent before it is needed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import re
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, get_args, overload
from urllib.parse import urlsplit

import pyarrow as pa

from metatxn import frames, upgrades
from metatxn.ahead import BegunAhead
from metatxn.answers import parsed
from metatxn.connection import Connection, post
from metatxn.consumer import (
    ACKS_SETTLED_BY,
    SESSION_TIMEOUT_S,
    AsyncConsumer,
    SeekTarget,
    seek_call,
    subscription_path,
)
from metatxn.delivery import MAX_PENDING_BYTES
from metatxn.frames import FramesPage, SegmentFrames
from metatxn.http import Call, FixedEndpoint, json_body, path_of
from metatxn.json_messages import encoded_message
from metatxn.outgoing import BATCH_MESSAGES
from metatxn.paging import Listing, Paged
from metatxn.producer import BATCH_BYTES, AsyncProducer, message_batching
from metatxn.reader import AsyncReader, milliseconds
from metatxn.table_writer import DEFAULT_ENTRY_BYTES, AsyncTableWriter
from metatxn.tables import OnError, read_topics
from metatxn.topics import arrow_schema, wire_schema
from metatxn.topics_consumer import LOOK_EVERY_S, AsyncTopicsConsumer
from metatxn.transaction import AsyncTransaction, inside
from metatxn.transport.api import Transport
from metatxn.wire.access import AccessInfo
from metatxn.wire.broker import (
    ChildrenAnswer,
    HorizonPlace,
    HorizonsAnswer,
    Isolation,
    PositionAnswer,
    PublishMessagesAnswer,
    SeekAnswer,
    SegmentDetail,
    SubscriptionInfo,
    SubscriptionSummary,
    SubscriptionType,
    TopicInfo,
    TopicSchema,
    TransactionWork,
    TrimAnswer,
    WorkOnSegment,
)
from metatxn.wire.coordinator import (
    Cluster,
    ConnectAnswer,
    HangingTransaction,
    Operation,
    StoredRecord,
    TransactionHeader,
    TransactionKeyInfo,
    UpgradeStatus,
)
from metatxn.wire.errors import (
    AlreadyExists,
    InvalidArgument,
    MetatxnError,
    NotFound,
    SegmentSealed,
    ServiceUnreachable,
    StoreUnavailable,
)
from metatxn.wire.frames import Frame
from metatxn.wire.models import BrokerInfo, ServiceStatus, ThroughputAnswer
from metatxn.wire.names import LISTENER_NAME, TopicFormat, namespace_name
from metatxn.wire.policies import PolicyInfo
from metatxn.wire.quotas import QuotaInfo
from metatxn.wire.schemas import SchemaCheck, SchemaInfo

KEYS_PATH = "/admin/v2/transactions/transaction-keys"
RECORDS_PATH = "/admin/v2/store/records"
HANGING_PATH = "/admin/v2/transactions/hanging"


def connect_async(
    url: str,
    token: str | None = None,
    request_timeout_s: float = 30,
    *,
    ca: str | None = None,
    listener: str | None = None,
    transport: Transport | None = None,
    randomness: random.Random | None = None,
) -> AsyncClient:
    """A client of the cluster that the coordinator or broker at `url` belongs to. Nothing is sent yet.

    `token` is sent with every request. `ca` is a PEM file of authorities to trust in place of the usual ones; with an
    `https://` URL nothing is ever sent without TLS. `listener` is the name under which services announce the addresses
    that this client can reach; without it, they tell by the address that the client uses. `request_timeout_s` is the
    time for a request with all of its retries. For tests, `transport` replaces the network, and `randomness` is the
    source of names and jitter.
    """
    if not url.startswith(("http://", "https://")):
        raise InvalidArgument(
            f"url: {url!r} is not an http:// or https:// URL", action="Use one like http://127.0.0.1:8470."
        )
    if "@" in urlsplit(url).netloc:
        raise InvalidArgument(
            "url: contains a user or a password, which would be shown in errors", action="Use `token`."
        )
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        raise InvalidArgument("token: contains other characters than visible ASCII", field="token")
    if request_timeout_s <= 0:
        raise InvalidArgument("request_timeout_s: must be above 0", field="request_timeout_s")
    if listener is not None and not re.fullmatch(LISTENER_NAME, listener):
        raise InvalidArgument(
            f"listener: {listener!r} is not the name of a listener",
            action="Use one such as external.",
            field="listener",
        )
    options: dict[str, Any] = {"ca": ca, "listener": listener, "transport": transport, "randomness": randomness}
    return AsyncClient(Connection(url, token, request_timeout_s, **options))


class AsyncClient:
    """The client for one event loop, made by `connect_async`. Every method that calls a service is awaited, and may
    raise any `MetatxnError`; the docstrings name the errors to expect. `Client` is the same for threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ahead = BegunAhead(connection)
        self._producers: weakref.WeakKeyDictionary[AsyncProducer, None] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._connection.directory.given_url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with contextlib.suppress(MetatxnError) if error is not None else contextlib.nullcontext():
            await self.close()

    async def close(self) -> None:
        """Flush every producer, abort the transactions that were begun and used here and never committed, then close
        the connections. Raises the first failure of a send. An abort that does not succeed within five seconds is left
        to the transaction's timeout."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.let_go)
            stack.push_async_callback(self._ahead.close)
            stack.push_async_callback(self._connection.abort_open)
            for delivery in {producer.delivery: None for producer in self._producers} | self._connection.sending:
                stack.push_async_callback(delivery.close)

    async def let_go(self) -> None:
        """Close without a flush: what has not been sent yet is lost. Idempotent."""
        await self._connection.close()

    # -- transactions ------------------------------------------------------------------------------------------

    async def begin(
        self,
        timeout_ms: int = 60_000,
        key: str | None = None,
        epoch: int | None = None,
        version: int | None = None,
        properties: dict[str, str] | None = None,
        owner: str | None = None,
    ) -> AsyncTransaction:
        """Begin a transaction, which is aborted if it is open for longer than `timeout_ms`. While a program begins one
        after another, the next ones are begun ahead, and have a second more.

        A `key` requires the `epoch` that `connect_key` returned. If a `version` is given too, retrying an open version
        returns the same transaction, and a committed one returns a transaction whose `already_committed` is true.
        Raises `NotAllowed` for a stale epoch.
        """
        if key is not None and epoch is None:
            raise InvalidArgument(
                "epoch: a transaction under a key requires the key's epoch",
                action="Call connect_key(key), which takes over the key, and pass the epoch that it returns.",
                field="epoch",
            )
        if key is None and owner is None and version is None and not properties:
            begun = await self._ahead.take(timeout_ms)
            if begun is not None:
                return AsyncTransaction(self._connection, begun.txn_id or "", begun, ends_with_client=True)
        body = {
            "timeout_ms": timeout_ms,
            "owner": owner,
            "transaction_key": key,
            "epoch": epoch,
            "version": version,
            "properties": properties,
        }
        # A begin that is sent twice leaves at most an empty transaction, which its timeout ends.
        header = parsed(TransactionHeader, await self._connection.coordinator(post(path_of("txns"), body)))
        # Several programs may work on the same version, in the same transaction.
        return AsyncTransaction(self._connection, header.txn_id or "", header, ends_with_client=version is None)

    @contextlib.asynccontextmanager
    async def transaction(
        self,
        timeout_ms: int = 60_000,
        key: str | None = None,
        epoch: int | None = None,
        version: int | None = None,
        properties: dict[str, str] | None = None,
        owner: str | None = None,
    ) -> AsyncIterator[AsyncTransaction]:
        """`begin` for use with `async with`, which commits on leaving, and aborts on an exception or a failed send."""
        async with await self.begin(timeout_ms, key, epoch, version, properties, owner) as txn:
            yield txn

    def attach(self, txn_id: str) -> AsyncTransaction:
        """A transaction that was begun elsewhere, to write inside it or to end it. Nothing is read yet."""
        return AsyncTransaction(self._connection, txn_id)

    def transactions(
        self,
        state: Literal["OPEN", "COMMITTED", "ABORTED"] | None = None,
        *,
        key: str | None = None,
        owner: str | None = None,
        segment: str | None = None,
        older_than_ms: int | None = None,
        younger_than_ms: int | None = None,
        newest_first: bool = False,
        text: str | None = None,
        limit: int | None = None,
    ) -> Listing[TransactionHeader]:
        """The headers of the transactions that match the filters. `older_than_ms` and `younger_than_ms` are ages;
        `text` is looked for in ids, keys, owners, reasons and properties; `limit` is the size of a page, not of the
        result. With `newest_first`, which excludes `segment`, open ones come
        by their deadline and decided ones by their decision, the latest time first."""
        params = {
            "state": state,
            "transaction_key": key,
            "owner": owner,
            "segment": segment,
            "older_than_ms": older_than_ms,
            "younger_than_ms": younger_than_ms,
            "text": text,
            "order": "newest" if newest_first else None,
            "limit": limit,
        }
        connection = self._connection
        return Listing(connection, connection.coordinators, path_of("txns"), params, TransactionHeader)

    def hanging(self, max_age_ms: int | None = None, *, limit: int | None = None) -> Listing[HangingTransaction]:
        """Transactions that have been open for longer than `max_age_ms` (default: a minute), and where each of them
        holds readers back.

        They are read in pages of `limit`: the pages are ordered by deadline, and in each page the oldest transaction is
        first.
        """
        connection = self._connection
        params = {"max_age_ms": max_age_ms, "limit": limit}
        return Listing(connection, connection.coordinators, HANGING_PATH, params, HangingTransaction)

    def operations(self, txn_id: str) -> Listing[Operation]:
        """The operation records of a transaction that no broker has cleaned up yet. Raises `TransactionNotFound`."""
        connection = self._connection
        return Listing(connection, connection.coordinators, path_of("txns", txn_id, "ops"), {}, Operation)

    async def transaction_work(self, txn_id: str) -> list[WorkOnSegment]:
        """What the brokers remember of what a transaction has written and acknowledged, and since when readers see it.
        What those know that do not answer is missing. Raises `TransactionNotFound`."""
        brokers = (await self.cluster()).brokers
        told = await asyncio.gather(*(self._work_at(broker.url, txn_id) for broker in brokers), return_exceptions=True)
        found: list[WorkOnSegment] = []
        for answer in told:
            if isinstance(answer, ServiceUnreachable | StoreUnavailable | NotFound):
                continue
            if isinstance(answer, BaseException):
                raise answer
            found += answer
        return found

    async def _work_at(self, url: str, txn_id: str) -> list[WorkOnSegment]:
        call = Call("GET", path_of("txns", txn_id, "work"))
        answer = await self._connection.http.request(FixedEndpoint(url), call, patient=False)
        return parsed(TransactionWork, answer).segments

    def transaction_records(self, txn_id: str) -> Listing[StoredRecord]:
        """The records of a transaction as they stand in the metadata store. Raises `TransactionNotFound`."""
        connection = self._connection
        return Listing(connection, connection.coordinators, path_of("txns", txn_id, "records"), {}, StoredRecord)

    def stored_records(self, prefix: str = "/", *, limit: int | None = None) -> Listing[StoredRecord]:
        """The records of the metadata store whose keys begin with `prefix`. Requires the right `admin`."""
        connection = self._connection
        return Listing(
            connection, connection.coordinators, RECORDS_PATH, {"prefix": prefix, "limit": limit}, StoredRecord
        )

    # -- transaction keys --------------------------------------------------------------------------------------

    async def connect_key(
        self, key: str, epoch: int = -1, session: str | None = None, owner: str | None = None
    ) -> ConnectAnswer:
        """Take over a transaction key (`epoch` -1): its open transaction is aborted, and its previous holder gets
        `NotAllowed` from now on. Any other `epoch` connects only if it is the current one."""
        # With a session, a repeated request returns the same epoch. By default, each call is a session of its own.
        body = {"epoch": epoch, "session": session or self._connection.new_name(), "owner": owner}
        call = post(path_of("transaction-keys", key, "connect"), body)
        return parsed(ConnectAnswer, await self._connection.coordinator(call))

    def keys(self, owner: str | None = None) -> Listing[TransactionKeyInfo]:
        """All transaction keys, or those of one owner."""
        connection = self._connection
        return Listing(connection, connection.coordinators, KEYS_PATH, {"owner": owner}, TransactionKeyInfo)

    async def key(self, key: str, owner: str | None = None) -> TransactionKeyInfo:
        """One transaction key. Raises `NotFound`."""
        call = Call("GET", KEYS_PATH + path_of(key).removeprefix("/v1"), {"owner": owner})
        return parsed(TransactionKeyInfo, await self._connection.coordinator(call))

    async def delete_key(self, key: str, owner: str | None = None) -> None:
        """Delete a transaction key, and abort the transaction that it holds. Raises `NotFound`."""
        connection = self._connection
        call = Call("DELETE", KEYS_PATH + path_of(key).removeprefix("/v1"), {"owner": owner})
        await connection.http.request(connection.coordinators, call)

    async def quota(self, principal: str | None) -> QuotaInfo:
        """What a principal may use of the cluster in a second, where that comes from, and what it has used lately; None
        stands for the default. Only administrators see those of others."""
        return parsed(QuotaInfo, await self._connection.coordinator(Call("GET", _quota_path(principal))))

    async def set_quota(self, principal: str | None, /, **amounts: int | None) -> QuotaInfo:
        """Change amounts of a principal's quota, or of the default (None): `requests_per_second`,
        `bytes_in_per_second`, `bytes_out_per_second`. -1 means no limit, and None removes an amount."""
        call = Call("PATCH", _quota_path(principal), content=json.dumps(amounts).encode())  # null removes
        return parsed(QuotaInfo, await self._connection.coordinator(call))

    def quotas(self) -> Paged[QuotaInfo]:
        """The quotas of all principals that have one of their own."""
        connection = self._connection
        return Listing(connection, connection.coordinators, path_of("quotas", "principals"), {}, QuotaInfo)

    # -- topics ------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        segments: int = 1,
        schema: pa.Schema | TopicSchema | None = None,
        exist_ok: bool = False,
        format: TopicFormat | None = None,
    ) -> TopicInfo:
        """Create a topic. Raises `AlreadyExists`; with `exist_ok` an existing topic is returned as it is.

        With the format `kafka` its segments are the partitions that Kafka's clients see; with the format `pulsar`
        Pulsar's clients may write to it.
        """
        columns = wire_schema(schema) if schema is not None else None
        body = {"name": name, "segments": segments, "schema": columns}
        if format is not None:  # a broker before 0.3 knows nothing of it
            body["format"] = format
        # `AlreadyExists` does not say that an unanswered attempt was refused: that attempt may have created it.
        call = post(path_of("topics"), body, settled_by=(AlreadyExists,) if exist_ok else ())
        try:
            return parsed(TopicInfo, await self._connection.broker(call))
        except AlreadyExists:
            if not exist_ok:
                raise
            return await self.topic(name)

    async def topic(self, name: str) -> TopicInfo:
        """The topic and its segments as they are now. Raises `NotFound`."""
        return await self._connection.topics.read(name)

    def topics(self, *, text: str | None = None, limit: int | None = None) -> Listing[TopicInfo]:
        """All topics that the caller has a right on, ordered by name, or those whose full name has this text, in any
        case. `limit` is the size of a page."""
        connection = self._connection
        return Listing(connection, connection.brokers, path_of("topics"), {"text": text, "limit": limit}, TopicInfo)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all of its messages and subscriptions. Transactions that wrote to it end like any others.
        Raises `NotFound` for a topic that never existed."""
        connection = self._connection
        await connection.http.request(connection.brokers, Call("DELETE", path_of("topics", name)))
        connection.topics.forget(name)

    async def topic_policy(self, name: str) -> PolicyInfo:
        """The policy of a topic: what was set on it, and what counts. Raises `NotFound`."""
        return await self._policy(path_of("topics", name, "policy"))

    async def set_topic_policy(self, /, name: str, **settings: int | str | None) -> PolicyInfo:
        """Change settings of a topic's policy, such as `retention_ms`; None removes one. Raises `NotFound`."""
        return await self._set_policy(path_of("topics", name), settings)

    async def namespace_policy(self, namespace: str) -> PolicyInfo:
        """The policy of a namespace `tenant/name`, which counts where those of its topics say nothing."""
        return await self._policy(path_of("policies", "namespaces", *_namespace_parts(namespace)))

    async def set_namespace_policy(self, /, namespace: str, **settings: int | str | None) -> PolicyInfo:
        """Change settings of a namespace's policy; None removes one."""
        return await self._set_policy(path_of("policies", "namespaces", *_namespace_parts(namespace)), settings)

    async def cluster_policy(self) -> PolicyInfo:
        """The policy of the cluster, which counts where those of topics and namespaces say nothing."""
        return await self._policy(path_of("policies", "cluster"))

    async def set_cluster_policy(self, /, **settings: int | str | None) -> PolicyInfo:
        """Change settings of the cluster's policy; None removes one."""
        return await self._set_policy(path_of("policies", "cluster"), settings)

    async def _policy(self, path: str) -> PolicyInfo:
        return parsed(PolicyInfo, await self._connection.broker(Call("GET", path)))

    async def _set_policy(self, path: str, settings: dict[str, int | str | None]) -> PolicyInfo:
        call = Call("PATCH", path, content=json.dumps(settings).encode())  # null removes
        return parsed(PolicyInfo, await self._connection.broker(call))

    async def topic_schema(self, name: str) -> pa.Schema | None:
        """The topic's columns, or None for a topic that accepts any message."""
        return arrow_schema((await self.topic(name)).topic_schema)

    async def schema(self, name: str) -> SchemaInfo:
        """The topic's schema, the versions that it had before, and what its policy says about changes. Raises
        `NotFound`."""
        return parsed(SchemaInfo, await self._connection.broker(Call("GET", path_of("topics", name, "schema"))))

    async def check_schema(self, name: str, schema: pa.Schema | TopicSchema) -> SchemaCheck:
        """Whether these columns may become the next version of the topic's schema, and if not, why. Raises
        `NotFound`."""
        call = post(path_of("topics", name, "schema", "check"), {"schema": wire_schema(schema)})
        return parsed(SchemaCheck, await self._connection.broker(call))

    async def set_schema(
        self, name: str, schema: pa.Schema | TopicSchema, expected_version: int | None = None
    ) -> SchemaInfo:
        """Make these columns the next version of the topic's schema, unless it has them already. Raises `NotFound`, and
        `SchemaMismatch` if the policy does not allow that they follow the earlier versions, or if the topic does not
        have `expected_version` any more."""
        body = {"schema": wire_schema(schema), "expected_version": expected_version}
        call = Call("PUT", path_of("topics", name, "schema"), content=json_body(body))
        found = parsed(SchemaInfo, await self._connection.broker(call))
        self._connection.topics.forget(name)
        return found

    async def segment(self, segment_id: str, max_open: int | None = None) -> SegmentDetail:
        """A segment as its owner sees it. With `max_open` at most so many of its open transactions are named: those
        that hold readers back at the lowest positions. Raises `NotFound`."""
        call = Call("GET", path_of("segments", segment_id), {"max_open": max_open})
        return parsed(SegmentDetail, await self._connection.owner_of(segment_id, call))

    async def position_at(self, segment_id: str, at: datetime) -> PositionAnswer:
        """The position of the first entry of a segment that was published at a time or later, or of the next one to
        come. The time needs a time zone. Raises `NotFound`."""
        call = Call("GET", path_of("segments", segment_id, "position"), {"at_ms": milliseconds("at", at)})
        return parsed(PositionAnswer, await self._connection.owner_of(segment_id, call))

    async def split_segment(self, segment_id: str, at: int | None = None) -> list[str]:
        """Seal a segment and return the two children that take over: one for the hashes below `at`, one for those from
        `at` on (default: the middle). Producers and readers find them by themselves. Raises `SegmentSealed`."""
        return await self._change_layout(segment_id, "split", {"at": at})

    async def merge_segments(self, segment_id: str, other_id: str) -> list[str]:
        """Seal two neighbours and return the one child that takes over from both. Raises `SegmentSealed`."""
        return await self._change_layout(segment_id, "merge", {"with": other_id})

    async def seal_segment(self, segment_id: str) -> list[str]:
        """Seal a segment without successor: it accepts no more messages. Returns its children if it already has
        some."""
        return await self._change_layout(segment_id, "seal", {})

    async def trim_segment(self, segment_id: str, before: str) -> str:
        """Drop the entries below a position that readers could see, and return the first readable position."""
        call = post(path_of("segments", segment_id, "trim"), {"before": before})
        return parsed(TrimAnswer, await self._connection.owner_of(segment_id, call)).first_position

    async def delete_segment(self, segment_id: str) -> None:
        """Drop what is left in a sealed segment that has children, and remove it from its topic. Readers and consumers
        go on in its children. Raises `SegmentInUse`, which names what still needs it; that it is already removed is no
        error."""
        await self._connection.owner_of(segment_id, Call("DELETE", path_of("segments", segment_id)))

    async def horizons(
        self,
        segments: Mapping[str, HorizonPlace],
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        wait_ms: int = 0,
    ) -> HorizonsAnswer:
        """How far these segments can be read, as the owner of the first one sees it. For a segment that this owner does
        not serve, the answer names the broker that does. With `wait_ms` the answer is held back until one of the
        segments has something after its place."""
        first = next(iter(segments))
        wanted = {segment: place.model_dump(exclude_none=True) for segment, place in segments.items()}
        body = {"segments": wanted, "isolation": isolation, "wait_ms": wait_ms}
        call = Call("POST", path_of("horizons"), content=json_body(body), wait_s=wait_ms / 1000)
        answer = parsed(HorizonsAnswer, await self._connection.owner_of(first, call))
        for segment, url in answer.elsewhere.items():
            self._connection.topics.set_owner(segment, url.rstrip("/"))
        return answer

    async def _change_layout(self, segment_id: str, verb: str, body: dict[str, str | int | None]) -> list[str]:
        # A change that is already done is a success, so a refusal means that another change came before all attempts.
        call = post(path_of("segments", segment_id, verb), body, settled_by=(SegmentSealed,))
        return parsed(ChildrenAnswer, await self._connection.owner_of(segment_id, call)).children

    async def cluster(self, *, patient: bool = True) -> Cluster:
        """The services with their URLs, and the store's revision. With `patient=False` it fails at once if nothing
        answers."""
        return await self._connection.directory.read(patient=patient)

    async def service_status(self, url: str) -> ServiceStatus:
        """One service of the cluster, which is asked once, and what it sees. Raises `ServiceUnreachable`."""
        call = Call("GET", path_of("status"), for_directory=True)
        return parsed(ServiceStatus, await self._connection.http.request(FixedEndpoint(url), call, patient=False))

    async def throughput(self, url: str) -> ThroughputAnswer:
        """What one service of the cluster has done in the last quarter of an hour. It is asked once. Raises
        `ServiceUnreachable`."""
        call = Call("GET", path_of("throughput"), for_directory=True)
        return parsed(ThroughputAnswer, await self._connection.http.request(FixedEndpoint(url), call, patient=False))

    async def broker(self, broker_id: str) -> BrokerInfo:
        """One broker, and how far its drain is. Raises `NotFound`."""
        return await self._of_broker("GET", broker_id)

    async def drain_broker(self, broker_id: str) -> BrokerInfo:
        """Begin to drain a broker: its segments go to the other brokers of its storage while everything is served.
        With local files they stay, and new topics go to other brokers. `broker` tells how far it is. Raises
        `NotFound`."""
        return await self._of_broker("POST", broker_id, "drain")

    async def undrain_broker(self, broker_id: str) -> BrokerInfo:
        """End a drain. Raises `NotFound`."""
        return await self._of_broker("POST", broker_id, "undrain")

    async def _of_broker(self, method: str, broker_id: str, *verb: str) -> BrokerInfo:
        call = Call(method, path_of("brokers", broker_id, *verb))
        return parsed(BrokerInfo, await self._connection.broker(call))

    async def access(self) -> AccessInfo:
        """Who this client is for the services, by its token, and what it may do. Raises `Unauthenticated`."""
        return parsed(AccessInfo, await self._connection.coordinator(Call("GET", path_of("access"))))

    async def upgrade_status(self) -> UpgradeStatus:
        """The cluster version, the release of every process, and what stands in the way of the next version. Raises
        `NotFound` if no coordinator runs a release that knows of cluster versions."""
        return await upgrades.upgrade_status(self._connection)

    async def finalize_upgrade(self, *, accept_absent: bool = False) -> UpgradeStatus:
        """Raise the cluster version to that of the release which the coordinators run: processes of earlier releases
        can no longer serve the cluster. With `accept_absent`, brokers that do not run may own segments.

        Raises `UpgradePending`, whose `members["obstacles"]` say what is to be done first, and `NotFound`.
        """
        return await upgrades.finalize_upgrade(self._connection, accept_absent)

    # -- data --------------------------------------------------------------------------------------------------

    def producer(
        self,
        topic: str,
        name: str | None = None,
        max_entry_messages: int = BATCH_MESSAGES,
        *,
        max_entry_bytes: int = BATCH_BYTES,
        linger_ms: float = 0,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        sequenced: bool = False,
    ) -> AsyncProducer:
        """A producer of messages. `name` is for people who look at entries.

        With `sequenced` each message is sent with a `sequence` of your own, outside transactions, in growing order. A
        program that was killed opens a producer of the same name and sends again, with the same keys and sequences,
        everything from the first message on of which it does not know that it is durable: what is there already is not
        appended again; its future may return a later position. After a failure such a producer takes nothing more: open
        another one, and go on in the same way.

        Messages share an entry up to `max_entry_messages` (1 turns batching off) and `max_entry_bytes`: messages that
        are sent while an earlier entry is in flight, and, with `linger_ms`, those sent within that time. `send` waits
        while more than `max_pending_bytes` are not durable yet.
        """
        batching = message_batching(max_entry_messages, max_entry_bytes, linger_ms, max_pending_bytes)
        producer = AsyncProducer(self._connection, topic, name, batching, sequenced=sequenced)
        self._producers[producer] = None
        return producer

    async def publish(
        self,
        topic: str,
        value: Any,
        key: str | None = None,
        properties: dict[str, str] | None = None,
        *,
        producer: str,
        sequence: int,
        deliver_at: datetime | None = None,
        deliver_after: timedelta | None = None,
    ) -> str:
        """Publish one message outside transactions, and return its id once it is durable. The same `producer` and
        `sequence` publish it once, however often and by whichever program that is repeated, as long as the brokers
        remember the sequence: they remember the last 1,000 of a producer in a segment. Use each sequence for one
        message only, and grow it; a batching producer with sequences of its own is `producer`.

        `value` and `deliver_at` are as for `AsyncProducer.send`; `deliver_after` counts from the moment when the broker
        gets the message. Raises `NotFound`, and `TypeError` or `ValueError` for a value that is
        not JSON.
        """
        named = json.dumps({"producer": producer, "sequence": sequence}).encode()[1:]
        times_ms = {
            "deliver_at_ms": None if deliver_at is None else milliseconds("deliver_at", deliver_at),
            "deliver_after_ms": None if deliver_after is None else deliver_after // timedelta(milliseconds=1),
        }
        content = b'{"messages":[' + encoded_message(value, key, properties, times_ms) + b"]," + named
        call = Call("POST", path_of("topics", topic, "messages"), content=content)
        (message_id,) = parsed(PublishMessagesAnswer, await self._connection.broker(call)).message_ids
        return message_id

    async def reader(
        self,
        topic: str,
        start: str | datetime = "earliest",
        isolation: Isolation = "read_committed",
        follow: bool = False,
        revision: int | None = None,
        compacted: bool = False,
    ) -> AsyncReader:
        """A reader that iterates over messages from `earliest`, `latest`, the `token` of another reader, or a time with
        a time zone: then it begins with what was published at that time or later. A `compacted` one begins with the
        latest value of each key."""
        reader = AsyncReader(self._connection, topic, start, isolation, follow, revision, compacted)
        await reader.open(at_end=start == "latest")
        return reader

    async def subscribe(
        self,
        topic: str,
        subscription: str,
        type: SubscriptionType | None = None,
        initial: Literal["earliest", "latest"] | None = None,
        dead_letter_topic: str | None = None,
        max_redeliveries: int | None = None,
        name: str | None = None,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        *,
        ack_timeout_ms: int | None = None,
        redelivery_delay_ms: int | None = None,
        max_redelivery_delay_ms: int | None = None,
        isolation: Literal["read_committed", "read_uncommitted"] | None = None,
    ) -> AsyncConsumer:
        """A consumer of a subscription. If it does not exist, it is created: shared, from the earliest message on,
        unless other settings are given. Raises `AlreadyExists` if settings are given, and a subscription of this name
        has others."""
        given = (type, initial, dead_letter_topic, max_redeliveries)
        times = (ack_timeout_ms, redelivery_delay_ms, max_redelivery_delay_ms)
        as_it_is = all(each is None for each in (*given, *times, isolation))
        with contextlib.suppress(AlreadyExists) if as_it_is else contextlib.nullcontext():
            await self.create_subscription(
                topic,
                subscription,
                type or "shared",
                initial or "earliest",
                dead_letter_topic,
                max_redeliveries,
                ack_timeout_ms=ack_timeout_ms,
                redelivery_delay_ms=redelivery_delay_ms,
                max_redelivery_delay_ms=max_redelivery_delay_ms,
                isolation=isolation or "read_committed",
            )
        return self.consumer(topic, subscription, name, session_timeout_s)

    async def subscribe_topics(
        self,
        topics: Sequence[str] | re.Pattern[str],
        subscription: str,
        type: SubscriptionType | None = None,
        initial: Literal["earliest", "latest"] | None = None,
        *,
        name: str | None = None,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        look_every_s: float = LOOK_EVERY_S,
    ) -> AsyncTopicsConsumer:
        """A consumer of several topics, with a subscription of the same name on each, which is created as `subscribe`
        does. With a pattern, these are the topics whose full name, such as `public/default/orders`, it matches from
        the beginning to the end; new ones are looked for every `look_every_s` seconds, and consumed from their earliest
        message on. Create a subscription that has other settings than these before."""

        async def of(topic: str, later: bool) -> AsyncConsumer:
            start = partial(self.subscribe, topic, subscription, type, name=name, session_timeout_s=session_timeout_s)
            try:
                return await start("earliest" if later else initial)
            except AlreadyExists:  # perhaps from an earlier run, to which the topic was a later one
                return await start("earliest")

        async def look() -> list[str]:
            if not isinstance(topics, re.Pattern):
                return [(await self.topic(topic)).name for topic in topics]
            return [topic.name async for topic in self.topics() if topics.fullmatch(topic.name)]

        if isinstance(topics, str):
            raise InvalidArgument("topics: give a list of names, or re.compile(…)", field="topics")
        every_s = look_every_s if isinstance(topics, re.Pattern) else math.inf
        consumer = AsyncTopicsConsumer(subscription, look, of, every_s)
        await consumer.look()
        return consumer

    async def create_subscription(
        self,
        topic: str,
        subscription: str,
        type: SubscriptionType = "shared",
        initial: Literal["earliest", "latest"] = "earliest",
        dead_letter_topic: str | None = None,
        max_redeliveries: int | None = None,
        *,
        ack_timeout_ms: int | None = None,
        redelivery_delay_ms: int | None = None,
        max_redelivery_delay_ms: int | None = None,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    ) -> None:
        """Create a subscription if it does not exist. Raises `AlreadyExists` if one of this name has other settings.

        A message that was returned more than `max_redeliveries` times goes to the dead-letter topic. One that is not
        acknowledged within `ack_timeout_ms` returns by itself. What returns by that, or by a negative acknowledgement,
        is delivered again after `redelivery_delay_ms`, doubled with each return up to `max_redelivery_delay_ms`.
        With `read_uncommitted`, consumers also get messages of transactions that are open or aborted."""
        body = {
            "type": type,
            "initial": initial,
            "dead_letter_topic": dead_letter_topic,
            "max_redeliveries": max_redeliveries,
            "ack_timeout_ms": ack_timeout_ms,
            "redelivery_delay_ms": redelivery_delay_ms,
            "max_redelivery_delay_ms": max_redelivery_delay_ms,
            "isolation": None if isolation == "read_committed" else isolation,
        }
        path = subscription_path(topic, subscription)
        call = Call(
            "PUT", path, content=json_body(body), settled_by=(AlreadyExists,)
        )  # a subscription with the same settings is a success
        await self._connection.home_of(topic, call)

    def consumer(
        self,
        topic: str,
        subscription: str,
        name: str | None = None,
        session_timeout_s: float = SESSION_TIMEOUT_S,
    ) -> AsyncConsumer:
        """A consumer of an existing subscription. `name` is unique by default; the broker takes two consumers with the
        same name for one. If this program is silent for `session_timeout_s` (1 to 3,600), because it is frozen or cut
        off, the messages that it holds are delivered to others."""
        return AsyncConsumer(self._connection, topic, subscription, name, session_timeout_s)

    def subscriptions(self, topic: str) -> Listing[SubscriptionSummary]:
        """The subscriptions of a topic, ordered by name. Raises `NotFound`."""
        connection, path = self._connection, path_of("topics", topic, "subscriptions")
        return Listing(connection, connection.brokers, path, {}, SubscriptionSummary)

    async def subscription(self, topic: str, subscription: str) -> SubscriptionInfo:
        """The progress of a subscription, and what is pending on it. Raises `NotFound`."""
        answer = await self._connection.home_of(topic, Call("GET", subscription_path(topic, subscription)))
        return parsed(SubscriptionInfo, answer)

    async def acknowledge_up_to(
        self, topic: str, subscription: str, positions: Mapping[str, str], txn: AsyncTransaction
    ) -> None:
        """Acknowledge inside `txn`, in place of all consumers of the subscription, everything up to a position of each
        segment that readers could see.

        Raises `NotFound` if there is no such subscription, and `TransactionConflict`. Whatever is raised, `txn` must be
        aborted.
        """
        txn.check_takes_operations()
        body = {"kind": "cumulative", "positions": dict(positions), "for_all": True, "txn_id": txn.id}
        call = post(subscription_path(topic, subscription, "acks"), body, settled_by=ACKS_SETTLED_BY)
        with inside(txn):
            await self._connection.broker(call)

    async def seek(
        self,
        topic: str,
        subscription: str,
        to: SeekTarget,
        *,
        force: bool = False,
    ) -> SeekAnswer:
        """Move a subscription, on all segments at once: everything before the new place is acknowledged, and everything
        after it is delivered, again or for the first time. `to` is an end of the topic, a time with a time zone, or for
        every segment the position of the first entry to be delivered.

        Messages that consumers have received before stay with them, but they can no longer acknowledge them inside a
        transaction. Raises `NotFound`, and `TransactionConflict` if open transactions have acknowledged messages; with
        `force`, which requires the right `admin`, these are aborted.
        """
        call = seek_call(topic, subscription, to, force=force)
        return parsed(SeekAnswer, await self._connection.home_of(topic, call))

    async def drop_subscription(self, topic: str, subscription: str) -> None:
        """Drop a subscription with all of its state. Raises `NotFound`."""
        await self._connection.home_of(topic, Call("DELETE", subscription_path(topic, subscription)))

    def table_writer(
        self,
        topic: str,
        txn: AsyncTransaction | str | None = None,
        writer: str | None = None,
        key_column: str | None = None,
        max_entry_bytes: int = DEFAULT_ENTRY_BYTES,
    ) -> AsyncTableWriter:
        """A writer of Arrow tables, inside a transaction or without one; without one, rows can be read as soon as their
        entry is durable. With `writer`, which requires a transaction, the rows count only if the commit lists that name
        or lists none."""
        return AsyncTableWriter(self._connection, topic, txn, writer, key_column, max_entry_bytes)

    @overload
    async def read_table(
        self,
        topic: str,
        isolation: Isolation = ...,
        revision: int | None = ...,
        include_metadata: bool = ...,
        on_error: OnError = ...,
    ) -> pa.Table: ...

    @overload
    async def read_table(
        self,
        topic: list[str],
        isolation: Isolation = ...,
        revision: int | None = ...,
        include_metadata: bool = ...,
        on_error: OnError = ...,
    ) -> dict[str, pa.Table]: ...

    async def read_table(
        self,
        topic: str | list[str],
        isolation: Isolation = "read_committed",
        revision: int | None = None,
        include_metadata: bool = False,
        on_error: OnError = "raise",
    ) -> pa.Table | dict[str, pa.Table]:
        """All visible rows of a topic, or of several topics. With `snapshot` they are one consistent cut at `revision`
        (default: now).

        A column never changes its type because of one message. A value of another type than its column raises
        `SchemaMismatch`, with the position of its entry and the column; or, as `on_error` says, it is `null`, or its
        message is left out (`skip`). Then a warning in the log counts them and names the first one. Without a schema
        the first values decide about the type of a column.
        """
        if on_error not in get_args(OnError):
            raise InvalidArgument(f"on_error: is {on_error!r}, not one of raise, null, skip", field="on_error")
        topics = [topic] if isinstance(topic, str) else list(topic)
        tables = await read_topics(self._connection, topics, isolation, revision, include_metadata, on_error)
        return tables[topic] if isinstance(topic, str) else tables

    def read_segment(
        self, segment_id: str, isolation: Isolation = "read_committed", revision: int | None = None
    ) -> Paged[Frame]:
        """Every visible entry of a segment, up to where nothing more is readable."""
        return SegmentFrames(self._connection, segment_id, isolation, revision)

    async def read_frames(
        self,
        segment_id: str,
        owner_url: str | None = None,
        after: str | None = None,
        isolation: Isolation = "read_committed",
        revision: int | None = None,
        max_bytes: int = frames.PAGE_BYTES,
        wait_ms: int = 0,
    ) -> FramesPage:
        """One page of a segment's visible entries after the position `after`. Raises `PositionTrimmed`."""
        return await frames.read_frames(
            self._connection,
            segment_id,
            owner_url=owner_url,
            after=after,
            isolation=isolation,
            revision=revision,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
        )

    @staticmethod
    def decode_entry(frame: Frame, topic_schema: pa.Schema | None) -> pa.Table:
        """The rows of an entry in the topic's columns. Raises `SchemaMismatch`."""
        return frames.decode_entry(frame, topic_schema)


def _quota_path(principal: str | None) -> str:
    return path_of("quotas", "default") if principal is None else path_of("quotas", "principals", principal)


def _namespace_parts(namespace: str) -> list[str]:
    try:
        return namespace_name(namespace).split("/")
    except ValueError as error:
        raise InvalidArgument(f"namespace: {error}", field="namespace") from None
