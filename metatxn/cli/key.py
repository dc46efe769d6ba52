"""`metatxn key …`: transaction keys and their state."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Annotated

import typer

import metatxn
from metatxn.cli.completion import complete_key
from metatxn.cli.consent import ConsentOptions, takes_consent
from metatxn.cli.options import LimitOption, ServiceOptions, takes_session
from metatxn.cli.output import as_json, print_fields, print_json, print_rows, when, with_dates
from metatxn.key_history import epochs_of
from metatxn.words import short_id

app = typer.Typer(
    help="Take over, show, fence and delete transaction keys.", no_args_is_help=True, rich_markup_mode=None
)
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", autocompletion=complete_key)]
LIST_COLUMNS = ("KEY", "OWNER", "EPOCH", "TXN_ID", "LAST_VERSION", "UPDATED")
OwnerOption = Annotated[str | None, typer.Option(help="The principal that owns the key.")]


@app.command("list", epilog="Example: metatxn key list --owner billing")
@takes_session
def list_(session: ServiceOptions, owner: OwnerOption = None, limit: LimitOption = 1000) -> None:
    """List transaction keys."""
    with session.connect() as client:
        session.print_list(
            client.keys(owner),
            limit,
            LIST_COLUMNS,
            lambda key: (key.key, key.owner, key.epoch, key.txn_id, key.last_version, when(key.updated_ms)),
        )


@app.command(epilog="Example: metatxn key get nightly -o json")
@takes_session
def get(session: ServiceOptions, key: KeyArgument, owner: OwnerOption = None) -> None:
    """Show a key's epoch, its open transaction and the last version committed."""
    with session.connect() as client:
        found = client.key(key, owner)
    if session.json:
        print_json(found)
    else:
        print_fields(with_dates(as_json(found)))


@app.command(epilog="Example: metatxn key connect nightly -o json | jq .epoch")
@takes_session
@takes_consent
def connect(
    session: ServiceOptions,
    consent: ConsentOptions,
    key: KeyArgument,
    epoch: Annotated[
        int, typer.Option(min=-1, help="Connect only if this is the current epoch; -1 takes over from any holder.")
    ] = -1,
    name: Annotated[
        str | None, typer.Option("--session", help="A repeated connect with the same session returns the same epoch.")
    ] = None,
    owner: OwnerOption = None,
) -> None:
    """Take over a key: abort its open transaction and fence its previous holder. Prints the new epoch, which `metatxn
    txn begin --key` requires. A person is asked only if there is an open transaction."""
    with session.connect() as client:
        if consent.wants_effect and not _may_connect(session, consent, client, key, owner):
            return
        taken = client.connect_key(key, epoch, name, owner)
    if session.json:
        print_json(taken)
    else:
        print_fields(with_dates(as_json(taken)))


def _may_connect(
    session: ServiceOptions, consent: ConsentOptions, client: metatxn.Client, key: str, owner: str | None
) -> bool:
    try:
        held = client.key(key, owner)
    except metatxn.NotFound:
        return consent.given(session, lambda: f"connect to the new key {key}.") if consent.dry_run else True
    if held.txn_id is None and not consent.dry_run:
        return True
    open_ = f", and abort its transaction {short_id(held.txn_id)} unless it is prepared" if held.txn_id else ""
    return consent.given(session, lambda: f"take over key {key} from its holder in epoch {held.epoch}{open_}.")


@app.command(epilog="Example: metatxn key history nightly")
@takes_session
def history(session: ServiceOptions, key: KeyArgument, owner: OwnerOption = None, limit: LimitOption = 1000) -> None:
    """Show the epochs of a key, as far as its transactions are remembered: when each held it, and which transactions
    its successor has aborted."""
    with session.connect() as client:
        info = client.key(key, owner)
        found = epochs_of(info, itertools.islice(client.transactions(key=key, owner=owner, newest_first=True), limit))
    if session.json:
        print_json([dataclasses.asdict(each) for each in found])
        return
    print_rows(
        ("EPOCH", "FIRST_BEGUN", "LAST_BEGUN", "TRANSACTIONS", "COMMITTED", "OPEN", "FENCED"),
        (
            (
                *(each.epoch, when(each.first_ms), when(each.last_ms), each.begun, each.committed),
                *(each.open and short_id(each.open), ",".join(map(short_id, each.fenced))),
            )
            for each in found
        ),
    )


@app.command(epilog="Example: metatxn key fence nightly --owner billing")
@takes_session
@takes_consent
def fence(
    session: ServiceOptions,
    consent: ConsentOptions,
    key: KeyArgument,
    owner: OwnerOption = None,
    epoch: Annotated[
        int | None, typer.Option(min=0, help="Only if this is its epoch. [default: the current one]")
    ] = None,
) -> None:
    """End the connection of a key: its holder can begin and commit nothing more, and what it has open is aborted,
    unless it is prepared. The next connection can go on."""
    with session.connect() as client:
        found = client.key(key, owner)
        wanted = found.epoch if epoch is None else epoch
        open_ = f", and abort its transaction {short_id(found.txn_id)} unless it is prepared" if found.txn_id else ""
        if not consent.given(session, lambda: f"fence the holder of key {key}, which is in epoch {wanted}{open_}."):
            return
        done = client.fence_key(key, wanted, owner)
    if session.json:
        print_json(done)
    else:
        print_fields(with_dates(as_json(done)))


@app.command(epilog="Example: metatxn key delete nightly")
@takes_session
@takes_consent
def delete(session: ServiceOptions, consent: ConsentOptions, key: KeyArgument, owner: OwnerOption = None) -> None:
    """Delete a key and abort its open transaction. Its epoch never repeats."""

    def effect() -> str:
        found = client.key(key, owner)
        open_ = f", and abort its transaction {short_id(found.txn_id)}" if found.txn_id else ""
        return f"delete the key {key}, which is in epoch {found.epoch}{open_}."

    with session.connect() as client:
        if not consent.given(session, effect):
            return
        client.delete_key(key, owner)
    session.print_done({"deleted": key}, f"deleted {key}")
