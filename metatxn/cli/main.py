"""The command line `metatxn`."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from metatxn.cli.completion import words_of_bash
from metatxn.cli.loaded import CommandSource, group_of
from metatxn.cli.options import DEFAULT_URL, CliError, Interrupted, Shared
from metatxn.cli.output import CANNOT_BE_WRITTEN, Output, print_error, print_error_as_json
from metatxn.cli.settings import load_settings, profile_of, use_settings
from metatxn.wire.errors import MetatxnError, Unauthenticated

T = TypeVar("T")

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
_SHORT_OUTPUT = re.compile(r"-[fy]*o=?(.*)", re.DOTALL)
"""`-o json`, `-ojson`, and behind other options of one letter: `-fo json`."""


def _dev(part: typer.Typer) -> None:
    from metatxn.cli import serve

    example = "Example: metatxn dev --data-dir /tmp/try --port 8470 --broker-port 8471"
    part.command(context_settings=serve.FROM_ENVIRONMENT, epilog=example)(serve.dev)


def _coordinator(part: typer.Typer) -> None:
    from metatxn.cli import serve

    example = "Example: metatxn coordinator --store etcd://10.0.0.1:2379,10.0.0.2:2379/prod"
    part.command(context_settings=serve.FROM_ENVIRONMENT, epilog=example)(serve.coordinator)


def _status(part: typer.Typer) -> None:
    from metatxn.cli.status import status

    part.command(epilog="Example: metatxn status || metatxn status -o json | jq .problems")(status)


def _doctor(part: typer.Typer) -> None:
    from metatxn.cli.doctor import doctor

    part.command(epilog="Example: metatxn doctor --store etcd://10.0.0.1:2379 --data-dir /var/lib/metatxn")(doctor)


def _audit_log(part: typer.Typer) -> None:
    from metatxn.cli.audit_log import audit_log

    example = "Example: metatxn audit-log --all --verb topic.delete --principal ada"
    part.command("audit-log", epilog=example)(audit_log)


def _restore(part: typer.Typer) -> None:
    from metatxn.cli import backup

    part.command("restore", epilog=backup.RESTORE_EXAMPLE)(backup.restore_backup)


def _group(name: str, about: str, module: str | None = None) -> CommandSource:
    """The group of commands that a module of the same name has, unless that has another one."""

    def add(part: typer.Typer) -> None:
        part.add_typer(importlib.import_module(f"metatxn.cli.{module or name}").app, name=name)

    return CommandSource(about, add)


COMMANDS = {
    "dev": CommandSource("Run a coordinator and a broker in one process.", _dev),
    "coordinator": CommandSource("Run a coordinator until Ctrl-C.", _coordinator),
    "status": CommandSource("Show the services, the store, what is open, and what is wrong.", _status),
    "doctor": CommandSource("Check everything that may be set up wrongly, and say what to do.", _doctor),
    "audit-log": CommandSource("Print the audit log of the service at --url, the latest line first.", _audit_log),
    "restore": CommandSource(
        "Restore a backup into an empty cluster, of any kind of store and storage, before its first process starts.",
        _restore,
    ),
    "backup": _group(
        "backup", "Back up the metadata store and all ledgers while the cluster serves; list and verify backups."
    ),
    "broker": _group("broker", "Run a broker until Ctrl-C, or list and drain brokers with the commands below."),
    "txn": _group("txn", "Begin, end and show transactions."),
    "topic": _group("topic", "Create, show and change topics; send and read messages."),
    "segment": _group(
        "segment", "Show segments and what is stored in them, and delete those that nothing needs any more."
    ),
    "subscription": _group("subscription", "Create, show and drop subscriptions."),
    "policy": _group("policy", "Show and set the policies of namespaces and of the cluster."),
    "schema": _group("schema", "Show, check and set the schema of a topic: its columns, with their versions."),
    "quota": _group("quota", "Show and set how much a principal may use of the cluster in a second."),
    "key": _group("key", "Take over, show, fence and delete transaction keys."),
    "store": _group("store", "Show, check and recover a metadata store."),
    "token": _group("token", "Create tokens for --token-file, and see what a token may do.", module="tokens"),
    "upgrade": _group(
        "upgrade", "Show and raise the cluster version, after every process was restarted with a new release."
    ),
}
app = typer.Typer(
    cls=group_of(COMMANDS),
    name="metatxn",
    help="Transactions over many streams, decided by one compare-and-set in a metadata store.",
    epilog="""Try it: `metatxn dev` in one terminal. In another: `metatxn topic create orders`, """
    """`metatxn txn begin`, `metatxn topic produce orders '{"id": 7}' --txn <txn id>`, """
    """`metatxn topic consume orders` (nothing yet), `metatxn txn commit <txn id>`, `metatxn topic consume orders`.""",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # our texts use literal brackets
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"metatxn {version('metatxn')}")
        raise typer.Exit


@dataclass(slots=True)
class ErrorOutput:
    """How errors are printed: as the options say, or else as the profile says."""

    said: str | None

    def print(self, message: str, answered: MetatxnError | None = None) -> None:
        (print_error_as_json if self.said == Output.JSON else print_error)(message, answered)


@app.callback()
def shared_options(
    context: typer.Context,
    url: Annotated[str, typer.Option(envvar="METATXN_URL", help="The URL of any coordinator or broker.")] = DEFAULT_URL,
    token: Annotated[
        str | None, typer.Option(envvar="METATXN_TOKEN", help="The bearer token.", show_envvar=True)
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option(envvar="METATXN_CA", metavar="FILE", help="PEM file of the authorities to trust for https."),
    ] = None,
    listener: Annotated[
        str | None,
        typer.Option(
            envvar="METATXN_LISTENER",
            help="The name of the listener whose addresses can be reached from here. [default: that of --url]",
        ),
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="Print tables or JSON.")] = Output.TABLE,
    profile: Annotated[
        str | None, typer.Option(envvar="METATXN_PROFILE", help="The profile of the settings file to use.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="METATXN_CONFIG",
            metavar="FILE",
            help="The settings file. [default: ~/.config/metatxn/config.toml]",
        ),
    ] = None,
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    path, tables = load_settings(config)
    chosen = profile_of(path, tables, profile)
    use_settings(context, path, tables, chosen)

    def setting(name: str, given: T) -> T | str:
        source = context.get_parameter_source(name)
        return given if source is not None and source.name != "DEFAULT" else chosen.get(name, given)

    said = setting("output", output)
    if said not in [*Output]:
        raise CliError(f"{path}: 'output' in [profiles.{profile}] is {said!r}. Use table or json.")
    token, ca = setting("token", token), setting("ca", ca)
    if isinstance(context.obj, ErrorOutput) and context.obj.said is None:
        context.obj.said = Output(said)
    context.obj = Shared(setting("url", url), token, ca, Output(said), setting("listener", listener))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. An expected failure prints one line on standard error."""
    errors = ErrorOutput(said_output(sys.argv[1:] if arguments is None else arguments))
    say = errors.print
    try:
        with words_of_bash():
            code = app(args=arguments, prog_name="metatxn", standalone_mode=False, obj=errors)
        sys.stdout.flush()
    except Unauthenticated as error:
        say(_sentences(error.detail, "Give a token that is accepted: --token, or METATXN_TOKEN"), error)
    except MetatxnError as error:
        say(_sentences(error.detail, error.action), error)
    except CliError as error:
        say(str(error))
        if isinstance(error, Interrupted):
            return EXIT_INTERRUPTED
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None  # who reads our output wants no more of it: do not fail again at the last flush
        return 0
    except OSError as error:
        if error.errno not in CANNOT_BE_WRITTEN:
            raise
        sys.stdout = None  # do not fail again at the last flush
        say(_sentences(f"the output cannot be written: {error.strerror}", "Free some space, or write somewhere else."))
    except SystemExit:
        if type(sys.stdout).__name__ != "PacifyFlushWrapper":
            raise
        return 0  # the same, noticed by the parser, which puts this in place of the output
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _usage(error, say)
    else:
        return code if isinstance(code, int) else 0
    return EXIT_FAILURE


def said_output(arguments: Sequence[str]) -> str | None:
    """What the last `--output` says, if there is one. The parser is not asked, because it may have failed."""
    said: str | None = None
    names_it = False
    for each in arguments:
        if names_it:
            said, names_it = each, False
        elif each == "--":
            break
        elif each == "--output":
            names_it = True
        elif each.startswith("--output="):
            said = each.removeprefix("--output=")
        elif (short := _SHORT_OUTPUT.fullmatch(each)) is not None:
            said, names_it = short[1] or said, not short[1]
    return said


def _usage(error: Exception, say: Callable[[str], None]) -> int:
    """Errors of the parser. Typer bundles its parser, so their classes have no public names."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
        return EXIT_USAGE
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "metatxn"
    message = error.format_message().replace(": Value error, ", ": ")  # type: ignore[attr-defined]
    say(_sentences(message, f"See `{command} --help`."))
    return EXIT_USAGE


def _sentences(*parts: str) -> str:
    return " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in parts if part)


def keep_standard_streams() -> None:
    """Let nothing that is opened later have the number of a standard stream that the caller has closed (`>&-`): libuv
    aborts the process rather than close such a file. What would be printed goes nowhere, as before."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # It takes the lowest number that is free. Python has None in its place, which no command expects.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def main() -> None:
    keep_standard_streams()
    sys.exit(run())
