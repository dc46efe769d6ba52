"""`metatxn key …`: transaction keys and what they hold."""

from __future__ import annotations

from typing import Annotated

import typer

from metatxn.cli.options import LimitOption, Session, takes_session
from metatxn.cli.output import as_json, print_fields, print_json, when

app = typer.Typer(
    help="Take over transaction keys, look at them, and remove them.", no_args_is_help=True, rich_markup_mode=None
)
KeyArgument = Annotated[str, typer.Argument(metavar="KEY")]
LIST_COLUMNS = ("KEY", "OWNER", "EPOCH", "TXN_ID", "LAST_VERSION", "UPDATED")
OwnerOption = Annotated[str | None, typer.Option(help="Whose key it is.")]


@app.command("list", epilog="Example: metatxn key list --owner billing")
@takes_session
def list_(session: Session, owner: OwnerOption = None, limit: LimitOption = 1000) -> None:
    """Transaction keys."""
    with session.connect() as client:
        session.print_list(
            client.keys(owner),
            limit,
            LIST_COLUMNS,
            lambda key: (key.key, key.owner, key.epoch, key.txn_id, key.last_version, when(key.updated_ms)),
        )


@app.command(epilog="Example: metatxn key get nightly -o json")
@takes_session
def get(session: Session, key: KeyArgument, owner: OwnerOption = None) -> None:
    """A key's epoch, its open transaction and the last version committed."""
    with session.connect() as client:
        found = client.key(key, owner)
    if session.json:
        print_json(found)
    else:
        print_fields(as_json(found))


@app.command(epilog="Example: metatxn key connect nightly -o json | jq .epoch")
@takes_session
def connect(
    session: Session,
    key: KeyArgument,
    epoch: Annotated[int, typer.Option(min=-1, help="Only if this is its epoch; -1: whoever has it.")] = -1,
    name: Annotated[str | None, typer.Option("--session", help="Under the same name again: the same epoch.")] = None,
    owner: OwnerOption = None,
) -> None:
    """Take a key over: its open transaction is aborted, and whoever worked under it is shut out. Prints its new epoch,
    which `metatxn txn begin --key` needs."""
    with session.connect() as client:
        taken = client.connect_key(key, epoch, name, owner)
    if session.json:
        print_json(taken)
    else:
        print_fields(as_json(taken))


@app.command(epilog="Example: metatxn key delete nightly")
@takes_session
def delete(session: Session, key: KeyArgument, owner: OwnerOption = None) -> None:
    """Remove a key and abort the transaction it holds. Its epoch never repeats."""
    with session.connect() as client:
        client.delete_key(key, owner)
    session.print_done({"deleted": key}, f"deleted {key}")
