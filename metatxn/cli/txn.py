"""`metatxn txn …`: begin, end and show transactions."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer

import metatxn
from metatxn.cli.completion import complete_key, complete_segment, complete_txn
from metatxn.cli.consent import ConsentOptions, takes_consent
from metatxn.cli.options import CliError, LimitOption, ServiceOptions, takes_session
from metatxn.cli.output import as_json, print_fields, print_json, print_note, print_rows, when, with_dates
from metatxn.cli.times import DURATION_HELP, milliseconds_of, one_duration
from metatxn.hanging_costs import HangingCost
from metatxn.timeline import MOST_OPERATIONS, timeline
from metatxn.wire.coordinator import HangingTransaction, State, StoredRecord, TransactionHeader
from metatxn.words import short_id

app = typer.Typer(
    help="Begin, end and show transactions.",
    epilog="Example: metatxn txn begin --timeout 1m -o json | jq -r .txn_id",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def full_id(text: str) -> str:
    """The id of a transaction, which may be given without its leading zeros."""
    if not _SHORT_ID.fullmatch(text):
        raise CliError(f"{text!r} is not a transaction id. Give up to 32 lower-case hexadecimal digits, such as 2a.")
    return text.zfill(32)


TxnIdArgument = Annotated[
    str,
    typer.Argument(
        metavar="TXN_ID",
        autocompletion=complete_txn,
        help="As `metatxn txn begin` prints it: 32 hexadecimal digits; leading zeros may be left out.",
    ),
]
HANGING_COLUMNS = (
    *("SINCE", "AGE_S", "TXN_ID", "OWNER", "KEY"),
    *("SEGMENT", "SUBSCRIPTION", "AFTER", "PREPARED", "WRITERS"),
)
COST_COLUMNS = ("READERS", "ENTRIES", "BYTES", "ACKNOWLEDGED", "SUBSCRIPTIONS")
LIST_COLUMNS = ("TXN_ID", "STATE", "CREATED", "DEADLINE", "KEY", "OWNER", "PREPARED")
DEFAULT_TIMEOUT_MS = 60_000
_SHORT_ID = re.compile(r"[0-9a-f]{1,32}", re.ASCII)
TIMELINE_COLUMNS = ("AT", "EVENT", "SEGMENT", "WHAT")
RECORD_COLUMNS = ("VERSION", "KEY", "VALUE", "COMMAND")
OPERATION_COLUMNS = ("KIND", "SEGMENT", "COUNT", "WRITER", "SEQUENCE", "SUBSCRIPTION")


def show_header(session: ServiceOptions, header: TransactionHeader) -> None:
    if session.json:
        print_json(header)
    else:
        print_header(header)


def print_header(header: TransactionHeader) -> None:
    print_fields(with_dates(as_json(header)))


@app.command(epilog="Example: metatxn txn begin --timeout 10m --key nightly --epoch 3 --version 42")
@takes_session
def begin(
    session: ServiceOptions,
    timeout_ms: Annotated[
        int, typer.Option(help="The transaction is aborted if it is open for longer.")
    ] = DEFAULT_TIMEOUT_MS,
    timeout: Annotated[str | None, typer.Option(metavar="DURATION", help=f"The same: {DURATION_HELP}.")] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="The transaction key, which has at most one open transaction; requires --epoch.",
            autocompletion=complete_key,
        ),
    ] = None,
    epoch: Annotated[int | None, typer.Option(help="The key's epoch, as `metatxn key connect` prints it.")] = None,
    version: Annotated[
        int | None,
        typer.Option(help="Retrying an open version returns the same transaction; a committed one is a no-op."),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="The principal that owns the transaction.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="A property of the transaction. May be repeated."),
    ] = None,
) -> None:
    """Begin a transaction and print its id."""
    timeout_ms = one_duration("--timeout", timeout, timeout_ms, DEFAULT_TIMEOUT_MS)
    if key is not None and epoch is None:
        raise CliError(
            f"--key: needs --epoch. `metatxn key get {shlex.quote(key)}` shows its state; "
            f"`metatxn key connect {shlex.quote(key)}` takes it over and prints the new epoch."
        )
    with session.connect() as client:
        txn = client.begin(timeout_ms, key, epoch, version, named_values(properties), owner)
        show_header(session, txn.header)


@app.command(epilog="Example: metatxn txn commit 0000000000000000000000000000002a")
@takes_session
def commit(
    session: ServiceOptions,
    txn_id: TxnIdArgument,
    writers: Annotated[
        list[str] | None, typer.Option("--writer", help="Only these writers count. May be repeated.")
    ] = None,
) -> None:
    """Commit a transaction: everything in it becomes visible, on all topics. A repeated commit does no harm."""
    with session.connect() as client:
        show_header(session, client.attach(full_id(txn_id)).commit(writers))


@app.command(epilog="Example: metatxn txn abort 0000000000000000000000000000002a --reason 'wrong input'")
@takes_session
@takes_consent
def abort(
    session: ServiceOptions,
    consent: ConsentOptions,
    txn_id: TxnIdArgument,
    reason: Annotated[str | None, typer.Option(help="The reason, which is kept in the header.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Abort the transaction even if it is prepared.")] = False,
) -> None:
    """Abort a transaction: nothing in it ever becomes visible. A repeated abort does no harm."""
    txn_id = full_id(txn_id)
    with session.connect() as client:
        if (force or consent.dry_run) and not consent.given(session, lambda: _end_of(client, txn_id, force)):
            return
        show_header(session, client.attach(txn_id).abort(reason, force=force))


def _end_of(client: metatxn.Client, txn_id: str, force: bool) -> str:
    found = client.attach(txn_id).header
    if found.state != "OPEN":
        return f"change nothing: the transaction {short_id(txn_id)} is already {found.state}."
    if found.prepared and not force:
        return f"abort the transaction {short_id(txn_id)}; it is prepared, so --force may be needed."
    prepared = "prepared " if found.prepared else ""
    owner = f" of {found.owner}" if found.owner else ""
    return f"abort the {prepared}transaction {short_id(txn_id)}{owner}: nothing that was done in it will be visible."


@app.command(epilog="Example: metatxn txn prepare 2a --timeout 1h")
@takes_session
def prepare(
    session: ServiceOptions,
    txn_id: TxnIdArgument,
    timeout: Annotated[
        str | None, typer.Option(help=f"It is aborted after this long: {DURATION_HELP}. [default: 1d]")
    ] = None,
) -> None:
    """Prepare a transaction, as the first phase of a commit with two phases: from then on only a commit or an abort is
    accepted."""
    timeout_ms = None if timeout is None else milliseconds_of("--timeout", timeout)
    with session.connect() as client:
        show_header(session, client.attach(full_id(txn_id)).prepare(timeout_ms))


@app.command("keep-alive", epilog="Example: metatxn txn keep-alive 2a --timeout 10m")
@takes_session
def keep_alive(
    session: ServiceOptions,
    txn_id: TxnIdArgument,
    timeout: Annotated[str, typer.Option(help=f"The deadline is this far from now: {DURATION_HELP}.")] = "60s",
) -> None:
    """Move the deadline of an open transaction."""
    timeout_ms = milliseconds_of("--timeout", timeout)
    with session.connect() as client:
        show_header(session, client.attach(full_id(txn_id)).keep_alive(timeout_ms))


@app.command(epilog="Example: metatxn txn show 2a --operations")
@takes_session
def show(
    session: ServiceOptions,
    txn_id: TxnIdArgument,
    operations: Annotated[
        bool, typer.Option("--operations", help="Also print the operation records that are left.")
    ] = False,
    records: Annotated[
        bool,
        typer.Option(
            "--records", help="Also print the records in the metadata store, and how its own tool reads them."
        ),
    ] = False,
) -> None:
    """Show the current state of a transaction, what has happened to it, and what is left to do."""
    txn_id = full_id(txn_id)
    with session.connect() as client:
        header = client.attach(txn_id).header
        most = None if operations else MOST_OPERATIONS + 1
        found = list(itertools.islice(client.operations(txn_id), most))
        beside = _records(client, txn_id, wanted=records)
        work = client.transaction_work(txn_id)
    more = len(found) > MOST_OPERATIONS
    events = timeline(header, found[:MOST_OPERATIONS], more=more, work=work, records=beside)
    if session.json:
        shown = as_json(header) | {"timeline": [each.as_object() for each in events]}
        shown |= {"operations": as_json(found)} if operations else {}
        print_json(shown | ({"records": as_json(beside)} if records else {}))
        return
    print_header(header)
    print()
    rows = [(when(each.at_ms), each.event, each.segment, each.what) for each in events]
    print_rows(TIMELINE_COLUMNS, rows)
    if records:
        print()
        print_rows(RECORD_COLUMNS, [(each.version, each.key, each.value, each.command) for each in beside])
    if operations:
        print()
        listed = [(op.kind, op.segment, op.count, op.writer, op.sequence, op.subscription) for op in found]
        print_rows(OPERATION_COLUMNS, listed)


def _records(client: metatxn.Client, txn_id: str, *, wanted: bool) -> list[StoredRecord]:
    """The records. Unless they are wanted, there are none if the coordinator is of release 0.2.0, which shows none."""
    try:
        return list(itertools.islice(client.transaction_records(txn_id), MOST_OPERATIONS))
    except metatxn.NotFound:
        if wanted:
            raise CliError("This coordinator does not show records: upgrade it to release 0.3.0.") from None
        return []


@app.command("list", epilog="Example: metatxn txn list --state open --older-than 10m")
@takes_session
def list_(
    session: ServiceOptions,
    state: Annotated[str | None, typer.Option(help="open, committed or aborted, in lower or upper case.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Only transactions of this transaction key.", autocompletion=complete_key)
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only transactions of this owner.")] = None,
    segment: Annotated[
        str | None,
        typer.Option(help="Only transactions with writes to this segment.", autocompletion=complete_segment),
    ] = None,
    older_than_ms: Annotated[
        int | None, typer.Option(min=0, help="Only transactions that began at least this many milliseconds ago.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(help=f"Only transactions that began at least this long ago: {DURATION_HELP}.")
    ] = None,
    younger_than: Annotated[
        str | None, typer.Option(help=f"Only transactions that began at most this long ago: {DURATION_HELP}.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Only those with this text in their id, key, owner, reason or properties.")
    ] = None,
    limit: LimitOption = 100,
) -> None:
    """List transactions, the last begun first. With `--state open` they are listed by their deadline, with another
    state by their decision, the latest first, and with `--segment` by their ids."""
    if older_than is not None:
        if older_than_ms is not None:
            raise CliError("--older-than: --older-than-ms says the same. Give one of them.")
        older_than_ms = milliseconds_of("--older-than", older_than)
    younger_than_ms = None if younger_than is None else milliseconds_of("--younger-than", younger_than)
    with session.connect() as client:
        found = client.transactions(
            parsed_state(state),
            key=key,
            owner=owner,
            segment=segment,
            older_than_ms=older_than_ms,
            younger_than_ms=younger_than_ms,
            text=text,
            newest_first=segment is None,
        )
        session.print_list(found, limit, LIST_COLUMNS, txn_row)


@app.command(epilog="Example: metatxn txn hanging --older-than 10m | grep orders")
@takes_session
def hanging(
    session: ServiceOptions,
    max_age_ms: Annotated[
        int, typer.Option(min=0, help="Only transactions that have been open for longer than this.")
    ] = DEFAULT_TIMEOUT_MS,
    older_than: Annotated[str | None, typer.Option(metavar="DURATION", help=f"The same: {DURATION_HELP}.")] = None,
    holding: Annotated[
        bool, typer.Option("--holding", help="Only transactions that have written or acknowledged something.")
    ] = False,
    cost: Annotated[
        bool, typer.Option("--cost", help="Show what waits behind each, and what it has acknowledged.")
    ] = False,
    limit: LimitOption = 1000,
) -> None:
    """List the transactions that hold readers back: one line per transaction and segment, oldest first."""
    max_age_ms = one_duration("--older-than", older_than, max_age_ms, DEFAULT_TIMEOUT_MS)
    with session.connect() as client:
        waiting = client.hanging(max_age_ms, holding=holding)
        found = oldest_first(itertools.islice(waiting, limit))
        more = len(found) == limit and next(waiting, None) is not None
        costs = client.hanging_costs(found) if cost else []
    if session.json:
        print_json([cost_object(each) for each in costs] if cost else found)
    elif cost:
        print_rows((*HANGING_COLUMNS, *COST_COLUMNS), [row for each in costs for row in cost_rows(each)])
    else:
        print_rows(HANGING_COLUMNS, [row for txn in found for row in hanging_rows(txn)])
    if more:
        print_note(f"there are more than these {limit}; --limit shows more of them.")


def oldest_first(found: Iterable[HangingTransaction]) -> list[HangingTransaction]:
    """Sort them by begin: the ages on two pages are not of the same time, and an older release lists by deadline."""
    return sorted(found, key=lambda txn: (txn.created_ms or 0, txn.txn_id))


def txn_row(txn: TransactionHeader) -> tuple[Any, ...]:
    who = (txn.transaction_key, txn.owner, prepared_text(txn))
    return (txn.txn_id, txn.state, when(txn.created_ms), when(txn.deadline_ms), *who)


def prepared_text(txn: TransactionHeader) -> str | None:
    return "yes" if txn.prepared else None


def hanging_rows(txn: HangingTransaction) -> list[tuple[Any, ...]]:
    """One row for each segment that the transaction touches, or one row if it touches none."""
    who = (when(txn.created_ms), txn.age_ms // 1000, txn.txn_id, txn.owner, txn.transaction_key)
    rest = (prepared_text(txn), ",".join(txn.writers or ()))
    places: list[tuple[str | None, ...]] = [(at.segment, at.subscription, at.after) for at in txn.touched]
    places += [("more", None, None)] if txn.more_touched else []
    return [(*who, *place, *rest) for place in places or [(None, None, None)]]


def cost_rows(cost: HangingCost) -> list[tuple[Any, ...]]:
    """The rows of `hanging_rows`, with what each place costs; the first one has the number of subscriptions."""
    places = {(place.segment, place.subscription, place.after): place for place in cost.places}
    rows: list[tuple[Any, ...]] = []
    for row in hanging_rows(cost.txn):
        place = places.get(row[5:8])
        readers = "" if place is None else "wait" if place.first else "behind another" if place.waits else ""
        held = (place.entries, place.size_bytes, place.messages) if place is not None else (None, None, None)
        rows.append((*row, readers or None, *held, None if rows else cost.subscriptions))
    return rows


def cost_object(cost: HangingCost) -> dict[str, Any]:
    """The transaction with a member `cost`."""
    numbers = {name: getattr(cost, name) for name in ("entries", "size_bytes", "messages", "subscriptions")}
    places = [asdict(place) for place in cost.places]
    shown = cost.txn.model_dump(mode="json", exclude_none=True)
    return {**shown, "cost": {**numbers, "places": places}}


def parsed_state(text: str | None) -> State | None:
    match (text or "").upper():
        case "":
            return None
        case "OPEN" | "COMMITTED" | "ABORTED" as state:
            return state
        case _:
            raise CliError(f"--state: {text!r} is not a state. Use open, committed or aborted.")


def named_values(properties: list[str] | None) -> dict[str, str] | None:
    if not properties:
        return None
    pairs = [text.partition("=") for text in properties]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise CliError(f"--property: {name!r} has no value. Use NAME=VALUE.")
    return {name: value for name, _, value in pairs}
