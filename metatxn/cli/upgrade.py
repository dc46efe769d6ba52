"""`metatxn upgrade …`: the cluster version, which says what processes of two releases may write side by side."""

from __future__ import annotations

from typing import Annotated

import typer

import metatxn
from metatxn.cli.consent import ConsentOptions, takes_consent
from metatxn.cli.options import ServiceOptions, takes_session
from metatxn.cli.output import print_fields, print_json, print_rows, when

app = typer.Typer(
    help="Show and raise the cluster version, after every process was restarted with a new release.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
COLUMNS = ("SERVICE", "URL", "RELEASE", "SPEAKS")


@app.command(epilog="Example: metatxn upgrade status -o json | jq .obstacles")
@takes_session
def status(session: ServiceOptions) -> None:
    """Show the cluster version, the release of every process, and what stands in the way of the next version."""
    with session.connect() as client:
        found = client.upgrade_status()
    if session.json:
        print_json(found)
        return
    print_fields({"cluster version": found.version, "finalized": when(found.finalized_ms)})
    print()
    print_rows(COLUMNS, [(each.service, each.url, each.release, each.speaks) for each in found.processes])
    print()
    for line in _said(found):
        print(line)


def _said(found: metatxn.UpgradeStatus) -> list[str]:
    if found.version >= found.target:
        return [f"The cluster has the version of release {found.release or 'a later one'}: there is nothing to do."]
    if found.obstacles:
        return [f"Before the cluster version can become {found.target}:", *(f"- {each}." for each in found.obstacles)]
    return [
        f"`metatxn upgrade finalize` makes the cluster version {found.target}. Until then the earlier release can be",
        "started again, and these are not available:",
        *(f"- {each}" for each in found.features),
    ]


@app.command(epilog="Example: metatxn upgrade finalize --dry-run")
@takes_session
@takes_consent
def finalize(
    session: ServiceOptions,
    consent: ConsentOptions,
    accept_absent: Annotated[
        bool,
        typer.Option(
            "--accept-absent",
            help="Go on although brokers that are not running own segments; never start an earlier release of them.",
        ),
    ] = False,
) -> None:
    """Raise the cluster version to that of the new release, once every process runs it. There is no way back: no
    process of an earlier release can serve the cluster after that."""

    def effect() -> str:
        found = client.upgrade_status()
        if found.version >= found.target:
            return f"change nothing: the cluster version is already {found.version}."
        if found.obstacles and not accept_absent:
            return f"be refused: {'; '.join(found.obstacles)}."
        return (
            f"raise the cluster version from {found.version} to {found.target}: "
            "no process of an earlier release can serve this cluster after that."
        )

    with session.connect() as client:
        if not consent.given(session, effect):
            return
        found = client.finalize_upgrade(accept_absent=accept_absent)
    session.print_done(found.model_dump(exclude_none=True), f"the cluster version is {found.version}")
