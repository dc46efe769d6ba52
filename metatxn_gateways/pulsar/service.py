"""Pulsar's binary protocol on a port of a broker, for the V5 clients, which know segments and transactions like ours.

See DECISIONS.md for what is mapped to what.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from urllib.parse import urlsplit

from metastore.api import MetadataStore
from metastore.errors import MetastoreError
from metastore.versions import Feature
from metatxn.service.exposure import Exposure, InvalidExposure
from metatxn.service.versions import require
from metatxn_gateways.kafka.cluster import node_at
from metatxn_gateways.listener import MAX_CONNECTIONS, FrameConnection, FrameServer, Handler
from metatxn_gateways.pulsar.brokers import PulsarBrokers
from metatxn_gateways.pulsar.connection import PulsarConnection
from metatxn_gateways.pulsar.layouts import SegmentGraphs
from metatxn_gateways.pulsar.metrics import PulsarMetrics
from metatxn_gateways.pulsar.ordered import OrderedConsumers
from metatxn_gateways.pulsar.session import Context
from metatxn_gateways.pulsar.subscribing import Subscribing
from metatxn_gateways.pulsar.topic_schemas import TopicSchemas
from metatxn_gateways.serving import ServingBroker, transactions_of
from participants.broker.broker import Broker

DEFAULT_PORT = 6650


class PulsarListener:
    """Serves Pulsar's binary protocol for the topics of `service`.

    It asks for the same tokens as the broker's own interface (`authentication`), over TLS where that uses TLS. Raises
    `InvalidExposure` for an address that other machines reach without a token, unless everyone may do everything.
    `advertise` is the address, as `host:port`, at which clients reach it if it is another one than that of the broker
    with this port; raises `InvalidExposure` for any other text. Connections beyond `max_connections` are closed at
    once.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        service: ServingBroker,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        advertise: str | None = None,
        max_connections: int = MAX_CONNECTIONS,
        exposure: Exposure | None = None,
    ) -> None:
        exposure = exposure or Exposure()
        exposure.check(host)
        if advertise is not None:
            try:
                node_at(advertise)
            except ValueError as error:
                raise InvalidExposure(
                    f"--pulsar-advertise: {error}. Give the address that clients connect to."
                ) from None
        self._store = store
        self._service = service
        self._host = host
        self._advertise = advertise
        self._authenticator = exposure.authenticator
        self._scheme = "pulsar" if exposure.tls is None else "pulsar+ssl"
        self._metrics = PulsarMetrics(lambda: self._server.connections)
        self._server = FrameServer(
            self._connect, host, port, exposure.tls, self._metrics.connection_closed, max_connections=max_connections
        )
        self._layouts = SegmentGraphs(store)
        self._running = AsyncExitStack()

    @property
    def url(self) -> str:
        """The URL that Pulsar's clients call a service URL, and to which other brokers send them. It is known once this
        listens."""
        host = urlsplit(self._service.url).hostname or self._host
        address = self._advertise or f"{f'[{host}]' if ':' in host else host}:{self._server.port}"
        return f"{self._scheme}://{address}"

    async def start(self) -> None:
        """Start to listen. Raises `OSError` if the port is in use, UPGRADE_PENDING, and the store's errors."""
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._running = stack.pop_all()

    async def _start(self, stack: AsyncExitStack) -> None:
        broker = self._service.broker
        assert broker is not None, "the broker has started"
        await require(self._store, broker.version, Feature.PULSAR)
        ordered, brokers = OrderedConsumers(broker, self._layouts), PulsarBrokers(broker, lambda: self.url)
        stack.callback(ordered.end)
        self._context = Context(
            broker,
            transactions_of(broker),
            self._layouts,
            TopicSchemas(self._store, broker.clock),
            Subscribing(broker),
            ordered,
            self._authenticator,
            brokers,
            self._service.quotas,
            self._metrics,
        )
        await stack.enter_async_context(self._layouts.running())
        await stack.enter_async_context(brokers.running())
        stack.push_async_callback(self._server.stop)
        await self._server.start()
        self._metrics.register(broker.metrics.registry)
        stack.callback(broker.metrics.registry.unregister, self._metrics)
        await broker.announcement.name_pulsar(self.url)
        stack.push_async_callback(self._withdraw, broker)

    async def stop(self) -> None:
        await self._running.aclose()

    async def _withdraw(self, broker: Broker) -> None:
        """Withdraw the URL, so that other brokers no longer send clients here."""
        with suppress(MetastoreError):  # the broker, which stops next, is no longer announced either
            await broker.announcement.name_pulsar(None)

    def _connect(self, link: FrameConnection) -> Handler:
        return PulsarConnection(self._context, link).handle
