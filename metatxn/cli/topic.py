"""`metatxn topic …`: create, show and change topics; send and read messages."""

from __future__ import annotations

import base64
import contextlib
import functools
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

import metatxn
from metatxn.cli.blockers import Blocker, blockers, details, print_blockers, say_what_holds_back
from metatxn.cli.completion import complete_segment, complete_subscription, complete_topic, complete_txn
from metatxn.cli.consent import ConsentOptions, check_administers, counted, takes_consent
from metatxn.cli.following import FollowingNote
from metatxn.cli.options import CliError, LimitOption, ServiceOptions, takes_session
from metatxn.cli.output import (
    JsonLines,
    TableRows,
    as_json,
    print_fields,
    print_json,
    print_line,
    print_rows,
    when,
)
from metatxn.cli.policy import SettingOptions, agreed, show_policy, takes_settings
from metatxn.cli.progress import ProgressLine
from metatxn.cli.times import DURATION_HELP, TIME_HELP, delivery_time, time_of
from metatxn.cli.topic_sizes import print_sizes
from metatxn.cli.txn import full_id, named_values
from metatxn.columns import columns_text, parsed_columns
from metatxn.wire.broker import ReadHoldInfo, SegmentDetail, TopicCount, TopicInfo, TopicSchema
from metatxn.wire.names import TopicFormat, topic_of_segment
from metatxn.words import short_id, size_text

app = typer.Typer(
    help="Create, show and change topics; send and read messages.",
    epilog="Example: metatxn topic create billing/prod/orders. A bare name means public/default/<name>.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
TopicArgument = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="A bare name means public/default/<name>.", autocompletion=complete_topic),
]

AT_ONCE = 1_000
"""The messages that are read, printed and then acknowledged together."""

Details = Mapping[str, SegmentDetail | None]
"""The segments of a topic as their owners see them, by id; None for one that is not served."""


class FormatChoice(StrEnum):
    KAFKA = "kafka"
    PULSAR = "pulsar"


class IsolationChoice(StrEnum):
    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"
    SNAPSHOT = "snapshot"


@app.command(epilog="Example: metatxn topic create orders --segments 4 --schema id:int64,name:string")
@takes_session
def create(
    session: ServiceOptions,
    topic: TopicArgument,
    segments: Annotated[int, typer.Option(min=1, help="Number of segments.")] = 1,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:TYPE,…", help="Columns with Arrow's type names. Without it, the topic accepts any message."
        ),
    ] = None,
    format: Annotated[
        FormatChoice | None,
        typer.Option(
            help="kafka: each segment is a partition for Kafka's clients. It is never split or merged. "
            "pulsar: Pulsar's clients may write to it."
        ),
    ] = None,
) -> None:
    """Create a topic."""
    chosen: TopicFormat | None = format.value if format is not None else None
    columns = columns_option("--schema", schema) if schema is not None else None
    with session.connect() as client:
        show_topic(session, client.create_topic(topic, segments, columns, format=chosen))


def columns_option(option: str, text: str) -> TopicSchema:
    """The columns that an option names. Raises `CliError`, which names it."""
    try:
        return parsed_columns(text)
    except ValueError as error:
        raise CliError(f"{option}: {error}") from error


@app.command("list", epilog="Examples: metatxn topic list -o json · metatxn topic list --sizes --text billing")
@takes_session
def list_(
    session: ServiceOptions,
    text: Annotated[str | None, typer.Option(help="Only those with this text in their full name, in any case.")] = None,
    limit: LimitOption = 1000,
    count: Annotated[bool, typer.Option("--count", help="Only print how many there are.")] = False,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Show how much each has, what goes through it, and what is held back.")
    ] = False,
) -> None:
    """List topics by name."""
    with session.connect() as client:
        if count:
            _print_count(session, client.count_topics(text=text))
            return
        if sizes:
            print_sizes(session, client, client.topics(text=text), limit)
            return
        session.print_list(client.topics(text=text), limit, ("TOPIC", "SEGMENTS", "SCHEMA"), topic_row)


def _print_count(session: ServiceOptions, found: TopicCount | None) -> None:
    if found is None:
        raise CliError("the broker runs a release that does not count topics. Ask a later one with --url.")
    what = f"{'at least ' if found.more else ''}{counted(found.topics, 'topic')}"
    session.print_done(as_json(found), what)


@app.command(epilog="Example: metatxn topic show orders")
@takes_session
def show(session: ServiceOptions, topic: TopicArgument) -> None:
    """Show a topic's schema, its policy, who holds it, its segments with their owners and sizes, and the transactions
    that hold back their readers."""
    with session.connect() as client:
        found, policy = client.topic(topic), client.topic_policy(topic)
        holds = client.read_holds(topic)
        seen = details(client, (each.segment for each in found.segments))
        waiting = blockers(client, seen.values())
    if session.json:
        more = {"read_holds": as_json(holds), "blockers": [each.as_object() for each in waiting]}
        print_json(with_details(found, seen) | as_json(policy) | more)
        return
    show_topic(session, found, seen, waiting, holds)
    print()
    show_policy(session, policy)


@app.command("set", epilog="Example: metatxn topic set orders --retention-ms 7d --retention hard")
@takes_session
@takes_consent
@takes_settings
def set_(session: ServiceOptions, consent: ConsentOptions, settings: SettingOptions, topic: TopicArgument) -> None:
    """Change a topic's policy, while it is in use. Settings that are not named stay as they are."""
    changes = settings.changes()
    with session.connect() as client:
        if consent.dry_run:
            check_administers(client, topic)
        if agreed(session, consent, f"topic {topic}", changes, lambda: client.topic_policy(topic)):
            show_policy(session, client.set_topic_policy(topic, **changes))


@app.command(
    epilog="""Examples: metatxn topic produce orders '{"id": 7}' --key 7 · """
    """seq 100 | metatxn topic produce numbers · metatxn topic produce orders '{"id": 8}' --txn <txn id>"""
)
@takes_session
def produce(
    session: ServiceOptions,
    topic: TopicArgument,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JSON]...", help="The values. Without any, standard input is read: one value per line."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="The key of all values. Messages with the same key keep their order.")
    ] = None,
    txn: Annotated[
        str | None, typer.Option(metavar="TXN_ID", help="Send inside this transaction.", autocompletion=complete_txn)
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="The values are plain text instead of JSON.")] = False,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="A property of the messages. May be repeated."),
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="When shared subscriptions deliver the messages: 2026-11-22T10:00:00Z."),
    ] = None,
    deliver_after: Annotated[
        str | None, typer.Option(metavar="DURATION", help=f"The same, counted from now: {DURATION_HELP}.")
    ] = None,
) -> None:
    """Send messages, and return when all of them are durable."""
    due = delivery_time(deliver_at, deliver_after)
    messages = parsed_values(values if values else (line.rstrip("\n") for line in sys.stdin), text)
    named = named_values(properties)
    with session.connect() as client:
        inside = client.attach(full_id(txn)) if txn is not None else None
        sending = ProgressLine("messages sent", total=len(messages), beside_output=False)
        with client.producer(topic) as producer, sending as progress:
            futures = [producer.send(value, key, inside, named, deliver_at=due) for value in messages]
            positions = [future.result() for future in progress.over(futures)]
    session.print_done({"sent": len(positions), "positions": positions}, f"sent {len(positions)}")


@app.command(
    epilog="Examples: metatxn topic consume orders --follow --isolation read_committed · "
    "metatxn topic consume prices --compacted · "
    "metatxn topic consume orders --subscription billing --limit 10"
)
@takes_session
def consume(
    session: ServiceOptions,
    topic: TopicArgument,
    start: Annotated[str, typer.Option(help="earliest, latest, or a token of the browse endpoint.")] = "earliest",
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Begin with what was published since {TIME_HELP}.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more messages until Ctrl-C, and print one line for each.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Print at most this many.")] = None,
    isolation: Annotated[
        IsolationChoice, typer.Option(help="snapshot reads one consistent cut, as of now.")
    ] = IsolationChoice.READ_COMMITTED,
    compacted: Annotated[
        bool, typer.Option("--compacted", help="Print the latest value of each key first, then new messages.")
    ] = False,
    subscription: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Acknowledge what is printed on this subscription. If it does not exist, a shared one is created.",
            autocompletion=complete_subscription,
        ),
    ] = None,
    txn: Annotated[
        str | None,
        typer.Option(
            metavar="TXN_ID",
            help="Acknowledge inside this transaction; needs --subscription.",
            autocompletion=complete_txn,
        ),
    ] = None,
) -> None:
    """Read messages. Without a subscription nothing is acknowledged, and the messages can be read again.

    If an open transaction holds back what follows, a note says which one.
    """
    if txn is not None and subscription is None:
        raise CliError("--txn: nothing is acknowledged without --subscription. Name a subscription.")
    if compacted and subscription is not None:
        raise CliError("--compacted: a subscription delivers every message. Read without --subscription.")
    if since is not None and (subscription is not None or start != "earliest"):
        raise CliError(
            "--since: a subscription has its own position, and --start gives another one. Use one of them; "
            "`metatxn subscription seek` moves a subscription."
        )
    begin = start if since is None else time_of("--since", since)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(session.connect())
        if subscription is None:
            reader = client.reader(topic, begin, isolation.value, follow, compacted=compacted)
            parts = message_parts(itertools.islice(reader, limit), 1 if follow else AT_ONCE)
        else:
            consumer = stack.enter_context(subscribed(client, topic, subscription, start))
            inside = client.attach(full_id(txn)) if txn is not None else None
            parts = consumed_parts(consumer, inside, follow, limit)
        progress = stack.enter_context(ProgressLine("messages"))
        if follow:
            messages = progress.over(itertools.chain.from_iterable(parts))
            if isolation is IsolationChoice.READ_COMMITTED:
                messages = stack.enter_context(FollowingNote(client, topic, subscription)).over(messages)
            follow_messages(session, messages)
            return
        printed = print_parts(session, parts, progress)
        if isolation is IsolationChoice.READ_COMMITTED and (limit is None or printed < limit):
            say_what_holds_back(client, topic, subscription)


def subscribed(client: metatxn.Client, topic: str, subscription: str, start: str) -> metatxn.Consumer:
    """A consumer of the subscription if it exists, whatever its type, or else of a new one."""
    try:
        client.subscription(topic, subscription)
    except metatxn.NotFound:
        if start not in ("earliest", "latest"):
            raise CliError("--start: a subscription begins at earliest or latest. Use one of them.") from None
        return client.subscribe(topic, subscription, "shared", "latest" if start == "latest" else "earliest")
    return client.consumer(topic, subscription)


def message_parts(messages: Iterator[metatxn.Message], most: int) -> Iterator[list[metatxn.Message]]:
    while part := list(itertools.islice(messages, most)):
        yield part


def consumed_parts(
    consumer: metatxn.Consumer, txn: metatxn.Transaction | None, follow: bool, limit: int | None
) -> Iterator[list[metatxn.Message]]:
    """Each part is acknowledged when the next one is requested, because by then it was printed. If the command is
    interrupted, the rest is delivered again."""
    receive = functools.partial(consumer.receive, None if follow else 0)
    left, most = sys.maxsize if limit is None else limit, 1 if follow else AT_ONCE
    # Without a message the part ends, but perhaps only because the consumer holds as much as it may.
    while part := list(itertools.islice(iter(receive, None), min(left, most))):
        yield part
        consumer.acknowledge(part, txn)
        left -= len(part)


def print_parts(session: ServiceOptions, parts: Iterable[Sequence[metatxn.Message]], progress: ProgressLine) -> int:
    """How many messages there were. A part has left this process when the next one is requested."""
    items, table = JsonLines(), TableRows(("PUBLISHED", "KEY", "VALUE", "TXN_ID"))
    for part in parts:
        if session.json:
            for message in part:
                items.print(as_object(message))
        else:
            table.print((when(each.publish_ms), each.key, shown(each.value), each.txn_id) for each in part)
        sys.stdout.flush()
        progress.at(progress.done + len(part))
    items.end() if session.json else table.print(())
    return progress.done


SegmentArgument = Annotated[
    str,
    typer.Argument(
        metavar="SEGMENT", help="The segment's id, as `metatxn topic show` prints it.", autocompletion=complete_segment
    ),
]


@app.command(epilog="Example: metatxn topic split segment://public/default/orders/0000-ffff-0")
@takes_session
def split(
    session: ServiceOptions,
    segment: SegmentArgument,
    at: Annotated[
        int | None, typer.Option(help="The first hash of the upper half, 1 to 65535. [default: the middle]")
    ] = None,
) -> None:
    """Seal a segment and divide its keys between two children. Producers and readers continue by themselves."""
    with session.connect() as client:
        show_children(session, client.split_segment(segment, at))


@app.command(
    epilog="Example: metatxn topic merge segment://public/default/orders/0000-7fff-1 "
    "segment://public/default/orders/8000-ffff-2"
)
@takes_session
def merge(
    session: ServiceOptions,
    segment: SegmentArgument,
    other: Annotated[
        str,
        typer.Argument(
            metavar="SEGMENT", help="The segment's neighbour in the hash range.", autocompletion=complete_segment
        ),
    ],
) -> None:
    """Seal two neighbours, and let one child take over the keys of both."""
    with session.connect() as client:
        show_children(session, client.merge_segments(segment, other))


@app.command(epilog="Example: metatxn topic seal segment://public/default/orders/0000-ffff-0")
@takes_session
@takes_consent
def seal(session: ServiceOptions, consent: ConsentOptions, segment: SegmentArgument) -> None:
    """Seal a segment without a successor: it accepts no more messages, and what it holds stays readable."""
    with session.connect() as client:
        if consent.dry_run:
            check_administers(client, topic_of_segment(segment))
        if not consent.given(session, lambda: f"seal {client.segment(segment).segment} forever, without a successor."):
            return
        show_children(session, client.seal_segment(segment))


@app.command(epilog="Example: metatxn topic trim segment://public/default/orders/0000-ffff-0 --before 3:17")
@takes_session
@takes_consent
def trim(
    session: ServiceOptions,
    consent: ConsentOptions,
    segment: SegmentArgument,
    before: Annotated[
        str, typer.Option(metavar="POSITION", help="Entries below this position (ledger:entry) are dropped.")
    ],
) -> None:
    """Drop a segment's oldest entries."""

    def effect() -> str:
        found = client.segment(segment)
        return f"drop the entries of {segment} from {found.first_position} up to, but not including, {before}."

    with session.connect() as client:
        if consent.dry_run:
            check_administers(client, topic_of_segment(segment))
        if not consent.given(session, effect):
            return
        first = client.trim_segment(segment, before)
    session.print_done({"first_position": first}, f"readable from {first}")


@app.command(epilog="Example: metatxn topic delete orders --dry-run")
@takes_session
@takes_consent
def delete(session: ServiceOptions, consent: ConsentOptions, topic: TopicArgument) -> None:
    """Delete a topic with its messages and subscriptions. Open transactions that wrote to it end like any others."""
    with session.connect() as client:
        if consent.dry_run:
            check_administers(client, topic)
        if not consent.given(session, lambda: _deletion_of(client, topic)):
            return
        client.delete_topic(topic)
    session.print_done({"deleted": topic}, f"deleted {topic}")


def _deletion_of(client: metatxn.Client, topic: str) -> str:
    found = client.topic(topic)
    seen = details(client, (each.segment for each in found.segments))
    served = [each for each in seen.values() if each is not None]
    entries, size = sum(each.entries for each in served), sum(each.size_bytes for each in served)
    parts = [f"{counted(len(seen), 'segment')} with {counted(entries, 'entry')} ({size_text(size)})"]
    if len(served) < len(seen):
        parts.append(f"{counted(len(seen) - len(served), 'segment')} of unknown size, because no broker serves them")
    names = [each.name for each in client.subscriptions(topic)]
    parts.append(counted(len(names), "subscription") + (f" ({', '.join(names)})" if names else ""))
    writing = {each.txn_id for each in blockers(client, served)}
    parts.append(f"what {counted(len(writing), 'open transaction')} has written to it") if writing else None
    return f"delete the topic {found.name}: {'; '.join(parts)}."


def show_children(session: ServiceOptions, children: list[str]) -> None:
    session.print_done({"children": children}, "\n".join(children) if children else "sealed, without children")


def follow_messages(session: ServiceOptions, messages: Iterator[metatxn.Message]) -> None:
    for message in messages:
        if session.json:
            print_line(as_object(message))
        else:
            print(when(message.publish_ms), message.key or "-", json.dumps(shown(message.value)), sep="  ", flush=True)


def as_object(message: metatxn.Message) -> dict[str, Any]:
    """The message as the browse endpoint returns it."""
    found: dict[str, Any] = {"message_id": message.message_id, "key": message.key}
    if isinstance(message.value, bytes):
        found["value_base64"] = base64.b64encode(message.value).decode()
    else:
        found["value"] = message.value
    names = ("properties", "publish_ms", "txn_id", "deliver_at_ms")
    return found | {name: getattr(message, name) for name in names}


def shown(value: Any) -> Any:
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else value


def topic_row(topic: TopicInfo) -> tuple[Any, ...]:
    return (
        topic.name,
        len([segment for segment in topic.segments if segment.state == "active"]),
        columns_text(topic.topic_schema),
    )


def with_details(topic: TopicInfo, seen: Details) -> dict[str, Any]:
    """The topic with what the owners of its segments say about their size and their readers."""
    shown_too = {"entries", "size_bytes", "first_position", "last_position", "max_read_position", "pinned_by", "rates"}
    found: dict[str, Any] = as_json(topic)
    for segment in found["segments"]:
        if (detail := seen.get(segment["segment"])) is not None:
            segment |= detail.model_dump(include=shown_too, exclude_none=True)
    return found


def show_topic(
    session: ServiceOptions,
    topic: TopicInfo,
    seen: Details | None = None,
    waiting: Sequence[Blocker] = (),
    holds: Sequence[ReadHoldInfo] = (),
) -> None:
    if session.json:
        print_json(topic)
        return
    fields: dict[str, Any] = {"topic": topic.name, "schema": columns_text(topic.topic_schema)}
    if (alone := topic.exclusive_producer) is not None:
        fields["exclusive_producer"] = f"{alone.producer or 'without a name'}, until {when(alone.until_ms)} or longer"
    if holds:
        fields["read_holds"] = "; ".join(map(_hold_text, holds))
    print_fields(fields)
    print()
    columns = ("SEGMENT", "RANGE", "STATE", "OWNER", "CHILDREN")
    rows = [(s.segment, f"{s.range[0]}-{s.range[1]}", s.state, s.owner, ",".join(s.children)) for s in topic.segments]
    if seen is None:
        print_rows(columns, rows)
        return
    sizes = [_size_cells(seen.get(each.segment)) for each in topic.segments]
    print_rows(
        (*columns, "ENTRIES", "SIZE", "IN", "OUT", "BLOCKED_BY"),
        [(*row, *size) for row, size in zip(rows, sizes, strict=True)],
    )
    print_blockers(waiting)


def _hold_text(hold: ReadHoldInfo) -> str:
    by = f" by {hold.principal}" if hold.principal is not None else ""
    return f"{hold.hold_id}{by}, of revision {hold.revision}, until {when(hold.until_ms)} or longer"


def _size_cells(detail: SegmentDetail | None) -> tuple[Any, ...]:
    if detail is None:
        return (None,) * 5
    rates = detail.rates
    speeds = (f"{rates.messages_in:.1f}/s", f"{rates.messages_out:.1f}/s") if rates is not None else (None, None)
    return detail.entries, size_text(detail.size_bytes), *speeds, detail.pinned_by and short_id(detail.pinned_by)


def parsed_values(texts: Iterable[str], plain: bool) -> list[Any]:
    values = []
    for number, text in enumerate(texts, start=1):
        try:
            values.append(text if plain else json.loads(text))
        except ValueError as error:
            raise CliError(f"value {number} is not JSON: {error}. Quote it as JSON, or send it with --text.") from error
    return values
