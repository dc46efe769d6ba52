"""`metatxn key …`: transaction keys and what they hold."""

from __future__ import annotations

import itertools
from typing import Annotated

import typer

from metatxn.cli.options import OutputOption, TokenOption, UrlOption, connect, output_of
from metatxn.cli.output import Output, as_json, print_fields, print_json, print_rows, when

app = typer.Typer(help="Look at transaction keys, and remove them.", no_args_is_help=True, rich_markup_mode=None)
KeyArgument = Annotated[str, typer.Argument(metavar="KEY")]
OwnerOption = Annotated[str | None, typer.Option(help="Whose key it is.")]


@app.command("list", epilog="Example: metatxn key list --owner billing")
def list_(
    context: typer.Context,
    owner: OwnerOption = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 1000,
    url: UrlOption = None,
    token: TokenOption = None,
    output: OutputOption = None,
) -> None:
    """Transaction keys."""
    with connect(context, url, token) as client:
        keys = list(itertools.islice(client.keys(owner), limit))
    if output_of(context, output) is Output.JSON:
        print_json(keys)
        return
    columns = ("KEY", "OWNER", "EPOCH", "TXN_ID", "LAST_VERSION", "UPDATED")
    print_rows(columns, [(k.key, k.owner, k.epoch, k.txn_id, k.last_version, when(k.updated_ms)) for k in keys])


@app.command(epilog="Example: metatxn key get nightly -o json")
def get(
    context: typer.Context,
    key: KeyArgument,
    owner: OwnerOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    output: OutputOption = None,
) -> None:
    """A key's epoch, its open transaction and the last version committed."""
    with connect(context, url, token) as client:
        found = client.key(key, owner)
    if output_of(context, output) is Output.JSON:
        print_json(found)
    else:
        print_fields(as_json(found))


@app.command(epilog="Example: metatxn key delete nightly")
def delete(
    context: typer.Context,
    key: KeyArgument,
    owner: OwnerOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    output: OutputOption = None,
) -> None:
    """Remove a key and abort the transaction it holds. Its epoch never repeats."""
    with connect(context, url, token) as client:
        client.delete_key(key, owner)
    if output_of(context, output) is Output.JSON:
        print_json({"deleted": key})
    else:
        print(f"deleted {key}")
