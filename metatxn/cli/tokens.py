"""`metatxn token …`: create the entries that `--token-file` lists, and see what a token may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from metatxn.cli import services
from metatxn.cli.options import CliError, LimitOption, OutputOption, ServiceOptions, output_of, takes_session
from metatxn.cli.output import Output, print_fields, print_json, print_rows
from metatxn.wire.access import AcceptedToken

LIST_COLUMNS = ("PRINCIPAL", "ADMIN", "TOPICS", "TOKEN", "AUDIENCE")

app = typer.Typer(
    help="Create tokens for --token-file, and see what a token may do.",
    epilog="Example: metatxn token create --name billing --topic 'public/default/orders*=produce,consume'",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(epilog="Example: metatxn token create --name ops --admin")
def create(
    context: typer.Context,
    name: Annotated[str, typer.Option(help="The principal, which owns the transactions begun with this token.")],
    admin: Annotated[
        bool, typer.Option("--admin", help="The principal may do everything, even with what others own.")
    ] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN=RIGHTS",
            help="The rights produce, consume and admin on tenant/namespace/topic; * matches any text.",
        ),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Create a token and its entry for the token file. The token is shown once; the entry contains only its hash."""
    create_token: Callable[..., tuple[str, str]] = services.load("create_token")
    try:
        token, entry = create_token(name, admin=admin, topics=dict(_pair(text) for text in topic or ()))
    except ValueError as error:
        raise CliError(f"{error}. See `metatxn token create --help`.") from error
    if output_of(context, output) is Output.JSON:
        print_json({"token": token, "entry": entry})
    else:
        print(f"token  {token}\n\nKeep the token: it is shown only now. Add this entry to the token file:\n\n{entry}")


@app.command(epilog="Example: METATXN_TOKEN=… metatxn token show")
@takes_session
def show(session: ServiceOptions) -> None:
    """Show who you are to the services, by your token, and what you may do."""
    with session.connect() as client:
        found = client.access()
    if session.json:
        print_json(found)
        return
    print_fields({"principal": found.principal or "none: there is no authentication", "admin": found.admin})
    if found.topics:
        print()
        print_rows(("TOPICS", "RIGHTS"), [(pattern, ", ".join(rights)) for pattern, rights in found.topics.items()])


@app.command("list", epilog="Example: metatxn token list -o json")
@takes_session
def list_(session: ServiceOptions, limit: LimitOption = 1000) -> None:
    """List the tokens that are accepted, and what may be done with each. For administrators."""
    with session.connect() as client:
        session.print_list(client.accepted_tokens(), limit, LIST_COLUMNS, _row)


def _row(token: AcceptedToken) -> tuple[Any, ...]:
    if token.kind == "signed":
        return "claim sub", "claim metatxn", "claim metatxn", f"signed, {token.algorithm}", token.audience
    topics = "; ".join(f"{pattern}={','.join(rights)}" for pattern, rights in token.topics.items())
    return token.principal, token.admin, topics, token.id, None


def _pair(text: str) -> tuple[str, str]:
    pattern, separator, rights = text.rpartition("=")
    if not separator:
        raise CliError(f"--topic {text!r}: give PATTERN=RIGHTS, as in 'public/default/*=consume'.")
    return pattern, rights
