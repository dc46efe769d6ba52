"""`metatxn store recover`, which is run after the metadata store was restored from a backup."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer

from metatxn.cli import services
from metatxn.cli.logs import LogOption, set_up_logs
from metatxn.cli.options import CliError, OutputOption, output_of
from metatxn.cli.output import Output, print_fields, print_line, print_rows
from metatxn.cli.progress import ProgressLine

EXAMPLE = (
    "Example: metatxn store recover --store etcd://10.0.0.1:2379 --storage s3://bucket/prefix; "
    "then again with --undecided abort --yes"
)

log = structlog.get_logger()


class Undecided(StrEnum):
    ABORT = "abort"
    COMMIT = "commit"


class UnknownLedgers(StrEnum):
    ADOPT = "adopt"
    SET_ASIDE = "set-aside"


def recover(
    context: typer.Context,
    store: Annotated[str, typer.Option(envvar="METATXN_STORE", metavar="URL", help="The restored store.")],
    data_dir: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="The data directory of a broker; may be repeated.")
    ] = None,
    storage: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="The object storage of brokers; may be repeated.")
    ] = None,
    undecided: Annotated[
        Undecided | None,
        typer.Option(
            help="What happens to transactions whose decision the store does not know: abort hides what was committed "
            "after the backup, commit may show what was never committed."
        ),
    ] = None,
    unknown_ledgers: Annotated[
        UnknownLedgers,
        typer.Option(
            help="What happens to ledgers that were written after the backup: serve them again, or move them aside."
        ),
    ] = UnknownLedgers.ADOPT,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Serve the remaining ledgers of segments that have lost some.")
    ] = False,
    backup_time: Annotated[
        datetime | None,
        typer.Option(help="When the backup was made, in local time; only for a backup made by version 0.1."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Make the changes. Without this option nothing is changed.")
    ] = False,
    log_level: LogOption = "warning",
    output: OutputOption = None,
) -> None:
    """Make a restored metadata store agree with the ledgers again, while every coordinator and broker is stopped.

    Without --yes it only shows what differs. Name every data directory and storage of the cluster: brokers refuse to
    start on one that was not named. If they are on several machines, run the command on each machine, one after
    another.
    """
    set_up_logs(log_level)
    if yes and undecided is None:
        raise CliError(
            "--undecided: say what happens to transactions whose decision is not known. Give abort or commit."
        )
    as_json = output_of(context, output) is Output.JSON
    wishes = {
        "commit": undecided is Undecided.COMMIT,
        "adopt": unknown_ledgers is UnknownLedgers.ADOPT,
        "accept_loss": accept_loss,
        "backup_ms": int(backup_time.timestamp() * 1000) if backup_time is not None else None,
    }

    async def carry_out_or_show(recovery: Any) -> None:
        await (_carried_out if yes else _shown)(recovery, as_json)

    services.run_loop(_with_recovery(store, (data_dir or [], storage or [], wishes), carry_out_or_show))


async def _with_recovery(store: str, what: tuple[Any, ...], work: Callable[[Any], Awaitable[None]]) -> None:
    """Open the store, and do the work on its recovery. Raises `CliError`."""
    async with AsyncExitStack() as stack:
        await (await services.connect_store(store, to_read=True)).close()  # it is not made here
        opened = await services.connect_store(store)
        stack.push_async_callback(opened.close)
        try:
            recovery: Any = await services.load("store_recovery")(opened, *what)
            stack.push_async_callback(recovery.close)
            await work(recovery)
        except CliError:
            raise
        except Exception as error:
            log.debug("the recovery failed", exc_info=error)
            raise CliError(f"cannot recover the store: {error or repr(error)}. {_action(error)}") from error


async def _shown(recovery: Any, as_json: bool) -> None:
    rows = [difference async for difference in recovery.differences()]
    if as_json:
        for what, where, then in rows:
            print_line({"what": what, "where": where, "then": then})
        return
    if rows:
        print_rows(("WHAT", "WHERE", "THEN"), rows)
    print("nothing was changed; with --yes, counters move ahead and the store gets a new incarnation")


async def _carried_out(recovery: Any, as_json: bool) -> None:
    with ProgressLine("segments recovered", beside_output=False) as progress:
        recovered: dict[str, Any] = await recovery.recover(progress.at)
    (print_line if as_json else print_fields)(recovered)


def _action(error: Exception) -> str:
    """What to do about an error, by the name of its class: the client's package does not know the servers' classes."""
    match type(error).__name__:
        case "StillServed":
            return "Nothing was changed."
        case "OtherCluster":
            return "Nothing was changed; check --store, --data-dir and --storage."
        case "BackupTimeNeeded":
            return "Give --backup-time, and run the command again."
        case _:
            return "Every step can be repeated: run the command again."
