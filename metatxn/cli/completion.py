"""What the shell completes: topics, segments, subscriptions, transactions and keys, as the cluster has them now.

A shell waits for the answer, so it comes soon or not at all, and nothing is said about failures.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import typer

import metatxn
from metatxn.cli.options import DEFAULT_URL
from metatxn.cli.output import printable
from metatxn.cli.settings import load_settings, profile_of
from metatxn.words import short_id

WITHIN_S = 2.0
MOST = 200
_DEFAULT_NAMESPACE = "public/default/"

Names = Callable[[typer.Context, str], list[str]]


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Topics of the namespace `public/default` by their bare names, too."""

    def names(client: metatxn.Client) -> Iterable[str]:
        for topic in client.topics():
            yield topic.name
            yield topic.name.removeprefix(_DEFAULT_NAMESPACE)

    return _found(context, incomplete, names)


def complete_segment(context: typer.Context, incomplete: str) -> list[str]:
    return _found(
        context, incomplete, lambda client: (each.segment for topic in client.topics() for each in topic.segments)
    )


def complete_subscription(context: typer.Context, incomplete: str) -> list[str]:
    """Those of the topic that stands before it. Where an option still lacks its value, the parser has not assigned the
    arguments yet."""
    topic = context.params.get("topic") or next(iter(context.args), None)
    if not topic:
        return []
    return _found(context, incomplete, lambda client: (each.name for each in client.subscriptions(topic)))


def complete_txn(context: typer.Context, incomplete: str) -> list[str]:
    """Open transactions, without leading zeros unless those were typed."""

    def ids(client: metatxn.Client) -> Iterable[str]:
        for txn in client.transactions("OPEN", newest_first=True):
            yield (txn.txn_id or "") if incomplete.startswith("0") else short_id(txn.txn_id or "")

    return _found(context, incomplete, ids)


def complete_broker(context: typer.Context, incomplete: str) -> list[str]:
    return _found(context, incomplete, lambda client: (each.id for each in client.cluster().brokers))


def complete_key(context: typer.Context, incomplete: str) -> list[str]:
    def names(client: metatxn.Client) -> Iterable[str]:
        found = client.keys()
        return (each.key for each in found)

    return _found(context, incomplete, names)


def _found(context: typer.Context, incomplete: str, names: Callable[[metatxn.Client], Iterable[str]]) -> list[str]:
    try:
        with _client(context) as client:
            client.cluster(patient=False)
            wanted = (each for each in names(client) if each.startswith(incomplete) and printable(each) == each)
            return list(itertools.islice(dict.fromkeys(wanted), MOST))
    except Exception:  # noqa: BLE001  (whatever it is, the shell shows it in the middle of a command line)
        return []


def _client(context: typer.Context) -> metatxn.Client:
    """With the options that are typed already, the environment, or the profile."""
    given: dict[str, Any] = context.find_root().params
    profile = profile_of(*load_settings(given.get("config")), given.get("profile"))

    def setting(name: str) -> str | None:
        own = context.params.get(name) or given.get(name)
        return profile.get(name, own) if own in (None, DEFAULT_URL) else own

    reached: dict[str, Any] = {"ca": setting("ca"), "listener": setting("listener")}
    return metatxn.connect(setting("url") or DEFAULT_URL, setting("token"), WITHIN_S, **reached)
