"""The options of a broker for clients of other systems, Kafka and Pulsar."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from metatxn.cli.options import CliError, takes


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """The name of each option begins with that of the system. None stands for its default; without a port a system is
    not served, and its other options mean nothing."""

    kafka_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Also serve topics with the format kafka to Kafka's clients, on this port (9092 is usual); 0 takes a "
            "free one. Needs metatxn[gateways].",
        ),
    ] = None
    kafka_advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The address at which Kafka's clients reach this broker. [default: the host of --advertise-url, with "
            "--kafka-port]",
        ),
    ] = None
    kafka_max_connections: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The most connections of Kafka's clients; further ones are closed at once. [default: 1000]",
        ),
    ] = None
    kafka_max_partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000,
            help="The most partitions that Kafka's clients may give a topic. [default: 100]",
        ),
    ] = None
    pulsar_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Also serve topics to Pulsar's V5 clients, on this port (6650 is usual); 0 takes a free one. They "
            "write to topics with the format pulsar. Needs metatxn[gateways].",
        ),
    ] = None
    pulsar_advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The address at which Pulsar's clients reach this broker. [default: the host of --advertise-url, with "
            "--pulsar-port]",
        ),
    ] = None
    pulsar_max_connections: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The most connections of Pulsar's clients; further ones are closed at once. [default: 1000]",
        ),
    ] = None

    def wanted(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """The systems to serve, each with its port and its other options. Raises `CliError` for an option without a
        port."""
        for name in ("kafka", "pulsar"):
            begins = f"{name}_"
            given = {key.removeprefix(begins): value for key, value in asdict(self).items() if key.startswith(begins)}
            port = given.pop("port")
            if port is not None:
                yield name, port, given
            elif (alone := next((key for key, value in given.items() if value is not None), None)) is not None:
                raise CliError(f"--{name}-{alone.replace('_', '-')} needs --{name}-port.")


takes_gateways = takes("gateways", GatewayOptions)
