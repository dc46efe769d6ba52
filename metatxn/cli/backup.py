"""`metatxn backup …` and `metatxn restore`: the metadata store and all ledgers, at one revision."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer

from metatxn.cli import services
from metatxn.cli.consent import ask_person, at_terminal, counted
from metatxn.cli.logs import LogOption, set_up_logs
from metatxn.cli.options import CliError, Interrupted, OutputOption, output_of
from metatxn.cli.output import JsonLines, Output, print_fields, print_line, print_rows, when
from metatxn.cli.progress import ProgressLine

MEGABYTE = 1_000_000
EXAMPLE = "Example: metatxn backup --store etcd://10.0.0.1:2379 --storage s3://bucket/prefix --to s3://backups/prod"
RESTORE_EXAMPLE = (
    "Example: metatxn restore --from s3://backups/prod --store etcd://10.1.0.1:2379 --storage s3://other/prefix"
)
ELSEWHERE = "Give another place with --to."
IN_THE_WAY = "Nothing was removed. If you can do without that backup, delete its manifest."
COLUMNS = ("BACKUP", "FINISHED", "REVISION", "RECORDS", "LEDGERS", "MB", "COPIED MB", "RELEASE")

app = typer.Typer(
    help="Back up the metadata store and all ledgers while the cluster serves; list and verify backups.",
    epilog=EXAMPLE,
    rich_markup_mode=None,
)
FromOption = Annotated[str, typer.Option("--from", metavar="URL", help="Where the backups are, as given to --to.")]
BackupOption = Annotated[str | None, typer.Option("--backup", help="The backup. [default: the latest one]")]

log = structlog.get_logger()


@app.callback(invoke_without_command=True)
def backup(
    context: typer.Context,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where to put the backup: s3://bucket/prefix, gs://…, az://… or file:///directory. "
            "Only what is not in an earlier backup there is copied.",
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option(envvar="METATXN_STORE", metavar="URL", help="The metadata store of the cluster.")
    ] = None,
    data_dir: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="The data directory of a broker; may be repeated.")
    ] = None,
    storage: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="The object storage of brokers; may be repeated.")
    ] = None,
    log_level: LogOption = "warning",
    output: OutputOption = None,
) -> None:
    """Back up the metadata store and all ledgers at one revision, while the cluster serves.

    Name every data directory and storage of the cluster. They are only read.
    """
    if context.invoked_subcommand is not None:
        return
    if to is None or store is None:
        raise CliError(f"give --to, where the backups are kept, and --store, the metadata store. {EXAMPLE}.")
    set_up_logs(log_level)
    progress = ProgressLine("MB read", beside_output=False)
    done: dict[str, Any] = {}

    async def run(backups: Any) -> None:
        async with AsyncExitStack() as stack:
            opened = await services.connect_store(store, to_read=True)
            stack.push_async_callback(opened.close)
            at = _megabytes(progress)
            done.update(await backups.take(opened, data_dir or [], storage or [], version("metatxn"), at))

    with progress:
        with_backups(to, run, "cannot make the backup", to_write=True, if_damaged=ELSEWHERE)
    print_done(context, output, done)


@app.command("list", epilog="Example: metatxn backup list --from s3://backups/prod")
def list_backups(
    context: typer.Context, source: FromOption, log_level: LogOption = "error", output: OutputOption = None
) -> None:
    """List the backups, oldest first."""
    set_up_logs(log_level)

    async def run(backups: Any) -> None:
        found: list[dict[str, Any]] = [each async for each in backups.list()]
        if output_of(context, output) is Output.JSON:
            items = JsonLines()
            for each in found:
                items.print(each)
            items.end()
        else:
            print_rows(COLUMNS, map(_row, found))

    with_backups(source, run, "cannot list the backups")


@app.command(epilog="Example: metatxn backup verify --from s3://backups/prod || mail -s 'backup is damaged' ops")
def verify(
    context: typer.Context,
    source: FromOption,
    backup: BackupOption = None,
    log_level: LogOption = "error",
    output: OutputOption = None,
) -> None:
    """Read a backup completely, and check it: every object, every frame, and all records. If anything is wrong, it is
    printed, and the exit code is 1."""
    set_up_logs(log_level)
    as_json = output_of(context, output) is Output.JSON
    progress = ProgressLine("MB verified", beside_output=False)
    wrong: list[str] = []

    async def run(backups: Any) -> None:
        found: AsyncIterator[str] = backups.problems(backup, _megabytes(progress))
        wrong.extend([problem async for problem in found])

    with progress:
        with_backups(source, run, "cannot verify the backup")
    if as_json:
        items = JsonLines()
        for problem in wrong:
            items.print({"problem": problem})
        items.end()
    else:
        print("\n".join(wrong) or "nothing wrong in the backup")
    if wrong:
        raise CliError(f"{counted(len(wrong), 'finding')}: do not rely on this backup. Make another one.")


@app.command(epilog="Example: metatxn backup prune --from s3://backups/prod --keep 30 --dry-run")
def prune(
    context: typer.Context,
    source: FromOption,
    keep: Annotated[int, typer.Option(min=1, help="How many of the latest backups stay.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    log_level: LogOption = "error",
    output: OutputOption = None,
) -> None:
    """Remove old backups, and the copies of ledgers that only they have used.

    It may run while a backup is taken. So a backup stays until a later one has been complete for a day, and what an
    interrupted backup has left behind is removed a day after it began.
    """
    set_up_logs(log_level)
    found: list[Any] = []
    progress = ProgressLine("objects deleted", beside_output=False)

    async def look(backups: Any) -> None:
        found.append(await backups.find_prunable(keep))

    async def run(backups: Any) -> None:
        await backups.prune(prunable, progress.at)

    with_backups(source, look, "cannot prune the backups", if_damaged=IN_THE_WAY)
    (prunable,) = found
    if not (yes or dry_run) and at_terminal():
        ask_person(_effect(prunable))
    if not dry_run:
        with progress:
            with_backups(source, run, "cannot prune the backups")
    done = {"removed": prunable.backups, "kept": prunable.kept, "objects": len(prunable.objects)}
    done = ({"dry_run": True} if dry_run else {}) | done | {"bytes": prunable.size_bytes}
    if output_of(context, output) is not Output.JSON:
        done |= {name: ", ".join(done[name]) or "none" for name in ("removed", "kept")}
    print_done(context, output, done)


def _effect(prunable: Any) -> str:
    removed, objects = prunable.backups, counted(len(prunable.objects), "object")
    what = f"remove {counted(len(removed), 'backup')} ({', '.join(removed)})" if removed else "remove no backup"
    return f"{what} and delete {objects} ({prunable.size_bytes / MEGABYTE:.1f} MB)."


def restore_backup(
    context: typer.Context,
    source: FromOption,
    store: Annotated[
        str, typer.Option(envvar="METATXN_STORE", metavar="URL", help="The metadata store of a new, empty cluster.")
    ],
    data_dir: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="A new data directory of a broker; may be repeated.")
    ] = None,
    storage: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="A new object storage of brokers; may be repeated.")
    ] = None,
    backup: BackupOption = None,
    keep_open: Annotated[
        bool,
        typer.Option(
            "--keep-open",
            help="Leave open transactions open until their deadline, instead of aborting them. Prepared ones stay.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only verify the backup, and say what would be restored.")
    ] = False,
    log_level: LogOption = "warning",
    output: OutputOption = None,
) -> None:
    """Restore a backup into an empty cluster, of any kind of store and storage, before its first process starts.

    Readers then see exactly what was committed at the revision of the backup. If it is interrupted, run it again.
    """
    set_up_logs(log_level)
    if not data_dir and not storage:
        raise CliError("give a new --data-dir or --storage for the ledgers.")
    if dry_run:
        try_restore(context, source, backup, store, data_dir or [], storage or [], output)
        return
    progress = ProgressLine("MB restored", beside_output=False)
    done: dict[str, Any] = {}

    async def run(backups: Any) -> None:
        async with AsyncExitStack() as looking:  # a restore that is refused leaves no new store behind
            there = await services.store_if_there(store)
            if there is not None:
                looking.push_async_callback(there.close)
            await backups.check_restorable(backup, there, data_dir or [], storage or [])
        async with AsyncExitStack() as stack:
            opened = await services.connect_store(store)
            stack.push_async_callback(opened.close)
            at = _megabytes(progress)
            done.update(await backups.restore(backup, opened, data_dir or [], storage or [], keep_open, at))

    try:
        with progress:
            with_backups(source, run, "cannot restore the backup")
    except KeyboardInterrupt:
        raise Interrupted("the restore is not complete. The same command begins it again.") from None
    print_done(context, output, done)


def try_restore(
    context: typer.Context,
    source: str,
    backup: str | None,
    store: str,
    data_dirs: list[Path],
    urls: list[str],
    output: Output | None,
) -> None:
    """Say what a restore would do, or why it would be refused. The exit code is 1 if the backup is damaged."""
    progress = ProgressLine("MB verified", beside_output=False)
    done: dict[str, Any] = {"dry_run": True}
    wrong: list[str] = []

    async def run(backups: Any) -> None:
        async with AsyncExitStack() as stack:
            opened = await services.store_if_there(store)
            if opened is not None:
                stack.push_async_callback(opened.close)
            would, found = await backups.trial(backup, opened, data_dirs, urls, _megabytes(progress))
        done.update(would)
        wrong.extend(found)

    with progress:
        with_backups(source, run, "the backup would not be restored")
    print_done(context, output, done)
    if wrong:
        raise CliError(f"the backup is damaged: {wrong[0].rstrip('.')}. Use another backup.")


def with_backups(
    url: str,
    run: Callable[[Any], Awaitable[None]],
    failure: str,
    *,
    to_write: bool = False,
    if_damaged: str = "Use another backup, and empty places for it.",
) -> None:
    """Run `run` with the backups at `url`. An error becomes one line, with what to do about it."""

    async def main() -> None:
        try:
            await run(services.load("backups")(url, to_write=to_write))
        except (CliError, BrokenPipeError):
            raise
        except Exception as error:
            log.debug("it failed", exc_info=error)
            text = (str(error) or repr(error)).rstrip(".")
            raise CliError(f"{failure}: {text}. {_action(error, if_damaged)}") from error

    services.run_loop(main())


def _action(error: Exception, if_damaged: str) -> str:
    """What to do about an error, by the name of its class: the client's package does not know the servers' classes."""
    match type(error).__name__:
        case "BackupDamaged":
            return if_damaged
        case "BackupTooNew" if if_damaged == ELSEWHERE:
            return ELSEWHERE
        case "BackupTooNew" | "StoreTooNew":
            return "Use the release that made it."
        case "NoSuchBackup":
            return "Check --from and --backup; `metatxn backup list` shows what is there."
        case "NotCovered":
            return "No backup was made."
        case "NotEmpty" | "ClockBehind" | "StoreWentBack":
            return "Nothing was changed."
        case "StorageRefused":
            return "Give URLs such as s3://bucket/prefix or file:///directory, and --data-dir as a broker has it."
        case _:
            return "The command can be repeated."


def print_done(context: typer.Context, output: Output | None, done: dict[str, Any]) -> None:
    if output_of(context, output) is Output.JSON:
        print_line({name.replace(" ", "_"): value for name, value in done.items()})
        return
    shown = {name.removesuffix("_ms"): when(value) if name.endswith("_ms") else value for name, value in done.items()}
    print_fields({name.replace("_", " "): value for name, value in shown.items()})


def _row(found: dict[str, Any]) -> list[Any]:
    if "problem" in found:
        return [found["backup"], found["problem"], *[None] * (len(COLUMNS) - 2)]
    size, copied = (f"{found[name] / MEGABYTE:.1f}" for name in ("bytes", "copied_bytes"))
    facts = [found[name] for name in ("revision", "records", "ledgers")]
    return [found["backup"], when(found["finished_ms"]), *facts, size, copied, found["release"]]


def _megabytes(progress: ProgressLine) -> Callable[[int, int], None]:
    return lambda size, total: progress.at(size // MEGABYTE, total // MEGABYTE)
