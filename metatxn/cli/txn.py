"""`metatxn txn …`: begin, end and look at transactions."""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import typer

from coordinator.api.models import HangingTransaction, State, TransactionHeader
from metatxn.cli.options import CliError, OutputOption, TokenOption, UrlOption, connect, output_of
from metatxn.cli.output import Output, as_json, print_fields, print_json, print_rows, when

app = typer.Typer(
    help="Begin, end and look at transactions.",
    epilog="Example: metatxn txn begin --timeout-ms 60000 -o json | jq -r .txn_id",
    no_args_is_help=True,
    rich_markup_mode=None,
)
TxnIdArgument = Annotated[str, typer.Argument(metavar="TXN_ID", help="32 hex digits, as `txn begin` prints them.")]
HANGING_COLUMNS = (
    *("SINCE", "AGE_S", "TXN_ID", "OWNER", "KEY"),
    *("SEGMENT", "SUBSCRIPTION", "AFTER", "PREPARED", "WRITERS"),
)
LIST_COLUMNS = ("TXN_ID", "STATE", "CREATED", "DEADLINE", "KEY", "OWNER")


def show_header(header: TransactionHeader, output: Output) -> None:
    if output is Output.JSON:
        print_json(header)
        return
    fields = as_json(header)
    print_fields({name: when(value) if name.endswith("_ms") else value for name, value in fields.items()})


@app.command(epilog="Example: metatxn txn begin --timeout-ms 600000 --key nightly --epoch 3 --version 42")
def begin(
    context: typer.Context,
    timeout_ms: Annotated[int, typer.Option(help="It is aborted when it is open for longer.")] = 60_000,
    key: Annotated[str | None, typer.Option(help="Transaction key: at most one of its transactions is open.")] = None,
    epoch: Annotated[
        int | None, typer.Option(help="Epoch of the key's connection; without it the current one.")
    ] = None,
    version: Annotated[int | None, typer.Option(help="Begun again, it is found again; committed, it is done.")] = None,
    owner: Annotated[str | None, typer.Option(help="Who it belongs to.")] = None,
    properties: Annotated[list[str] | None, typer.Option("--property", metavar="NAME=VALUE")] = None,
    url: UrlOption = None,
    token: TokenOption = None,
    output: OutputOption = None,
) -> None:
    """Begin a transaction and print its id."""
    with connect(context, url, token) as client:
        txn = client.begin(timeout_ms, key, epoch, version, named_values(properties), owner)
        show_header(txn.header, output_of(context, output))


@app.command(epilog="Example: metatxn txn commit 0000000000000000000000000000002a")
def commit(
    context: typer.Context,
    txn_id: TxnIdArgument,
    writers: Annotated[
        list[str] | None, typer.Option("--writer", help="Only these writers count; may be repeated.")
    ] = None,
    url: UrlOption = None,
    token: TokenOption = None,
    output: OutputOption = None,
) -> None:
    """Commit: everything sent inside becomes visible, on all topics. Repeating it is harmless."""
    with connect(context, url, token) as client:
        show_header(client.attach(txn_id).commit(writers), output_of(context, output))


@app.command(epilog="Example: metatxn txn abort 0000000000000000000000000000002a --reason 'wrong input'")
def abort(
    context: typer.Context,
    txn_id: TxnIdArgument,
    reason: Annotated[str | None, typer.Option(help="Kept in the transaction's header.")] = None,
    force: Annotated[bool, typer.Option("--force", help="End a prepared one too.")] = False,
    url: UrlOption = None,
    token: TokenOption = None,
    output: OutputOption = None,
) -> None:
    """Abort: nothing sent inside ever becomes visible. Repeating it is harmless."""
    with connect(context, url, token) as client:
        show_header(client.attach(txn_id).abort(reason, force=force), output_of(context, output))


@app.command(epilog="Example: metatxn txn show 0000000000000000000000000000002a --operations")
def show(
    context: typer.Context,
    txn_id: TxnIdArgument,
    operations: Annotated[bool, typer.Option("--operations", help="What it did, as far as it is kept.")] = False,
    url: UrlOption = None,
    token: TokenOption = None,
    output: OutputOption = None,
) -> None:
    """A transaction's state, now."""
    with connect(context, url, token) as client:
        header = client.attach(txn_id).header
        found = list(client.operations(txn_id)) if operations else []
        if output_of(context, output) is Output.JSON:
            print_json(as_json(header) | ({"operations": as_json(found)} if operations else {}))
            return
        show_header(header, Output.TABLE)
        if operations:
            print()
            columns = ("KIND", "SEGMENT", "COUNT", "WRITER", "SEQUENCE", "SUBSCRIPTION")
            rows = [(op.kind, op.segment, op.count, op.writer, op.sequence, op.subscription) for op in found]
            print_rows(columns, rows)


@app.command("list", epilog="Example: metatxn txn list --state open --older-than-ms 60000")
def list_(
    context: typer.Context,
    state: Annotated[str | None, typer.Option(help="open, committed or aborted, in lower or upper case.")] = None,
    key: Annotated[str | None, typer.Option(help="Of this transaction key.")] = None,
    owner: Annotated[str | None, typer.Option(help="Of this owner.")] = None,
    segment: Annotated[str | None, typer.Option(help="With operations on this segment.")] = None,
    older_than_ms: Annotated[int | None, typer.Option(min=0, help="Begun at least so long ago.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    url: UrlOption = None,
    token: TokenOption = None,
    output: OutputOption = None,
) -> None:
    """Transactions, filtered."""
    with connect(context, url, token) as client:
        found = client.transactions(
            parsed_state(state), key=key, owner=owner, segment=segment, older_than_ms=older_than_ms
        )
        headers = list(itertools.islice(found, limit))
    if output_of(context, output) is Output.JSON:
        print_json(headers)
        return
    rows = [(h.txn_id, h.state, when(h.created_ms), when(h.deadline_ms), h.transaction_key, h.owner) for h in headers]
    print_rows(LIST_COLUMNS, rows)


@app.command(epilog="Example: metatxn txn hanging --max-age-ms 600000 | grep orders")
def hanging(
    context: typer.Context,
    max_age_ms: Annotated[int, typer.Option(min=0, help="Open for longer than this.")] = 60_000,
    limit: Annotated[int, typer.Option(min=1, help="At most so many transactions.")] = 1000,
    url: UrlOption = None,
    token: TokenOption = None,
    output: OutputOption = None,
) -> None:
    """Who holds back which segment's readers, and since when: one line per transaction and segment, oldest first."""
    with connect(context, url, token) as client:
        found = sorted(itertools.islice(client.hanging(max_age_ms), limit), key=lambda txn: txn.age_ms, reverse=True)
    if output_of(context, output) is Output.JSON:
        print_json(found)
        return
    print_rows(HANGING_COLUMNS, [row for txn in found for row in hanging_rows(txn)])


def hanging_rows(txn: HangingTransaction) -> list[tuple[Any, ...]]:
    """One for each segment it touches; one that touches nothing has a row too."""
    who = (when(txn.created_ms), txn.age_ms // 1000, txn.txn_id, txn.owner, txn.transaction_key)
    rest = ("yes" if txn.prepared else None, ",".join(txn.writers or ()))
    places: list[tuple[str | None, ...]] = [(at.segment, at.subscription, at.after) for at in txn.touched]
    places += [("more", None, None)] if txn.more_touched else []
    return [(*who, *place, *rest) for place in places or [(None, None, None)]]


def parsed_state(text: str | None) -> State | None:
    match (text or "").upper():
        case "":
            return None
        case "OPEN" | "COMMITTED" | "ABORTED" as state:
            return state
        case _:
            raise CliError(f"--state: {text!r} is no state. Use open, committed or aborted.")


def named_values(properties: list[str] | None) -> dict[str, str] | None:
    if not properties:
        return None
    pairs = [text.partition("=") for text in properties]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise CliError(f"--property: {name!r} has no value. Use NAME=VALUE.")
    return {name: value for name, _, value in pairs}
