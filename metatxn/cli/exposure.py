"""The options that say how a server is exposed to the network. One table serves every command that starts a server."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Protocol

import typer

from metatxn.cli import services
from metatxn.cli.options import CliError, takes
from metatxn.cli.times import duration_parser


class ServerExposure(Protocol):
    """What the commands need from `metatxn.service.exposure`."""

    def check(self, host: str) -> None: ...

    def describe(self, host: str) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposureOptions:
    """None stands for the service's own default."""

    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="METATXN_TOKEN_FILE",
            metavar="FILE",
            help="The tokens that may connect: entries of `metatxn token create`.",
        ),
    ] = None
    jwt_public_key: Annotated[
        Path | None,
        typer.Option(
            envvar="METATXN_JWT_PUBLIC_KEY",
            metavar="FILE",
            help="Accept JWTs that are signed with the matching private key.",
        ),
    ] = None
    jwt_audience: Annotated[
        str | None,
        typer.Option(envvar="METATXN_JWT_AUDIENCE", metavar="TEXT", help="The `aud` claim that JWTs must have."),
    ] = None
    allow_anonymous: Annotated[
        bool, typer.Option("--allow-anonymous", help="Let everyone who can reach the service do everything.")
    ] = False
    tls_cert: Annotated[
        Path | None,
        typer.Option(envvar="METATXN_TLS_CERT", metavar="FILE", help="Serve https with this certificate chain (PEM)."),
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(envvar="METATXN_TLS_KEY", metavar="FILE", help="The private key of --tls-cert.")
    ] = None
    max_body_bytes: Annotated[
        int | None, typer.Option(min=1, help="Maximum size of one request body. [default: 16 MiB]")
    ] = None
    max_headers: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of headers of one request. [default: 100]")
    ] = None
    max_requests: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of requests in progress at the same time. [default: 4096]")
    ] = None
    requests_per_second: Annotated[
        float | None, typer.Option(min=0.01, help="Rate limit for each principal or address. [default: no limit]")
    ] = None
    body_timeout_ms: Annotated[
        int | None,
        typer.Option(
            parser=duration_parser(1), metavar="DURATION", help="Time for a request body to arrive. [default: 60000]"
        ),
    ] = None
    request_timeout_ms: Annotated[
        int | None,
        typer.Option(
            parser=duration_parser(1),
            metavar="DURATION",
            help="Time for an answer; longer than the longest long poll. [default: 120000]",
        ),
    ] = None

    slow_request_ms: Annotated[
        int | None,
        typer.Option(
            parser=duration_parser(1),
            metavar="DURATION",
            help="An answer that takes longer is logged. [default: 1000]",
        ),
    ] = None

    def open(self, *hosts: str) -> ServerExposure:
        """Read the files. Raises `CliError` if that fails, or if a host must not be listened on with these options."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        try:
            exposure: ServerExposure = services.load("exposure")(
                **{name: value for name, value in given.items() if value is not None}
            )
            for host in hosts:
                exposure.check(host)
        except ValueError as error:
            raise CliError(str(error)) from error
        return exposure


takes_exposure = takes("exposure", ExposureOptions)
"""The decorator of every command that starts a server."""
