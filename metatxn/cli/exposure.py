"""The options that say how a server faces the network. One table, for every command that starts one."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Protocol

import typer

from metatxn.cli import services
from metatxn.cli.options import CliError, takes


class Exposure(Protocol):
    """What `metatxn.service.exposure` makes of the options."""

    def check(self, host: str) -> None: ...

    def describe(self, host: str) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposureOptions:
    """None: the service's own default."""

    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="METATXN_TOKEN_FILE", metavar="FILE", help="Who may connect: entries of `metatxn token create`."
        ),
    ] = None
    jwt_public_key: Annotated[
        Path | None,
        typer.Option(envvar="METATXN_JWT_PUBLIC_KEY", metavar="FILE", help="Accept JWTs signed with its other half."),
    ] = None
    jwt_audience: Annotated[
        str | None, typer.Option(envvar="METATXN_JWT_AUDIENCE", metavar="TEXT", help="The `aud` that JWTs must have.")
    ] = None
    allow_anonymous: Annotated[
        bool, typer.Option("--allow-anonymous", help="Let everybody do everything, also from other machines.")
    ] = False
    tls_cert: Annotated[
        Path | None, typer.Option(envvar="METATXN_TLS_CERT", metavar="FILE", help="Serve https: PEM, with its chain.")
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(envvar="METATXN_TLS_KEY", metavar="FILE", help="The key of --tls-cert.")
    ] = None
    max_body_bytes: Annotated[int | None, typer.Option(min=1, help="Of one request. [default: 16 MiB]")] = None
    max_headers: Annotated[int | None, typer.Option(min=1, help="Of one request. [default: 100]")] = None
    max_requests: Annotated[int | None, typer.Option(min=1, help="Under way at once. [default: 4096]")] = None
    requests_per_second: Annotated[
        float | None, typer.Option(min=0.01, help="Of one principal or address. [default: no limit]")
    ] = None
    body_timeout_ms: Annotated[int | None, typer.Option(min=1, help="For a body to arrive. [default: 60000]")] = None
    request_timeout_ms: Annotated[
        int | None, typer.Option(min=1, help="For an answer; above the longest long poll. [default: 120000]")
    ] = None

    def open(self, *hosts: str) -> Exposure:
        """Reads the files. Raises `CliError`, also for a host that must not be listened on like this."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        try:
            exposure: Exposure = services.load("exposure")(
                **{name: value for name, value in given.items() if value is not None}
            )
            for host in hosts:
                exposure.check(host)
        except ValueError as error:
            raise CliError(str(error)) from error
        return exposure


takes_exposure = takes("exposure", ExposureOptions)
"""For every command that starts a server."""
