"""`metatxn segment …`: show a segment and what is stored in it, and delete one that nothing needs any more."""

from __future__ import annotations

import typer

from metatxn.cli.blockers import blockers, print_blockers
from metatxn.cli.consent import ConsentOptions, check_administers, counted, takes_consent
from metatxn.cli.options import ServiceOptions, takes_session
from metatxn.cli.output import as_json, print_fields, print_json
from metatxn.cli.stored import stored
from metatxn.cli.topic import SegmentArgument
from metatxn.wire.broker import SegmentDetail
from metatxn.wire.names import topic_of_segment
from metatxn.words import count_text, size_text

app = typer.Typer(
    help="Show segments and what is stored in them, and delete those that nothing needs any more.",
    epilog="Example: metatxn segment delete segment://public/default/orders/0000-ffff-0. "
    "Other commands for segments are in metatxn topic.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def group() -> None:
    """Show segments and what is stored in them, and delete those that nothing needs any more."""


@app.command(epilog="Example: metatxn segment show segment://public/default/orders/0000-ffff-0")
@takes_session
def show(session: ServiceOptions, segment: SegmentArgument) -> None:
    """Show a segment as its owner sees it: its positions, its size, how far readers may go, and the transactions that
    hold them back."""
    with session.connect() as client:
        found = client.segment(segment)
        waiting = blockers(client, [found])
    if session.json:
        print_json(as_json(found) | {"blockers": [each.as_object() for each in waiting]})
        return
    apart = ("open_transactions", "pinned_by", "rates")
    fields = {name: value for name, value in as_json(found).items() if name not in apart}
    print_fields(fields | {"size_bytes": size_text(found.size_bytes)} | _rates(found))
    print_blockers(waiting)


def _rates(found: SegmentDetail) -> dict[str, str]:
    """The rates in and out per second, if the owner knows them."""
    if (rates := found.rates) is None:
        return {}
    return {
        "in": f"{count_text(rates.messages_in)} messages/s, {size_text(round(rates.bytes_in))}/s",
        "out": f"{count_text(rates.messages_out)} messages/s, {size_text(round(rates.bytes_out))}/s",
    }


app.command(
    "messages", epilog="Example: metatxn segment messages segment://public/default/orders/0000-ffff-0 --since 1h"
)(stored)


@app.command(epilog="Example: metatxn segment delete segment://public/default/orders/0000-ffff-0")
@takes_session
@takes_consent
def delete(session: ServiceOptions, consent: ConsentOptions, segment: SegmentArgument) -> None:
    """Drop what is left in a sealed segment that has children, and remove it from its topic. Readers and consumers go
    on in its children. If anything still needs it, that is named, and nothing happens."""

    def effect() -> str:
        found = client.segment(segment)
        left = f"{counted(found.entries, 'entry')} ({size_text(found.size_bytes)})"
        return f"drop the {left} of {segment}, which is {found.state}, unless something needs it, and remove it."

    with session.connect() as client:
        if consent.dry_run:
            check_administers(client, topic_of_segment(segment))
        if not consent.given(session, effect):
            return
        client.delete_segment(segment)
    session.print_done({"deleted": segment}, f"deleted {segment}")
