"""Kafka's listener of a simulated broker, and the connections of Kafka's clients to it.

A request has a connection of its own, and its client hangs up when it no longer waits. So it arrives once and in time,
or not at all; while it is under way it may be cancelled at any point, and what it has done then is not told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from starlette.types import Receive, Scope, Send

from metastore.api import MetadataStore
from metatxn_gateways.kafka.requests import KafkaRequest
from metatxn_gateways.kafka.service import DEFAULT_PORT, KafkaListener
from metatxn_gateways.listener import FrameConnection, Reply
from metatxn_gateways.serving import ServingBroker
from tests.gateways.asking import Asking, Link, framed, read_answer
from tests.simulation.network import Network, Request
from tests.simulation.processes import Process
from tests.simulation.world import World

TIMEOUT_S = 6.0
LONG_TIMEOUT_S = 15.0
"""Of requests that wait for other members."""
_LONG = (KafkaRequest.JOIN_GROUP, KafkaRequest.SYNC_GROUP)


def address_of(broker: str) -> str:
    """Of the listener of the broker in this place."""
    return f"{broker}:{DEFAULT_PORT}"


class SimulatedKafkaListener(KafkaListener):
    def __init__(self, store: MetadataStore, service: ServingBroker, network: Network, process: Process) -> None:
        address = address_of(process.name)
        super().__init__(store, service=service, advertise=address)
        self._server = InProcessFrameServer(network, process, f"http://{address}", self._connect)  # type: ignore[assignment]


class InProcessFrameServer:
    """What a listener of frames serves with: a place in the network."""

    connections = 0
    port = DEFAULT_PORT

    def __init__(
        self,
        network: Network,
        process: Process,
        base: str,
        connect: Callable[[FrameConnection], Callable[[memoryview], Awaitable[Reply | None]]],
    ) -> None:
        self._network = network
        self._process = process
        self._base = base
        self._connect = connect

    async def start(self) -> None:
        self._network.listen(self._base, self._process, self._serve)

    async def stop(self) -> None:
        self._network.close(self._base, self._process)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        frame = memoryview(bytearray((await receive())["body"]))
        link = Link()
        answering = asyncio.ensure_future(self._connect(cast(FrameConnection, link))(frame))
        answering.add_done_callback(lambda _: link.on_lost())
        hung_up = asyncio.ensure_future(receive())
        await asyncio.wait([answering, hung_up], return_when=asyncio.FIRST_COMPLETED)
        hung_up.cancel()
        if not answering.done():
            answering.cancel()
            await asyncio.wait([answering])
            return
        parts = answering.result()
        assert parts is not None, "no client here asks without wanting an answer"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"".join(parts)})


class Connections:
    """Of one client. `to` gives the calls of a broker; they raise `Unreachable` and `NoAnswer`."""

    def __init__(self, world: World, network: Network) -> None:
        self._world = world
        self._network = network

    def to(self, address: str) -> Asking:
        async def ask(api_key: int, version: int, entity: Any) -> Any:
            sent = Request(
                "POST", f"http://{address}/{KafkaRequest(api_key).label}", bytes(framed(api_key, version, entity))
            )
            answer = await self._network.request(sent, LONG_TIMEOUT_S if api_key in _LONG else TIMEOUT_S, once=True)
            return read_answer(api_key, version, answer.body)

        return Asking(ask)
