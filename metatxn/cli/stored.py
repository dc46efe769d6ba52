"""`metatxn segment messages`: what is stored in a segment, also what readers do not see."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from metatxn.cli.options import CliError, ServiceOptions, takes_session
from metatxn.cli.output import JsonLines, TableRows, print_note, when
from metatxn.cli.progress import ProgressLine
from metatxn.cli.times import TIME_HELP, time_of
from metatxn.cli.topic import AT_ONCE, SegmentArgument, shown
from metatxn.stored.files import FILE_FORMS, json_line
from metatxn.stored.looking import StoredMessage
from metatxn.wire.names import topic_of_segment
from metatxn.wire.position import Position
from metatxn.words import count_text

MOST_IN_A_FILE = 100_000


@takes_session
def stored(
    session: ServiceOptions,
    segment: SegmentArgument,
    after: Annotated[
        str | None, typer.Option(metavar="POSITION", help="Begin with the entry after this position.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Begin with what was published since {TIME_HELP}.")
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=1000, help="Begin with the last N entries; one may have many messages."),
    ] = None,
    readable: Annotated[bool, typer.Option("--readable", help="Only what readers see.")] = False,
    key: Annotated[str | None, typer.Option(help="Only messages with this key.")] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION", help="Only messages whose columns match, as: 'amount >= 100 and country = \"DE\"'."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many.")] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"Write a file instead: {', '.join(f'.{form}' for form in FILE_FORMS)}, as its name ends.",
        ),
    ] = None,
) -> None:
    """Look at what is stored in a segment, also at messages of open and aborted transactions. Each has a state: readers
    see what is readable; what is undecided, and what waits behind it, they may see later; what is aborted, void or
    skipped, never. Nothing is acknowledged."""
    places = [name for name, given in (("--after", after), ("--since", since), ("--last", last)) if given is not None]
    if len(places) > 1:
        raise CliError(f"{places[1]}: {places[0]} gives a place, too. Give one of them.")
    if to is not None and to.suffix[1:] not in FILE_FORMS:
        raise CliError(f"--to: {to} does not end in one of {', '.join(f'.{form}' for form in FILE_FORMS)}.")
    if to is not None and to.exists():
        raise CliError(f"--to: {to} exists. Give another name, or remove it first.")
    with session.connect() as client, ProgressLine("messages") as progress:
        if since is not None:
            after = client.position_at(segment, time_of("--since", since)).after
        elif last is not None:
            end = Position.parse(client.segment(segment, max_open=0).last_position).next
            after = client.position_before(segment, str(end), last).after
        found = client.stored_messages(segment, after=after, everything=not readable, key=key, where=where)
        if to is None:
            _print(session, segment, itertools.islice(found, limit), progress)
            return
        most = min(limit or MOST_IN_A_FILE, MOST_IN_A_FILE)
        taken = list(progress.over(itertools.islice(found, most)))
        content = FILE_FORMS[to.suffix[1:]].write(client.topic(topic_of_segment(segment)), segment, taken)
        try:
            to.write_bytes(content)
        except OSError as error:
            raise CliError(f"--to: {to} cannot be written: {error.strerror}.") from None
        if len(taken) == most and (limit is None or limit > most):
            print_note(f"these are the first {count_text(most)}. Go on with --after {_place_to_go_on(taken[-1])}.")
    session.print_done({"file": str(to), "messages": len(taken)}, f"wrote {count_text(len(taken))} messages to {to}")


def _print(session: ServiceOptions, segment: str, found: Iterator[StoredMessage], progress: ProgressLine) -> None:
    items, table = JsonLines(), TableRows(("POSITION", "READERS", "PUBLISHED", "KEY", "VALUE", "TXN_ID"))
    while part := list(itertools.islice(found, AT_ONCE)):
        if session.json:
            for message in part:
                items.print(json.loads(json_line(segment, message)))
        else:
            table.print(_row(message) for message in part)
        sys.stdout.flush()
        progress.at(progress.done + len(part))
    items.end() if session.json else table.print(())


def _place_to_go_on(last: StoredMessage) -> str:
    """A position after which everything follows that is behind this message; its whole entry again, if that has
    more."""
    return last.position if last.index + 1 >= last.frame.count else str(last.frame.position.before)


def _row(message: StoredMessage) -> Sequence[Any]:
    place = f"{message.position}#{message.index}" if message.index else message.position
    content = message.content
    return place, message.state, when(message.frame.publish_ms), content.key, shown(content.value), message.txn_id
