"""The ways of the clients of a listener, Kafka's or Pulsar's: each to each broker, and behind them one to each broker,
which all of them share.

    member-0 ──▶ door of broker-0 ──relay of member-0──▶ relay `kafka>broker-0` ──▶ broker-0
          └────▶ door of broker-1 ──relay of member-0──▶ relay `kafka>broker-1` ──▶ broker-1

A broker tells all clients the same address, that of its door. Who comes in there is known by the process at the other
end of the connection. So one client can be cut off from all brokers, and one broker from all clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from tests.metastore.storms.relay import Relay, Relays
from tests.partitions import caller


class ClientWays:
    """`addresses` are those of the doors, by broker; `of_client` is the way of each client to all brokers."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self.of_client: dict[str, Relays] = {}


@asynccontextmanager
async def client_ways(
    brokers: Mapping[str, int], clients: Callable[[], Mapping[str, int | None]]
) -> AsyncIterator[ClientWays]:
    """`brokers` are the ports to which the relays of clients lead; `clients` gives the id of each process that runs."""
    ways = ClientWays()
    relays = {name: {broker: Relay(port) for broker, port in brokers.items()} for name in clients()}
    async with AsyncExitStack() as stack:
        for name, to_brokers in relays.items():
            ways.of_client[name] = Relays(*to_brokers.values())
            for relay in to_brokers.values():
                stack.push_async_callback(relay.close)
        for broker in brokers:
            of_clients = {name: to_brokers[broker] for name, to_brokers in relays.items()}
            door = await asyncio.start_server(partial(_arrive, of_clients, clients), "127.0.0.1", 0)
            stack.callback(door.close)
            ways.addresses[broker] = f"127.0.0.1:{door.sockets[0].getsockname()[1]}"
        yield ways


def _arrive(
    relays: Mapping[str, Relay],
    clients: Callable[[], Mapping[str, int | None]],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    name = caller(writer, clients())
    if name is None:
        writer.transport.abort()  # it has gone again
    else:
        relays[name].accept(reader, writer)
