"""`metatxn broker …`: run a broker, list the brokers, and drain one before it is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

import metatxn
from metatxn.cli import serve
from metatxn.cli.completion import complete_broker
from metatxn.cli.consent import counted
from metatxn.cli.options import CliError, Interrupted, ServiceOptions, takes_session
from metatxn.cli.output import as_json, print_json, print_rows
from metatxn.cli.progress import ProgressLine
from metatxn.cli.times import DURATION_HELP, milliseconds_of
from metatxn.wire.models import BrokerProcess
from metatxn.words import duration

COLUMNS = ("BROKER", "URL", "STATE", "SEGMENTS", "UP", "VERSION", "STORAGE")
SEGMENT_COLUMNS = ("SEGMENT", "STATE", "ENTRIES", "BYTES", "WAITING FOR")
POLL_S = 0.2

app = typer.Typer(
    epilog="Examples: metatxn broker --store etcd://10.0.0.1:2379 --data-dir /var/lib/metatxn, "
    "and metatxn broker drain 4f1c",
    invoke_without_command=True,
    rich_markup_mode=None,
)
app.callback(context_settings=serve.FROM_ENVIRONMENT)(serve.broker)

BrokerArgument = Annotated[
    str,
    typer.Argument(
        metavar="BROKER",
        autocompletion=complete_broker,
        help="The id of a broker as `metatxn broker list` prints it, its first characters, or the broker's URL.",
    ),
]


@app.command("list", epilog="Example: metatxn broker list -o json | jq '.[] | select(.draining)'")
@takes_session
def list_brokers(session: ServiceOptions) -> None:
    """List the brokers that are running, and which of them are draining."""
    with session.connect() as client:
        found = [_seen(client, broker) for broker in client.cluster().brokers]
    if session.json:
        print_json(found)
    else:
        print_rows(COLUMNS, [_row(each) for each in found])


@app.command(epilog="Example: metatxn broker segments 4f1c -o json | jq '.[].segment'")
@takes_session
def segments(session: ServiceOptions, broker: BrokerArgument) -> None:
    """List the segments that a broker has and, for those that are not served, why."""
    with session.connect() as client:
        found = list(client.broker_segments(_id_of(client, broker)))
    if session.json:
        print_json([as_json(each) for each in found])
    else:
        print_rows(SEGMENT_COLUMNS, [_segment_row(each) for each in found])


@app.command(epilog="Example: metatxn broker drain 4f1c && ssh broker-1 systemctl stop metatxn")
@takes_session
def drain(
    session: ServiceOptions,
    broker: BrokerArgument,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until all segments have moved.")] = False,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help=f"Wait at most this long: {DURATION_HELP}.")] = "10m",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False,
) -> None:
    """Hand the segments of a broker over to the other brokers of its storage, while everything stays served. Then the
    broker can be stopped without an interruption.

    A broker with --data-dir keeps its segments, because it has their files: only new topics go to other brokers. That
    lasts until `metatxn broker undrain`, even across a restart; the drain of a broker with --storage ends with its
    process. Ctrl-C ends only the waiting.
    """
    within_s = milliseconds_of("--timeout", timeout) / 1000
    with session.connect() as client:
        found = client.broker(_id_of(client, broker))
        if dry_run:
            plan = _plan(found, alone=_is_alone(client, found))
            session.print_done({"dry_run": True, "would": plan}, f"would {plan}")
            return
        found = client.drain_broker(found.id)
        if not found.shared and _is_alone(client, found):
            raise CliError(
                f"broker {found.id} is draining, but no other broker takes new topics, so none can be created. "
                f"Start one, or end the drain: metatxn broker undrain {found.id}."
            )
        if found.shared and not no_wait:
            found = _until_drained(client, found, within_s)
    session.print_done(as_json(found), _sentence(found))


@app.command(epilog="Example: metatxn broker undrain 4f1c")
@takes_session
def undrain(session: ServiceOptions, broker: BrokerArgument) -> None:
    """End a drain: the broker gets its share of the segments again, and new topics."""
    with session.connect() as client:
        before = client.broker(_id_of(client, broker))
        found = client.undrain_broker(before.id)
    serves = "was not being drained" if before.state == "serving" else "serves again"
    session.print_done(as_json(found), f"broker {found.id} {serves}")


def _seen(client: metatxn.Client, broker: BrokerProcess) -> dict[str, Any]:
    """What a broker has announced, and what it says itself if it answers."""
    seen: dict[str, Any] = broker.model_dump()
    try:
        status = client.service_status(broker.url)
    except metatxn.MetatxnError:
        return seen | {"state": "no answer"}
    draining = "draining" if status.segments else "drained"
    state = draining if broker.draining else "serving" if status.ready else "not ready"
    return seen | {"state": state, "segments": status.segments, "up_ms": status.up_ms, "version": status.version}


def _row(seen: dict[str, Any]) -> tuple[Any, ...]:
    up = duration(seen["up_ms"]) if "up_ms" in seen else None
    return (seen["id"], seen["url"], seen["state"], seen.get("segments"), up, seen.get("version"), seen["storage"])


def _segment_row(each: metatxn.BrokerSegment) -> tuple[Any, ...]:
    return (each.segment, each.state, each.entries, each.size_bytes, each.waiting_for)


def _id_of(client: metatxn.Client, named: str) -> str:
    """The id of the broker that is named. Raises `CliError` if no broker matches, or several do."""
    brokers = client.cluster().brokers
    matching = [each.id for each in brokers if named.rstrip("/") in (each.id, each.url.rstrip("/"))]
    matching = matching or [each.id for each in brokers if named and each.id.startswith(named)]
    if len(matching) != 1:
        problem = f"{len(matching)} brokers match" if matching else "no broker matches"
        raise CliError(f"{problem} {named!r}. `metatxn broker list` prints the ids and the URLs.")
    return matching[0]


def _is_alone(client: metatxn.Client, found: metatxn.BrokerInfo) -> bool:
    """Whether no other broker takes what this one gives away: its segments, or, with local files, new topics."""
    others = (each for each in client.cluster().brokers if each.id != found.id and not each.draining)
    return not any(not found.shared or each.storage == found.storage for each in others)


def _until_drained(
    client: metatxn.Client, found: metatxn.BrokerInfo, within_s: float, clock: Callable[[], float] = time.monotonic
) -> metatxn.BrokerInfo:
    """Wait until the broker is drained. Raises `CliError` if that takes too long, or if no broker can take over."""
    end, at_first = clock() + within_s, found.segments
    with ProgressLine("segments have gone", total=at_first, beside_output=False) as progress:
        try:
            while found.state == "draining":
                if found.waiting_for is not None:
                    raise CliError(
                        f"the drain has begun, but {found.waiting_for}. Start one, and {_counted(found)} will go "
                        f"there; or end the drain: metatxn broker undrain {found.id}."
                    )
                if clock() >= end:
                    left = f"{_counted(found)} left at the end of --timeout"
                    raise CliError(f"{left}, and the drain goes on. {_look_again(found)}")
                progress.at(max(0, at_first - found.segments))
                threading.Event().wait(POLL_S)
                found = client.broker(found.id)
        except metatxn.NotFound as error:
            raise CliError(
                f"broker {found.id} stopped before {_counted(found)} had moved; the others take over what was left. "
                "See `metatxn status`."
            ) from error
        except metatxn.ServiceUnreachable as error:
            raise CliError(
                f"cannot tell how far the drain is, with {_counted(found)} left: {error.detail}. If the broker has "
                "stopped, the others take over what was left; see `metatxn status`."
            ) from error
        except KeyboardInterrupt:
            raise Interrupted(f"the drain goes on: {_counted(found)} left. {_look_again(found)}") from None
    return found


def _counted(found: metatxn.BrokerInfo) -> str:
    return counted(found.segments, "segment")


def _look_again(found: metatxn.BrokerInfo) -> str:
    return f"Look again with `metatxn broker list`, or end it: metatxn broker undrain {found.id}."


def _plan(found: metatxn.BrokerInfo, *, alone: bool) -> str:
    if found.shared:
        plan = f"hand {_counted(found)} of broker {found.id} over to others of storage {found.storage}"
        return f"{plan}; but no other broker that is not draining has it open, so none would move" if alone else plan
    if alone:
        return f"prevent new topics, because there is no other broker; {_counted(found)} of {found.id} stay there"
    return f"send new topics to other brokers; {_counted(found)} of broker {found.id} stay there"


def _sentence(found: metatxn.BrokerInfo) -> str:
    if found.state == "drained":
        return f"broker {found.id} has no segments left and can be stopped"
    waiting_for = found.waiting_for or f"{_counted(found)} still here, which other brokers are taking"
    return f"broker {found.id} drains: {waiting_for}"
