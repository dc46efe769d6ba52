"""`metatxn store …`: show and check a metadata store, whichever process serves it, and recover a restored one."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Annotated, Any, Protocol

import structlog
import typer

from metatxn.cli import services
from metatxn.cli.backup import restore_backup
from metatxn.cli.consent import counted
from metatxn.cli.logs import LogOption, set_up_logs
from metatxn.cli.options import CliError, OutputOption, output_of
from metatxn.cli.output import (
    CANNOT_BE_WRITTEN,
    JsonLines,
    Output,
    print_json,
    print_line,
    print_note,
    print_rows,
    printable,
)
from metatxn.cli.progress import ProgressLine
from metatxn.cli.recover import EXAMPLE, recover
from metatxn.wire.coordinator import key_prefix
from metatxn.words import size_text

EMPTY = "the store is empty: is --store the right one?"

app = typer.Typer(
    help="Show, check and recover a metadata store. It may be shown and checked while it is being served.",
    epilog="Example: metatxn store check --store sqlite:///metatxn-data/metadata.db",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command(epilog=EXAMPLE)(recover)
app.command("restore", hidden=True)(restore_backup)  # for those who look for it here
StoreOption = Annotated[
    str,
    typer.Option(
        envvar="METATXN_STORE",
        metavar="URL",
        help="The metadata store: sqlite:///path/file.db, etcd://host:port[,…][/root] or zk://host:port[,…][/root].",
    ),
]

log = structlog.get_logger()


class PrintedRecord(Protocol):
    @property
    def key(self) -> str: ...

    @property
    def value(self) -> bytes: ...

    @property
    def version(self) -> int: ...


class PrintedFinding(Protocol):
    @property
    def key(self) -> str: ...

    @property
    def problem(self) -> str: ...

    @property
    def action(self) -> str: ...


class RunningCheck(Protocol):
    def findings(self) -> AsyncIterator[PrintedFinding]: ...


@app.command(epilog="Example: metatxn store dump --store etcd://10.0.0.1:2379/prod --prefix /txn/ -o json | jq .value")
def dump(
    context: typer.Context,
    store: StoreOption,
    prefix: Annotated[str, typer.Option(help="Print only keys that begin with this.")] = "",
    log_level: LogOption = "error",
    output: OutputOption = None,
) -> None:
    """Print every record in the order of the keys, one per line: `key = value`, or one JSON object."""
    set_up_logs(log_level)
    if prefix and not prefix.startswith("/"):
        raise CliError(f"--prefix: every key begins with a slash. Give /{prefix}.")
    show = print_record_as_json if output_of(context, output) is Output.JSON else print_record

    progress = ProgressLine("records")

    async def run(opened: services.Store) -> None:
        records: AsyncIterator[PrintedRecord] = services.load("store_dump")(opened, prefix)
        async for record in records:
            show(record)
            progress.at(progress.done + 1)

    with progress:
        looking_into(store, run)
    if not progress.done and not prefix:
        print_note(EMPTY)


@app.command(epilog="Example: metatxn store check --store zk://10.0.0.1:2181/prod || metatxn store check -o json …")
def check(
    context: typer.Context, store: StoreOption, log_level: LogOption = "error", output: OutputOption = None
) -> None:
    """Compare all records with each other. If anything is wrong, print it with what to do; the exit code is then 1."""
    set_up_logs(log_level)
    as_json = output_of(context, output) is Output.JSON
    rows: list[tuple[str, str, str]] = []
    items = JsonLines() if as_json else None
    progress = ProgressLine("records", beside_output=as_json)

    async def run(opened: services.Store) -> None:
        checking: RunningCheck = services.load("store_check")(opened, examined=progress.at)
        async for finding in checking.findings():
            rows.append((printable(finding.key), finding.problem, finding.action))
            if items is not None:
                items.print({"key": finding.key, "problem": finding.problem, "action": finding.action})

    with progress:
        looking_into(store, run)
    checked = progress.done
    if items is not None:
        items.end()
    elif rows:
        print_rows(("KEY", "PROBLEM", "ACTION"), rows)
    else:
        print(f"nothing wrong in {checked} records" if checked else EMPTY)
    if rows:
        raise CliError(f"{counted(len(rows), 'finding')} in {checked:,} records. Begin with the first one.")
    if items is not None and not checked:
        print_note(EMPTY)


@app.command(epilog="Example: metatxn store sizes --store etcd://10.0.0.1:2379/prod")
def sizes(
    context: typer.Context, store: StoreOption, log_level: LogOption = "error", output: OutputOption = None
) -> None:
    """Count the records by the beginning of their keys, and the bytes of their keys and values."""
    set_up_logs(log_level)
    found: dict[str, tuple[int, int]] = {}
    progress = ProgressLine("records")

    async def run(opened: services.Store) -> None:
        records: AsyncIterator[PrintedRecord] = services.load("store_dump")(opened, "")
        async for record in records:
            count, size = found.get(prefix := key_prefix(record.key), (0, 0))
            found[prefix] = (count + 1, size + len(record.key.encode()) + len(record.value))
            progress.at(progress.done + 1)

    with progress:
        looking_into(store, run)
    if output_of(context, output) is Output.JSON:
        print_json([{"prefix": prefix, "records": count, "bytes": size} for prefix, (count, size) in found.items()])
    elif found:
        print_rows(
            ("KEYS BEGIN WITH", "RECORDS", "SIZE"),
            [(printable(prefix), count, size_text(size)) for prefix, (count, size) in found.items()],
        )
    if not found:
        print_note(EMPTY)


def looking_into(
    url: str, run: Callable[[services.Store], Awaitable[None]], *, open_within_s: float | None = None
) -> None:
    """Open the store, `run`, and close it. An error becomes one line."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(open_within_s):
                    opened = await services.connect_store(url, to_read=True)
            except TimeoutError:
                raise CliError(f"cannot open the store {url}: no answer within {open_within_s:g} s.") from None
            stack.push_async_callback(opened.close)
            try:
                await run(opened)
            except (CliError, BrokenPipeError):
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno in CANNOT_BE_WRITTEN:
                    raise  # it is the output's, because the store is only read
                log.debug("the store could not be read", exc_info=error)
                text = str(error) or type(error).__name__
                raise CliError(f"cannot read the store {url}: {text}. Check that it can be reached.") from error

    services.run_loop(main())


def print_record(record: PrintedRecord) -> None:
    value = _text(record.value)
    shown = repr(record.value) if value is None else printable(value)
    print(f"{printable(record.key)} = {shown}" if shown else f"{printable(record.key)} =")


def print_record_as_json(record: PrintedRecord) -> None:
    print_line({"key": record.key, "version": record.version} | _json_value(record.value))


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _json_value(value: bytes) -> dict[str, Any]:
    """JSON as it is, other text as a string, and bytes that are not text under a name of their own."""
    text = _text(value)
    if text is None:
        return {"value_base64": b64encode(value).decode()}
    try:
        return {"value": json.loads(text)}
    except ValueError:
        return {"value": text}
