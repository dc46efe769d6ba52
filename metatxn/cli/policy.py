"""`metatxn policy …`: the policies of namespaces and of the cluster, and the options of `metatxn topic set`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any

import typer

from metatxn.cli.consent import ConsentOptions, check_administers_all, takes_consent
from metatxn.cli.options import CliError, ServiceOptions, takes, takes_session
from metatxn.cli.output import print_json, print_rows
from metatxn.cli.times import DURATION_HELP, duration_option, duration_parser
from metatxn.wire.policies import MIN_ROLL_MS, UNLIMITED, PolicyInfo, PolicySettings

app = typer.Typer(
    help="Show and set the policies of namespaces and of the cluster. `metatxn topic set` is for one topic.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
NamespaceArgument = Annotated[
    str | None, typer.Argument(metavar="[NAMESPACE]", help="tenant/namespace; or give --cluster.")
]
ClusterOption = Annotated[bool, typer.Option("--cluster", help="The policy of the whole cluster.")]


class RetentionChoice(StrEnum):
    ACKNOWLEDGED = "acknowledged"
    HARD = "hard"


class CleanupChoice(StrEnum):
    DELETE = "delete"
    COMPACT = "compact"
    BOTH = "both"


class BacklogChoice(StrEnum):
    PRODUCER_HOLD = "producer_hold"
    EVICT = "evict"


class CompatibilityChoice(StrEnum):
    NONE = "none"
    BACKWARD = "backward"
    FORWARD = "forward"
    FULL = "full"


class SchemaUpdatesChoice(StrEnum):
    PRODUCERS = "producers"
    ADMINS = "admins"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingOptions:
    """The settings of a policy that a command changes. Times are durations such as 7d, or milliseconds."""

    retention_ms: Annotated[
        int | None,
        typer.Option(
            parser=duration_parser(UNLIMITED),
            metavar="DURATION",
            help=f"Messages are kept at least this long: milliseconds, or {DURATION_HELP}; -1 means forever.",
        ),
    ] = None
    retention_bytes: Annotated[
        int | None,
        typer.Option(min=UNLIMITED, help="At least this many of the latest bytes of a topic are kept; -1 means all."),
    ] = None
    retention: Annotated[
        RetentionChoice | None,
        typer.Option(help="Whether messages that a subscription has not acknowledged are kept, or dropped anyway."),
    ] = None
    roll_ms: Annotated[
        int | None,
        typer.Option(
            parser=duration_parser(MIN_ROLL_MS),
            metavar="DURATION",
            help="The age at which an open ledger is closed, so that it can be dropped.",
        ),
    ] = None
    max_unacked_per_consumer: Annotated[
        int | None,
        typer.Option(
            min=UNLIMITED,
            help="A consumer that holds this many messages of a subscription gets no more; -1 means any number.",
        ),
    ] = None
    cleanup: Annotated[
        CleanupChoice | None,
        typer.Option(help="Whether old ledgers are dropped, or compacted to the latest message of each key, or both."),
    ] = None
    delete_retention_ms: Annotated[
        int | None,
        typer.Option(
            parser=duration_parser(0),
            metavar="DURATION",
            help="How long a message that deletes a key is kept when its ledger is compacted.",
        ),
    ] = None
    ttl_ms: Annotated[
        int | None,
        typer.Option(
            parser=duration_parser(UNLIMITED),
            metavar="DURATION",
            help="Messages that a subscription has not acknowledged at this age count as acknowledged; -1 means never.",
        ),
    ] = None
    backlog_bytes: Annotated[
        int | None,
        typer.Option(
            min=UNLIMITED, help="The bytes that a subscription may leave unacknowledged; -1 means any number."
        ),
    ] = None
    backlog_ms: Annotated[
        int | None,
        typer.Option(
            parser=duration_parser(UNLIMITED),
            metavar="DURATION",
            help="How old the messages that it leaves unacknowledged may become; -1 means any age.",
        ),
    ] = None
    backlog: Annotated[
        BacklogChoice | None,
        typer.Option(help="Beyond that, refuse new messages, or count its oldest messages as acknowledged."),
    ] = None
    schema_compatibility: Annotated[
        CompatibilityChoice | None,
        typer.Option(
            help="Whether new columns must fit what was written before (backward), former ones what is written later "
            "(forward), or both (full)."
        ),
    ] = None
    schema_updates: Annotated[
        SchemaUpdatesChoice | None,
        typer.Option(help="Who may set the first columns of a topic and add others."),
    ] = None
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="SETTING", help="Remove this setting, such as retention_ms. May be repeated."),
    ] = None

    def changes(self) -> dict[str, Any]:
        """Raises `CliError` if nothing or something unknown is to be changed."""
        names = [field.name for field in fields(self) if field.name != "unset"]
        changes = {name: value for name in names if (value := getattr(self, name)) is not None}
        for name in self.unset or ():
            if name not in PolicySettings.model_fields:
                raise CliError(
                    f"--unset: {name!r} is not a setting. Use one of {', '.join(PolicySettings.model_fields)}."
                )
            if name in changes:
                raise CliError(f"--unset: {name} is also given a value. Give one or the other.")
            changes[name] = None
        if not changes:
            raise CliError("There is nothing to change. Give a setting, such as --retention-ms, or --unset.")
        return changes


takes_settings = takes("settings", SettingOptions)
MAY_DROP = frozenset(
    {
        *("retention_ms", "retention_bytes", "retention", "cleanup", "delete_retention_ms"),
        *("ttl_ms", "backlog", "backlog_bytes", "backlog_ms"),
    }
)
"""The settings by which a change may drop messages, or count them as acknowledged."""


def agreed(
    session: ServiceOptions,
    consent: ConsentOptions,
    about: str,
    changes: Mapping[str, Any],
    present: Callable[[], PolicyInfo],
) -> bool:
    """Whether to change the policy of `about`. A person is asked if that may drop messages."""

    def effect() -> str:
        now = present().effective
        parts, may_drop = [], False
        for name, to in changes.items():
            before, after = getattr(now, name), "what applies without it" if to is None else _value_text(name, to)
            parts.append(f"{name} from {_value_text(name, before.value)} ({before.source}) to {after}")
            may_drop |= name in MAY_DROP and to != before.value
        lost = "; messages that it no longer keeps are gone forever" if may_drop else ""
        return f"change the policy of {about}: {', '.join(parts)}{lost}."

    if not consent.dry_run and not MAY_DROP & changes.keys():
        return True
    return consent.given(session, effect)


@app.command(epilog="Examples: metatxn policy show shop/prod · metatxn policy show --cluster")
@takes_session
def show(session: ServiceOptions, namespace: NamespaceArgument = None, cluster: ClusterOption = False) -> None:
    """Show a policy and the values that apply, with where each one comes from."""
    chosen = _chosen(namespace, cluster)
    with session.connect() as client:
        show_policy(session, client.cluster_policy() if chosen is None else client.namespace_policy(chosen))


@app.command(
    "set",
    epilog="Examples: metatxn policy set shop/prod --retention-ms 7d · "
    "metatxn policy set --cluster --unset retention_ms",
)
@takes_session
@takes_consent
@takes_settings
def set_(
    session: ServiceOptions,
    consent: ConsentOptions,
    settings: SettingOptions,
    namespace: NamespaceArgument = None,
    cluster: ClusterOption = False,
) -> None:
    """Change a policy. Settings that are not named stay as they are."""
    chosen, changes = _chosen(namespace, cluster), settings.changes()
    with session.connect() as client:

        def present() -> PolicyInfo:
            return client.cluster_policy() if chosen is None else client.namespace_policy(chosen)

        about = "the cluster" if chosen is None else f"namespace {chosen}"
        if consent.dry_run:
            check_administers_all(client, "" if chosen is None else f"{chosen}/")
        if not agreed(session, consent, about, changes, present):
            return
        found = (
            client.set_cluster_policy(**changes) if chosen is None else client.set_namespace_policy(chosen, **changes)
        )
        show_policy(session, found)


def _chosen(namespace: str | None, cluster: bool) -> str | None:
    """The namespace, or None for the cluster."""
    if (namespace is None) != cluster:
        raise CliError("Name a namespace, such as shop/prod, or give --cluster, but not both.")
    return namespace


def show_policy(session: ServiceOptions, found: PolicyInfo) -> None:
    if session.json:
        print_json(found)
    else:
        print_rows(("SETTING", "VALUE", "FROM"), policy_rows(found))


def policy_rows(found: PolicyInfo) -> Sequence[tuple[str, Any, str]]:
    settings = [(name, getattr(found.effective, name)) for name in PolicySettings.model_fields]
    return [
        (name, None if each.value == UNLIMITED else _value_text(name, each.value), each.source)
        for name, each in settings
    ]


def _value_text(name: str, value: Any) -> str:
    """The value as its option takes it."""
    if value == UNLIMITED:
        return "no bound"
    return duration_option(value) if name.endswith("_ms") else str(value)
