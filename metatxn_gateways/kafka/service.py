"""Kafka's protocol on a port of a broker, for clients that know nothing of us.

    size · api key · version · correlation id · client id · body   ─▶   size · correlation id · body

See DECISIONS.md for what is mapped to what.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from coordinator.transactions import Transactions
from metastore.api import MetadataStore
from metastore.errors import MetastoreError
from metastore.versions import Feature
from metatxn.service.exposure import Exposure, InvalidExposure
from metatxn.service.security.principal import ANYONE
from metatxn.service.versions import require
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
from metatxn_gateways.kafka.offsets import CommittedOffsets
from metatxn_gateways.kafka.partitions import Partitions
from metatxn_gateways.kafka.produce import Produce, Turns
from metatxn_gateways.kafka.producers import Producers
from metatxn_gateways.kafka.sasl import SaslSession
from metatxn_gateways.kafka.schemas import CallRequest, CallResponse, is_flexible, read_call
from metatxn_gateways.kafka.topic_calls import TopicCalls
from metatxn_gateways.kafka.transaction_admin import TransactionAdmin
from metatxn_gateways.listener import FrameConnection, FrameServer, MalformedRequest, Reply
from metatxn_gateways.serving import ServingBroker
from participants.broker.broker import Broker

DEFAULT_PORT = 9092
PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
CORRELATION = struct.Struct(">i")
OFFERED: dict[int, range] = {
    PRODUCE: produce.VERSIONS,
    FETCH: fetch.VERSIONS,
    2: range(1, 7),  # ListOffsets
    3: range(1, 13),  # Metadata
    8: range(2, 10),  # OffsetCommit
    9: range(1, 9),  # OffsetFetch
    10: range(5),  # FindCoordinator
    11: range(10),  # JoinGroup
    12: range(5),  # Heartbeat
    13: range(6),  # LeaveGroup
    14: range(6),  # SyncGroup
    15: range(6),  # DescribeGroups
    16: range(5),  # ListGroups
    17: range(1, 2),  # SaslHandshake
    API_VERSIONS: range(5),
    19: range(2, 6),  # CreateTopics
    20: range(1, 5),  # DeleteTopics
    21: range(3),  # DeleteRecords
    22: range(5),  # InitProducerId
    23: range(2, 5),  # OffsetForLeaderEpoch
    24: range(4),  # AddPartitionsToTxn
    25: range(4),  # AddOffsetsToTxn
    26: range(4),  # EndTxn
    28: range(5),  # TxnOffsetCommit
    32: range(1, 5),  # DescribeConfigs
    36: range(3),  # SaslAuthenticate
    42: range(3),  # DeleteGroups
    44: range(2),  # IncrementalAlterConfigs
    47: range(1),  # OffsetDelete
    60: range(2),  # DescribeCluster
    61: range(1),  # DescribeProducers
    65: range(1),  # DescribeTransactions
    66: range(2),  # ListTransactions
}
"""What ApiVersions tells, and nothing else is answered."""

_Call = Callable[[CallRequest, CallResponse], Awaitable[Any]]


class KafkaListener:
    """Serves Kafka's protocol for the topics of `service` that have the format `kafka`. `advertise` is the address, as
    `host:port`, at which clients reach it if it is another one than that of the broker with this port.

    It asks for the same tokens as the broker's own interface (`sasl`), over TLS where that uses TLS. Raises
    `InvalidExposure` for an address that other machines reach without a token, unless everybody may do everything.
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
    ) -> None:
        """Raises `ValueError` for an `advertise` that is no such address."""
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
        self._server = FrameServer(self._connect, host, port, exposure.tls)
        self._calls: dict[int, _Call] = {}

    @property
    def url(self) -> str:
        """What Kafka's clients call a bootstrap server."""
        return self._advertise or f"{_in_url(self._host)}:{self._server.port}"

    @property
    def address(self) -> str:
        """Where clients are sent to. It is known once this listens."""
        host = urlsplit(self._service.url).hostname or self._host
        return self._advertise or f"{_in_url(host)}:{self._server.port}"

    async def start(self) -> None:
        """Raises `OSError` if the port is in use, UPGRADE_PENDING, and the store's errors."""
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
        producers = Producers(self._store, Transactions(self._store, broker.clock))
        loop = asyncio.get_running_loop()
        offsets = CommittedOffsets(self._store, broker.clock)
        self._coordination = coordination = Coordination(offsets, lambda: int(loop.time() * 1000), cluster.coordinates)
        calls = Calls(broker, partitions, producers, coordination, cluster)
        groups = GroupCalls(partitions, producers, coordination)
        topics, configs = TopicCalls(broker, partitions), Configs(broker, partitions)
        group_admin = GroupAdmin(partitions, coordination)
        transaction_admin = TransactionAdmin(self._store, broker.clock, partitions, cluster)
        self._produce, self._fetch = Produce(partitions, producers), Fetch(partitions)
        self._calls = {
            2: calls.list_offsets,
            3: calls.metadata,
            8: groups.offset_commit,
            9: groups.offset_fetch,
            10: calls.find_coordinator,
            11: groups.join_group,
            12: groups.heartbeat,
            13: groups.leave_group,
            14: groups.sync_group,
            15: group_admin.describe_groups,
            16: group_admin.list_groups,
            19: topics.create_topics,
            20: topics.delete_topics,
            21: topics.delete_records,
            22: calls.init_producer_id,
            23: calls.offset_for_leader_epoch,
            24: calls.add_partitions_to_txn,
            25: groups.add_offsets_to_txn,
            26: calls.end_txn,
            28: groups.txn_offset_commit,
            32: configs.describe,
            42: group_admin.delete_groups,
            44: configs.alter,
            47: group_admin.offset_delete,
            60: calls.describe_cluster,
            61: transaction_admin.describe_producers,
            65: transaction_admin.describe_transactions,
            66: transaction_admin.list_transactions,
        }
        await stack.enter_async_context(cluster.running())
        stack.push_async_callback(self._server.stop)
        await self._server.start()
        cluster.refuse_rival()
        coordination.start()
        stack.push_async_callback(coordination.stop)
        await broker.announcement.name_kafka(self.address)
        stack.push_async_callback(self._withdraw, broker)
        await cluster.until_announced()

    async def stop(self) -> None:
        await self._running.aclose()

    async def _withdraw(self, broker: Broker) -> None:
        """Others lead clients here no more."""
        with suppress(MetastoreError):  # the broker, which stops next, is announced no more either
            await broker.announcement.name_kafka(None)

    def _connect(self, link: FrameConnection | None = None) -> Callable[[memoryview], Awaitable[Reply | None]]:
        return partial(self._answer, turns=Turns(), session=SaslSession(self._authenticator, self._clock, link))

    async def _answer(self, received: memoryview, *, turns: Turns, session: SaslSession) -> Reply | None:
        cutter = Cutter(received)
        api_key, version, correlation = cutter.number(2), cutter.number(2), cutter.number(4)
        head = CORRELATION.pack(correlation)
        if api_key == API_VERSIONS and version not in OFFERED[API_VERSIONS]:
            return [head, _versions(0, KafkaCode.UNSUPPORTED_VERSION)]
        if version not in OFFERED.get(api_key, ()):
            raise MalformedRequest(f"request {api_key} in version {version} is not offered")
        client = cutter.text() or ""
        flexible = _is_flexible(api_key, version)
        cutter.flexible = flexible
        cutter.tags()
        if api_key == API_VERSIONS:
            return [head, _versions(version, KafkaCode.NONE)]
        if flexible:
            head += b"\0"
        if api_key == PRODUCE:
            return await self._produce.answer(version, cutter, head, turns, session.caller())
        if api_key == FETCH:
            return await self._fetch.answer(version, cutter, head, session.caller())
        proof = session.calls.get(api_key)
        caller = ANYONE if proof is not None else session.caller()
        call, response = proof or self._calls[api_key], CallResponse(api_key, version)
        request = read_call(api_key, version, cutter.rest, caller, session.address, client)
        return [head, response.encoded(await call(request, response))]


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_flexible(api_key: int, version: int) -> bool:
    if api_key == PRODUCE:
        return version >= produce.FLEXIBLE
    return version >= fetch.FLEXIBLE if api_key == FETCH else is_flexible(api_key, version)


def _versions(version: int, code: KafkaCode) -> bytes:
    from kio.schema.errors import ErrorCode

    response = CallResponse(API_VERSIONS, version)
    keys = tuple(
        response.make("ApiVersion", api_key=key, min_version=found[0], max_version=found[-1])
        for key, found in sorted(OFFERED.items())
    )
    return response.encoded(
        response.make("ApiVersionsResponse", error_code=ErrorCode(int(code)), api_keys=keys, throttle_time=NO_TIME)
    )
