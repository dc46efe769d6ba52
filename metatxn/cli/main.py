"""The command line `metatxn`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from metatxn.cli import (
    audit_log,
    backup,
    broker,
    doctor,
    key,
    policy,
    quota,
    schema,
    segment,
    serve,
    status,
    store,
    subscription,
    tokens,
    topic,
    txn,
    upgrade,
)
from metatxn.cli.completion import words_of_bash
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

app = typer.Typer(
    name="metatxn",
    help="Transactions over many streams, decided by one compare-and-set in a metadata store.",
    epilog="""Try it: `metatxn dev` in one terminal. In another: `metatxn topic create orders`, """
    """`metatxn txn begin`, `metatxn topic produce orders '{"id": 7}' --txn <txn id>`, """
    """`metatxn topic consume orders` (nothing yet), `metatxn txn commit <txn id>`, `metatxn topic consume orders`.""",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # our texts use literal brackets
)
app.command(
    context_settings=serve.FROM_ENVIRONMENT,
    epilog="Example: metatxn dev --data-dir /tmp/try --port 8470 --broker-port 8471",
)(serve.dev)
app.command(
    context_settings=serve.FROM_ENVIRONMENT,
    epilog="Example: metatxn coordinator --store etcd://10.0.0.1:2379,10.0.0.2:2379/prod",
)(serve.coordinator)
app.command(epilog="Example: metatxn status || metatxn status -o json | jq .problems")(status.status)
app.command(epilog="Example: metatxn doctor --store etcd://10.0.0.1:2379 --data-dir /var/lib/metatxn")(doctor.doctor)
app.command("audit-log", epilog="Example: metatxn audit-log --all --verb topic.delete --principal ada")(
    audit_log.audit_log
)
app.command("restore", epilog=backup.RESTORE_EXAMPLE)(backup.restore_backup)
store.app.command("restore", hidden=True)(backup.restore_backup)  # for whoever looks for it there
app.add_typer(backup.app, name="backup")
app.add_typer(broker.app, name="broker")
app.add_typer(txn.app, name="txn")
app.add_typer(topic.app, name="topic")
app.add_typer(segment.app, name="segment")
app.add_typer(subscription.app, name="subscription")
app.add_typer(policy.app, name="policy")
app.add_typer(schema.app, name="schema")
app.add_typer(quota.app, name="quota")
app.add_typer(key.app, name="key")
app.add_typer(store.app, name="store")
app.add_typer(tokens.app, name="token")
app.add_typer(upgrade.app, name="upgrade")


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
