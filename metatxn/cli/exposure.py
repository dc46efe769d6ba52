"""The options that say how a server faces the network. One table, for every command that starts one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Protocol, get_type_hints

import typer

from metatxn.cli import services
from metatxn.cli.options import CliError


class Exposure(Protocol):
    """What `service.exposure` makes of the options."""

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


def takes_exposure(command: Callable[..., None]) -> Callable[..., None]:
    """Puts the options of `ExposureOptions` in place of the parameter `exposure`, for typer to see."""

    @functools.wraps(command)
    def with_options(*arguments: Any, **given: Any) -> None:
        exposure = ExposureOptions(**{field.name: given.pop(field.name) for field in fields(ExposureOptions)})
        command(*arguments, exposure=exposure, **given)

    hints = get_type_hints(command, include_extras=True)
    of_options = get_type_hints(ExposureOptions, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != "exposure"
    ]
    shared = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hint)
        for field, hint in ((field, of_options[field.name]) for field in fields(ExposureOptions))
        if field.default is not MISSING
    ]
    signature = inspect.Signature([*own, *shared])
    with_options.__signature__ = signature  # type: ignore[attr-defined]
    with_options.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return with_options
