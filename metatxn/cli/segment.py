"""`metatxn segment …`: delete segments of which nothing is needed any more."""

from __future__ import annotations

import typer

from metatxn.cli.options import ServiceOptions, takes_session
from metatxn.cli.topic import SegmentArgument

app = typer.Typer(
    help="Delete segments of which nothing is needed any more.",
    epilog="Example: metatxn segment delete segment://public/default/orders/0000-ffff-0. "
    "Other commands for segments are in metatxn topic.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def group() -> None:
    """Delete segments of which nothing is needed any more."""


@app.command(epilog="Example: metatxn segment delete segment://public/default/orders/0000-ffff-0")
@takes_session
def delete(session: ServiceOptions, segment: SegmentArgument) -> None:
    """Drop what is left in a sealed segment that has children, and remove it from its topic. Readers and consumers go
    on in its children. What still needs it is named, and then nothing happens."""
    with session.connect() as client:
        client.delete_segment(segment)
    session.print_done({"deleted": segment}, f"deleted {segment}")
