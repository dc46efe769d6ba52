"""Kafka's protocol on a port of a broker, for clients that know nothing about us.

    size · api key · version · correlation id · client id · body   ─▶   size · correlation id · body

See DECISIONS.md for what is mapped to what.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from metastore.api import MetadataStore
from metastore.errors import MetastoreError
from metastore.versions import Feature
from metatxn.service.exposure import Exposure, InvalidExposure
from metatxn.service.quotas.quotas import Charge
from metatxn.service.security.principal import ANYONE
from metatxn.service.versions import require
from metatxn.wire.broker import MAX_SEGMENTS
from metatxn_gateways.kafka import fetch, produce
from metatxn_gateways.kafka.calls import NO_TIME, Calls
from metatxn_gateways.kafka.cluster import KafkaCluster, node_at
from metatxn_gateways.kafka.codes import KafkaCode
from metatxn_gateways.kafka.configs import Configs
from metatxn_gateways.kafka.coordination import Coordination
from metatxn_gateways.kafka.cutting import Cutter
from metatxn_gateways.kafka.fetch import Fetch
from metatxn_gateways.kafka.group_admin import GroupAdmin
from metatxn_gateways.kafka.group_calls import GroupCalls
from metatxn_gateways.kafka.metrics import KafkaMetrics
from metatxn_gateways.kafka.offsets import CommittedOffsets
from metatxn_gateways.kafka.partitions import Partitions
from metatxn_gateways.kafka.produce import Produce
from metatxn_gateways.kafka.producers import Producers
from metatxn_gateways.kafka.requests import OFFERED, KafkaRequest
from metatxn_gateways.kafka.sasl import SaslSession
from metatxn_gateways.kafka.schemas import CallRequest, CallResponse, is_flexible, read_call
from metatxn_gateways.kafka.topic_calls import TopicCalls
from metatxn_gateways.kafka.transaction_admin import TransactionAdmin
from metatxn_gateways.kafka.turns import Turns
from metatxn_gateways.listener import MAX_CONNECTIONS, FrameConnection, FrameServer, MalformedRequest, Reply
from metatxn_gateways.serving import ServingBroker, transactions_of
from participants.broker.broker import Broker

DEFAULT_PORT = 9092
MAX_CALL_BYTES = 1 << 20
"""The most bytes of any request except Produce. An item of two bytes takes ten microseconds to answer, and meanwhile no
other client is answered."""
CORRELATION = struct.Struct(">i")
_Call = Callable[[CallRequest, CallResponse], Awaitable[Any]]
_MOVED: dict[int, list[str]] = {
    KafkaRequest.PRODUCE: ["bytes_in_per_second"],
    KafkaRequest.FETCH: ["bytes_out_per_second"],
}
_FREE = {KafkaRequest.HEARTBEAT, KafkaRequest.SASL_HANDSHAKE, KafkaRequest.SASL_AUTHENTICATE}
"""No quota applies to these: a member of a group that shows no sign of life loses its partitions, and a client that
asks to be authenticated is not a principal yet."""


@dataclass(frozen=True, slots=True)
class _Connection:
    session: SaslSession
    turns: Turns = field(default_factory=Turns)
    waiting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """The lock that the request which waits for a quota holds."""


class KafkaListener:
    """Serves Kafka's protocol for the topics of `service` that have the format `kafka`. `advertise` is the address, as
    `host:port`, at which clients reach it if it is another one than that of the broker with this port. Clients may give
    a topic `max_partitions`.

    It asks for the same tokens as the broker's own interface (`sasl`), over TLS where that uses TLS. Raises
    `InvalidExposure` for an address that other machines reach without a token, unless everyone may do everything.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        service: ServingBroker,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        advertise: str | None = None,
        exposure: Exposure | None = None,
        max_connections: int = MAX_CONNECTIONS,
        max_partitions: int = MAX_SEGMENTS,
    ) -> None:
        """Raises `ValueError` for an `advertise` that is not such an address."""
        exposure = exposure or Exposure()
        exposure.check(host)
        if advertise is not None:
            try:
                node_at(advertise)
            except ValueError as error:
                raise InvalidExposure(
                    f"--kafka-advertise: {error}. Give the address that clients connect to."
                ) from None
        self._store = store
        self._service = service
        self._host = host
        self._advertise = advertise
        self._running = AsyncExitStack()
        self._authenticator = exposure.authenticator
        self._metrics = KafkaMetrics(lambda: self._server.connections, lambda: self._coordination.in_use)
        self._max_partitions = max_partitions
        self._server = FrameServer(
            self._connect, host, port, exposure.tls, self._metrics.closed, max_connections=max_connections
        )
        self._calls: dict[int, _Call] = {}

    @property
    def url(self) -> str:
        """The URL that Kafka's clients call a bootstrap server."""
        return self._advertise or f"{_in_url(self._host)}:{self._server.port}"

    @property
    def address(self) -> str:
        """The address that clients are sent to. It is known once this listens."""
        host = urlsplit(self._service.url).hostname or self._host
        return self._advertise or f"{_in_url(host)}:{self._server.port}"

    async def start(self) -> None:
        """Start to listen. Raises `OSError` if the port is in use, UPGRADE_PENDING, and the store's errors."""
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._running = stack.pop_all()

    async def _start(self, stack: AsyncExitStack) -> None:
        broker = self._service.broker
        assert broker is not None, "the broker has started"
        await require(self._store, broker.version, Feature.KAFKA)
        self._clock = broker.clock
        self._cluster = cluster = KafkaCluster(broker, lambda: self.address)
        self._partitions = partitions = Partitions(broker)
        producers = Producers(self._store, transactions_of(broker))
        loop = asyncio.get_running_loop()
        offsets = CommittedOffsets(self._store, broker.clock)
        self._coordination = coordination = Coordination(offsets, lambda: int(loop.time() * 1000), cluster.coordinates)
        calls = Calls(broker, partitions, producers, coordination, cluster)
        groups = GroupCalls(partitions, producers, coordination)
        topics, configs = TopicCalls(broker, partitions, self._max_partitions), Configs(broker, partitions)
        group_admin = GroupAdmin(partitions, coordination)
        transaction_admin = TransactionAdmin(self._store, broker.clock, partitions, cluster)
        self._produce, self._fetch = Produce(partitions, producers), Fetch(partitions)
        self._calls = {
            KafkaRequest.LIST_OFFSETS: calls.list_offsets,
            KafkaRequest.METADATA: calls.metadata,
            KafkaRequest.OFFSET_COMMIT: groups.offset_commit,
            KafkaRequest.OFFSET_FETCH: groups.offset_fetch,
            KafkaRequest.FIND_COORDINATOR: calls.find_coordinator,
            KafkaRequest.JOIN_GROUP: groups.join_group,
            KafkaRequest.HEARTBEAT: groups.heartbeat,
            KafkaRequest.LEAVE_GROUP: groups.leave_group,
            KafkaRequest.SYNC_GROUP: groups.sync_group,
            KafkaRequest.DESCRIBE_GROUPS: group_admin.describe_groups,
            KafkaRequest.LIST_GROUPS: group_admin.list_groups,
            KafkaRequest.CREATE_TOPICS: topics.create_topics,
            KafkaRequest.DELETE_TOPICS: topics.delete_topics,
            KafkaRequest.DELETE_RECORDS: topics.delete_records,
            KafkaRequest.INIT_PRODUCER_ID: calls.init_producer_id,
            KafkaRequest.OFFSET_FOR_LEADER_EPOCH: calls.offset_for_leader_epoch,
            KafkaRequest.ADD_PARTITIONS_TO_TXN: calls.add_partitions_to_txn,
            KafkaRequest.ADD_OFFSETS_TO_TXN: groups.add_offsets_to_txn,
            KafkaRequest.END_TXN: calls.end_txn,
            KafkaRequest.TXN_OFFSET_COMMIT: groups.txn_offset_commit,
            KafkaRequest.DESCRIBE_CONFIGS: configs.describe,
            KafkaRequest.ALTER_CONFIGS: configs.replace,
            KafkaRequest.CREATE_PARTITIONS: topics.create_partitions,
            KafkaRequest.DELETE_GROUPS: group_admin.delete_groups,
            KafkaRequest.INCREMENTAL_ALTER_CONFIGS: configs.alter,
            KafkaRequest.OFFSET_DELETE: group_admin.offset_delete,
            KafkaRequest.DESCRIBE_CLUSTER: calls.describe_cluster,
            KafkaRequest.DESCRIBE_PRODUCERS: transaction_admin.describe_producers,
            KafkaRequest.DESCRIBE_TRANSACTIONS: transaction_admin.describe_transactions,
            KafkaRequest.LIST_TRANSACTIONS: transaction_admin.list_transactions,
        }
        await stack.enter_async_context(cluster.running())
        stack.push_async_callback(self._server.stop)
        await self._server.start()
        self._metrics.register(broker.metrics.registry)
        stack.callback(broker.metrics.registry.unregister, self._metrics)
        cluster.refuse_rival()
        coordination.start()
        stack.push_async_callback(coordination.stop)
        await broker.announcement.name_kafka(self.address)
        stack.push_async_callback(self._withdraw, broker)
        await cluster.until_announced()

    async def stop(self) -> None:
        await self._running.aclose()

    async def _withdraw(self, broker: Broker) -> None:
        """Withdraw the address, so that other brokers no longer send clients here."""
        with suppress(MetastoreError):  # the broker, which stops next, is no longer announced either
            await broker.announcement.name_kafka(None)

    def _connect(self, link: FrameConnection | None = None) -> Callable[[memoryview], Awaitable[Reply | None]]:
        connection = _Connection(SaslSession(self._authenticator, self._clock, link))
        if link is not None:
            session_lost = link.on_lost

            def lost() -> None:
                session_lost()
                connection.turns.end()

            link.on_lost = lost
        return partial(self._answer, connection)

    async def _answer(self, connection: _Connection, received: memoryview) -> Reply | None:
        cutter = Cutter(received)
        api_key, version, loop = cutter.number(2), cutter.number(2), asyncio.get_running_loop()
        began_s = loop.time()
        answer = await self._answered(api_key, version, cutter, connection, len(received))
        self._metrics.answered(api_key, loop.time() - began_s)
        return answer

    async def _answered(
        self, api_key: int, version: int, cutter: Cutter, connection: _Connection, size: int
    ) -> Reply | None:
        correlation = cutter.number(4)
        head = CORRELATION.pack(correlation)
        if api_key == KafkaRequest.API_VERSIONS and version not in OFFERED[KafkaRequest.API_VERSIONS]:
            return [head, _versions(0, KafkaCode.UNSUPPORTED_VERSION)]
        if version not in OFFERED.get(api_key, ()):
            raise MalformedRequest(f"request {api_key} in version {version} is not supported")
        if api_key != KafkaRequest.PRODUCE and size > MAX_CALL_BYTES:
            raise MalformedRequest(f"a request {api_key} of {size} bytes, above the limit of {MAX_CALL_BYTES}")
        client = cutter.text() or ""
        flexible = _is_flexible(api_key, version)
        cutter.flexible = flexible
        cutter.tags()
        if api_key == KafkaRequest.API_VERSIONS:
            return [head, _versions(version, KafkaCode.NONE)]
        if flexible:
            head += b"\0"
        session = connection.session
        charge = await self._charge(api_key, connection, size)
        if api_key == KafkaRequest.PRODUCE:
            answer = await self._produce.answer(version, cutter, head, connection.turns, session.caller())
        elif api_key == KafkaRequest.FETCH:
            answer = await self._fetch.answer(version, cutter, head, session.caller())
        else:
            proof = session.calls.get(api_key)
            caller = ANYONE if proof is not None else session.caller()
            call, response = proof or self._calls[api_key], CallResponse(api_key, version)
            request = read_call(api_key, version, cutter.rest, caller, session.address, client)
            answer = [head, response.encoded(await call(request, response))]
        if charge is not None and answer is not None:
            charge.answer(sum(map(len, answer)))
        return answer

    async def _charge(self, api_key: int, connection: _Connection, size: int) -> Charge | None:
        """A request waits until the quota of its principal lets it pass. Those after it on its connection wait with
        it, so that they stay in order."""
        quotas = self._service.quotas
        if api_key in _FREE:
            return None
        async with connection.waiting:
            if not quotas.active:
                return None
            amounts = ("requests_per_second", *_MOVED.get(api_key, []))
            return await quotas.begin_later(connection.session.caller().name, amounts, size)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_flexible(api_key: int, version: int) -> bool:
    if api_key == KafkaRequest.PRODUCE:
        return version >= produce.FLEXIBLE
    return version >= fetch.FLEXIBLE if api_key == KafkaRequest.FETCH else is_flexible(api_key, version)


def _versions(version: int, code: KafkaCode) -> bytes:
    from kio.schema.errors import ErrorCode

    response = CallResponse(KafkaRequest.API_VERSIONS, version)
    keys = tuple(
        response.make("ApiVersion", api_key=key, min_version=found[0], max_version=found[-1])
        for key, found in sorted(OFFERED.items())
    )
    return response.encoded(
        response.make("ApiVersionsResponse", error_code=ErrorCode(int(code)), api_keys=keys, throttle_time=NO_TIME)
    )
