"""`metatxn quota …`: how much a principal may use of the cluster in a second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from metatxn.cli.options import CliError, LimitOption, ServiceOptions, takes_session
from metatxn.cli.output import print_json, print_rows
from metatxn.wire.quotas import QUOTA_NAMES, UNLIMITED, QuotaInfo, QuotaSettings

app = typer.Typer(
    help="Show and set how much a principal may use of the cluster in a second.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
PrincipalArgument = Annotated[
    str | None, typer.Argument(metavar="[PRINCIPAL]", help="The name of a principal; or give --default.")
]
DefaultOption = Annotated[
    bool, typer.Option("--default", help="What applies where a principal's own quota says nothing.")
]


@app.command(epilog="Examples: metatxn quota show billing · metatxn quota show --default")
@takes_session
def show(session: ServiceOptions, principal: PrincipalArgument = None, default: DefaultOption = False) -> None:
    """Show what applies to a principal, where that comes from, and what it has used lately in the whole cluster."""
    chosen = _chosen(principal, default)
    with session.connect() as client:
        _show(session, client.quota(chosen))


@app.command("list", epilog="Example: metatxn quota list")
@takes_session
def list_(session: ServiceOptions, limit: LimitOption = 1000) -> None:
    """List the principals that have a quota of their own."""
    with session.connect() as client:
        session.print_list(client.quotas(), limit, ("PRINCIPAL", *map(str.upper, QUOTA_NAMES)), _row)


@app.command(
    "set",
    epilog="Examples: metatxn quota set billing --bytes-in-per-second 10485760 · "
    "metatxn quota set --default --requests-per-second 500",
)
@takes_session
def set_(
    session: ServiceOptions,
    principal: PrincipalArgument = None,
    default: DefaultOption = False,
    requests_per_second: Annotated[
        int | None, typer.Option(min=UNLIMITED, help="Requests to all services together; -1 means any number.")
    ] = None,
    bytes_in_per_second: Annotated[
        int | None, typer.Option(min=UNLIMITED, help="Bytes that are published; -1 means any number.")
    ] = None,
    bytes_out_per_second: Annotated[
        int | None, typer.Option(min=UNLIMITED, help="Bytes of messages that are read; -1 means any number.")
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="AMOUNT", help="Remove this amount, such as requests_per_second. May be repeated."),
    ] = None,
) -> None:
    """Change a quota. Amounts that are not named stay as they are. It applies at once, in the whole cluster."""
    chosen = _chosen(principal, default)
    given = {
        "requests_per_second": requests_per_second,
        "bytes_in_per_second": bytes_in_per_second,
        "bytes_out_per_second": bytes_out_per_second,
    }
    changes = _changes({name: value for name, value in given.items() if value is not None}, unset or ())
    with session.connect() as client:
        _show(session, client.set_quota(chosen, **changes))


def _chosen(principal: str | None, default: bool) -> str | None:
    """The principal, or None for the default."""
    if (principal is None) != default:
        raise CliError("Name a principal, or give --default, but not both.")
    return principal


def _changes(given: dict[str, int | None], unset: Sequence[str]) -> dict[str, int | None]:
    for name in unset:
        if name not in QUOTA_NAMES:
            raise CliError(f"--unset: {name!r} is not an amount. Use one of {', '.join(QUOTA_NAMES)}.")
        if name in given:
            raise CliError(f"--unset: {name} is also given a value. Give one or the other.")
        given[name] = None
    if not given:
        raise CliError("There is nothing to change. Give an amount, such as --requests-per-second, or --unset.")
    return given


def _show(session: ServiceOptions, found: QuotaInfo) -> None:
    if session.json:
        print_json(found)
        return
    rows = [(name, getattr(found.effective, name), getattr(found.use, name, None)) for name in QUOTA_NAMES]
    print_rows(
        ("AMOUNT", "VALUE", "FROM", "USED"),
        [(name, _text(each.value), each.source, None if used is None else f"{used:.1f}") for name, each, used in rows],
    )


def _row(found: QuotaInfo) -> tuple[Any, ...]:
    quota: QuotaSettings = found.quota
    return found.principal, *(getattr(quota, name) for name in QUOTA_NAMES)


def _text(value: int) -> int | None:
    return None if value == UNLIMITED else value
