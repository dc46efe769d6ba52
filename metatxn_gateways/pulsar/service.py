"""Pulsar's binary protocol on a port of a broker, for the V5 clients, which know segments and transactions like ours.

See DECISIONS.md for what is mapped to what.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from urllib.parse import urlsplit

from coordinator.transactions import Transactions
from metastore.api import MetadataStore
from metastore.versions import Feature
from metatxn.service.exposure import Exposure, InvalidExposure
from metatxn.service.versions import require
from metatxn_gateways.listener import FrameConnection, FrameServer, Handler
from metatxn_gateways.pulsar.connection import PulsarConnection
from metatxn_gateways.pulsar.layouts import SegmentGraphs
from metatxn_gateways.pulsar.ordered import OrderedConsumers
from metatxn_gateways.pulsar.session import Context
from metatxn_gateways.pulsar.subscribing import Subscribing
from metatxn_gateways.serving import ServingBroker

DEFAULT_PORT = 6650


class PulsarListener:
    """Serves Pulsar's binary protocol for the topics of `service`.

    There is no authentication in it yet: raises `InvalidExposure` where the broker's own interface asks for a token or
    uses TLS, and for an address that other machines reach, unless everyone may do everything.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        service: ServingBroker,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        exposure: Exposure | None = None,
    ) -> None:
        exposure = exposure or Exposure()
        if exposure.authenticator is not None or exposure.tls is not None:
            raise InvalidExposure(
                "--pulsar-port: Pulsar's clients cannot show a token yet, nor use TLS. "
                "Leave it out, or serve without authentication on this machine alone."
            )
        exposure.check(host)
        self._store = store
        self._service = service
        self._host = host
        self._server = FrameServer(self._connect, host, port)
        self._layouts = SegmentGraphs(store)
        self._running = AsyncExitStack()

    @property
    def url(self) -> str:
        """The URL that Pulsar's clients call a service URL."""
        return f"pulsar://{urlsplit(self._service.url).hostname or self._host}:{self._server.port}"

    async def start(self) -> None:
        """Start to listen. Raises `OSError` if the port is in use, UPGRADE_PENDING, and the store's errors."""
        broker = self._service.broker
        assert broker is not None, "the broker has started"
        await require(self._store, broker.version, Feature.PULSAR)
        transactions = Transactions(self._store, broker.clock)
        ordered = OrderedConsumers(broker, self._layouts)
        self._context = Context(broker, transactions, self._layouts, Subscribing(broker), ordered, lambda: self.url)
        self._running.callback(ordered.end)
        await self._running.enter_async_context(self._layouts.running())
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()
        await self._running.aclose()

    def _connect(self, link: FrameConnection) -> Handler:
        return PulsarConnection(self._context, link).handle
