"""What the shell completes: topics, segments, subscriptions, transactions and keys, as the cluster has them now.

A shell waits for the answer, so it comes soon or not at all, and nothing is said about failures.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
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
_ASKED, _WORDS, _INDEX = "_METATXN_COMPLETE", "COMP_WORDS", "COMP_CWORD"
_BREAKS = frozenset(":=")
"""Characters at which bash, as it is set up by default, also begins a new word (`COMP_WORDBREAKS`)."""

Names = Callable[[typer.Context, str], list[str]]


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Complete topics; those of the namespace `public/default` by their bare names, too."""

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
    """Complete the subscriptions of the preceding topic. Where an option still lacks its value, the parser has not
    assigned the arguments yet."""
    topic = context.params.get("topic") or next(iter(context.args), None)
    if not topic:
        return []
    return _found(context, incomplete, lambda client: (each.name for each in client.subscriptions(topic)))


def complete_txn(context: typer.Context, incomplete: str) -> list[str]:
    """Complete open transactions, without leading zeros unless those were typed."""

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


@contextmanager
def words_of_bash(environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Bash has split `http://host:8470` and `--key=k` into several words. Inside the context, the parser gets them
    whole, and what is printed comes out without the part before bash's last word."""
    words, index = environment.get(_WORDS, "").split("\n"), environment.get(_INDEX, "")
    if environment.get(_ASKED) != "complete_bash" or not index.isdecimal() or not 0 < int(index) < len(words):
        yield
        return
    last, whole = words[int(index)], whole_words(words[: int(index) + 1])
    stays = whole[-1] if _breaks(last) else whole[-1].removesuffix(last)
    if stays.startswith("--"):
        stays = stays.partition("=")[2]  # what completes an option's value does not repeat the option
    environment.update({_WORDS: "\n".join(whole), _INDEX: str(len(whole) - 1)})
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            yield
    finally:
        for line in printed.getvalue().splitlines():
            print(line.removeprefix(stays))


def whole_words(words: Sequence[str]) -> list[str]:
    """The words, with those that bash has split joined again. Nothing is joined to a break that follows a space."""
    whole: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if whole and (_breaks(word) or (_breaks(before) and word)):
            whole[-1] += word
        else:
            whole.append(word)
    return whole


def _breaks(word: str) -> bool:
    return bool(word) and _BREAKS.issuperset(word)


def _found(context: typer.Context, incomplete: str, names: Callable[[metatxn.Client], Iterable[str]]) -> list[str]:
    try:
        with redirect_stderr(io.StringIO()), _client(context) as client:
            client.cluster(patient=False)
            wanted = (each for each in names(client) if each.startswith(incomplete) and printable(each) == each)
            return list(itertools.islice(dict.fromkeys(wanted), MOST))
    except Exception:  # noqa: BLE001  (whatever it is, the shell shows it in the middle of a command line)
        return []


def _client(context: typer.Context) -> metatxn.Client:
    """A client with the options that were typed so far, the environment, or the profile."""
    given: dict[str, Any] = context.find_root().params
    profile = profile_of(*load_settings(given.get("config")), given.get("profile"))

    def setting(name: str) -> str | None:
        own = context.params.get(name) or given.get(name)
        return profile.get(name, own) if own in (None, DEFAULT_URL) else own

    reached: dict[str, Any] = {"ca": setting("ca"), "listener": setting("listener")}
    return metatxn.connect(setting("url") or DEFAULT_URL, setting("token"), WITHIN_S, **reached)
