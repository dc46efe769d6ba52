"""Options that many commands take, before the command or behind it, and the client they lead to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

import metatxn
from metatxn.cli.output import Output

DEFAULT_URL = "http://127.0.0.1:8470"

UrlOption = Annotated[
    str | None,
    typer.Option("--url", help=f"Any coordinator or broker. [env: METATXN_URL] [default: {DEFAULT_URL}]"),
]
TokenOption = Annotated[str | None, typer.Option("--token", help="Bearer token. [env: METATXN_TOKEN]")]
OutputOption = Annotated[Output | None, typer.Option("--output", "-o", help="[default: table]")]


@dataclass(frozen=True, slots=True)
class Shared:
    """What was given before the command."""

    url: str = DEFAULT_URL
    token: str | None = None
    ca: str | None = None
    output: Output = Output.TABLE


class CliError(Exception):
    """One line for the user: what is wrong, and what to do."""


def shared(context: typer.Context) -> Shared:
    found = context.find_root().obj
    return found if isinstance(found, Shared) else Shared()


def output_of(context: typer.Context, output: Output | None) -> Output:
    return output or shared(context).output


def connect(context: typer.Context, url: str | None, token: str | None) -> metatxn.Client:
    """A client of a service that answers. A person does not want to wait for one that is not there."""
    given = shared(context)
    client = metatxn.connect(url or given.url, token=token or given.token or None, ca=given.ca)
    try:
        client.cluster(patient=False)
    except metatxn.MetatxnError:
        client.close()
        raise
    return client
