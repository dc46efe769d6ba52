"""Every interrupted prefix of a story: the broker dies behind step 1, then behind step 2, …, until it dies no more.

    prepare ─▶ act, dying behind step k ─▶ a blank broker: act, as far as its client was not answered ─▶ end
                                                                                                         │
        as without a death: what readers see, the layout, subscriptions                              ◀───┤
        nothing left over: operations, ledgers, files, chunks, outcomes, what the store's laws forbid ◀──┤
        the same again after one more restart                                                         ◀──┘

A client remembers which of its requests were answered, and sends the others again, with the same sequences. So "no
acknowledged entry lost" and "none twice" both are "as without a death".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from metastore.check import StoreCheck
from metastore.txn import paths
from metastore.txn.records.operations import Outcome
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from metatxn.wire.names import BrowseToken
from metatxn.wire.position import Position
from participants.ledger.form import Form
from participants.ledger.storage import LedgerMissing
from tests.extent import usually
from tests.participants.prefixes.lives import Files, Life, Objects, Place
from tests.participants.prefixes.steps import Steps
from tests.participants.segment.world import World

PLACES: dict[str, Callable[[Path], Place]] = {
    "files": lambda directory: Files(directory / "data"),
    "objects": lambda _: Objects(),
}
MOST_STEPS = 1_000
TOPIC = "public/default/t"


@dataclass(slots=True)
class Client:
    """What outlives the broker: what was sent, what was answered, and the coordinator."""

    world: World
    answers: dict[str, Any] = field(default_factory=dict)
    txns: dict[str, TxnId] = field(default_factory=dict)

    async def once(self, name: str, request: Callable[[], Awaitable[Any]]) -> Any:
        """The answer to a request; it is sent again only by a client that has none."""
        if name not in self.answers:
            self.answers[name] = await request()
        return self.answers[name]

    async def begin(self, name: str) -> TxnId:
        if name not in self.txns:
            self.txns[name] = await self.world.begin()
        return self.txns[name]

    async def end(self, name: str, *, commit: bool) -> None:
        async def decide() -> None:
            await (self.world.commit(self.txns[name]) if commit else self.world.abort(self.txns[name]))

        await self.once(f"end {name}", decide)


class Story:
    """`act` is done again by the client of a broker that died, with the same `Client`.

    With `opening` the steps are those of a broker that starts, on what `prepare` has left, before `act`; with
    `stopping` those of one that stops, behind `act`, are counted, too.
    """

    opening = False
    stopping = False

    max_ledger_bytes: int | None = None
    subscriptions: tuple[str, ...] = ()
    """Whose counts are part of the picture."""
    topics: tuple[str, ...] = (TOPIC,)
    """Whose messages are, the first one's layout, too."""

    async def prepare(self, life: Life, client: Client) -> None:
        """Before the first step is counted."""

    async def between(self, client: Client) -> None:
        """While no broker lives, of an `opening` story."""

    async def act(self, life: Life, client: Client) -> None:
        """What the client wants done, by `client.once`."""

    async def perform(self, life: Life, client: Client) -> None:
        """`act`, and what goes on behind it."""
        await life.serving()
        await self.act(life, client)
        await life.quiet()

    async def end(self, life: Life, client: Client) -> None:
        """After the last step: end what is open."""
        for name in client.txns:
            await client.end(name, commit=False)


async def every_prefix(
    story: Callable[[], Story], place: str, directory: Path, *, answered: bool, elsewhere: bool = True
) -> int:
    """Answers how many steps are taken, or a few more. Raises what an interrupted prefix ends in, and the steps up to
    its death.

    Each prefix is tried in one of the four ways that there are, and in `make test-all` in all: with ledgers in both
    places, and with the last answer heard and lost. There are only two ways if the story is not told `elsewhere`.
    """
    expected = await _run(story(), place, directory / "whole", None, answered)
    ways = usually(4 if elsewhere else 2, 1)
    first = 1 + (2 * (place == "objects") + answered) % ways
    for last in range(first, MOST_STEPS, ways):
        steps = Steps()
        try:
            found = await _run(story(), place, directory / str(last), last, answered, steps)
            assert found == expected
        except BaseException as error:
            error.add_note(f"{place}, dead behind step {last}: {', '.join(steps.trace)}")
            raise
        if not steps.dead:
            assert last > 1, "the story takes no step"
            return last - 1
    raise AssertionError(f"more than {MOST_STEPS} steps")


async def _run(
    story: Story, place: str, directory: Path, last: int | None, answered: bool, steps: Steps | None = None
) -> Any:
    directory.mkdir()
    world = World(directory)
    if story.max_ledger_bytes is not None:
        world.max_ledger_bytes = story.max_ledger_bytes
    steps = steps or Steps()
    life = await Life.start(world, PLACES[place](directory), Steps() if story.opening else steps)
    client = Client(world)
    try:
        await story.prepare(life, client)
        await life.quiet()
        if story.opening:
            after = life.place.after_death()
            await life.end()
            await story.between(client)
            life = await Life.create(world, after, steps)
        steps.arm(last, answered=answered)
        await _until_dead(_lived(story, life, client), steps)
        steps.disarm()
        if steps.dead or story.stopping:
            life = await _next(life)
            await story.perform(life, client)
        await story.end(life, client)
        await _ended(life, client)
        picture = await _picture(life, story)
        life = await _next(life)
        await _ended(life, client)
        assert await _picture(life, story) == picture, "after one more restart"
        return picture
    finally:
        await life.end()
        await world.close()


async def _lived(story: Story, life: Life, client: Client) -> None:
    if story.opening:
        await life.begin()
    await story.perform(life, client)
    if story.stopping:
        await life.broker.stop()


async def _until_dead(work: Awaitable[None], steps: Steps) -> None:
    """What a dead broker still answers is nobody's business, errors above all."""
    died = steps.died.next()
    working = asyncio.ensure_future(work)
    await asyncio.wait([working, died], return_when=asyncio.FIRST_COMPLETED)
    if not steps.dead:
        await working
        return
    for _ in range(100):  # what it had been answered may reach its client
        await asyncio.sleep(0)
    working.cancel()
    with suppress(BaseException):
        await working


async def _next(life: Life) -> Life:
    place = life.place.after_death()
    await life.end()
    following = await Life.start(life.world, place, Steps())
    await following.serving()
    return following


async def _ended(life: Life, client: Client) -> None:
    await carried_out(life, client.txns.values())
    await _assert_nothing_left(life, client)


async def carried_out(life: Life, txn_ids: Iterable[TxnId]) -> None:
    """These decisions are, and everything else that goes on in the background is over."""
    await life.quiet()
    for txn_id in txn_ids:
        for segment in list(life.broker.served.values()):
            while (tracked := segment.buffer.get(txn_id)) is not None and not tracked.released:
                await segment.changed.wait()
    await life.quiet()
    await life.broker.reconcile()
    await life.quiet()


async def _assert_nothing_left(life: Life, client: Client) -> None:
    store = life.world.store.inner
    findings = [found async for found in StoreCheck(store).findings() if "leased" not in found.problem]
    assert not findings
    for name, txn_id in client.txns.items():
        assert not (await store.scan(paths.ops_of_transaction(txn_id))).records, f"operations of {name}"
    records = await life.records()
    expected: dict[str, set[int]] = {}
    for segment_id, segment in life.broker.served.items():
        record = records[paths.segment(segment_id).removeprefix(paths.SEGMENTS)]
        assert record.planned is None and record.trimmed == ()
        expected[life.directory_of(segment_id)] = {ledger.id for ledger in record.ledgers}
        unsealed = [ledger.id for ledger in record.ledgers if ledger.entries is None]
        assert unsealed == ([segment.ledgers.open.id] if segment.ledgers.open is not None else [])
        for ledger in record.ledgers:
            assert ledger.former is None
            assert await life.storage.forms(segment_id, ledger.id) == ([Form(*ledger.form)] if ledger.form else [])
            if ledger.form is not None and ledger.entries is not None:
                with pytest.raises(LedgerMissing):  # as it was sealed
                    await life.storage.open_sealed(segment_id, ledger.id, ledger.entries)
        chunks = {each.key for each in (await store.scan(paths.dedup_snapshots(segment_id))).records}
        snapshot = record.dedup
        named = snapshot.chunks if snapshot is not None else 0
        assert chunks == {paths.dedup_chunk(segment_id, snapshot.name, n) for n in range(named) if snapshot}
        trimmed = record.trimmed_up_to
        indexed = [ledger.last for ledger in takewhile(lambda each: each.hidden is not None, record.ledgers)]
        for outcome in (await store.scan(paths.outcomes(segment_id))).records:
            highest = Position.parse(Outcome.decode(outcome.value).highest)
            assert trimmed is None or highest > trimmed, "an outcome below the first readable position"
            assert all(end is None or highest > end for end in indexed), "an outcome of ledgers that are indexed"
        assert not list(segment.buffer.undecided())
    assert {name: found for name, found in life.place.ledgers().items() if found} == {
        name: found for name, found in expected.items() if found
    }
    assert set(life.place.ledgers()) <= set(expected), "a directory without a segment"
    assert life.place.drafts() == []


async def _picture(life: Life, story: Story) -> Any:
    """What a client can see."""
    stored = await life.broker.topics.get_or_tombstone(TOPIC)
    if stored is None or stored.topic.deleted:
        return "there is no such topic"
    described = await life.broker.topics.describe(stored.topic)
    layout = [(each.segment, each.range, each.state, each.children) for each in described.segments]
    values = [await _values(life, topic) for topic in story.topics]
    return layout, values, [await _counts(life, name) for name in story.subscriptions]


async def _values(life: Life, topic: str) -> dict[str | None, list[Any]]:
    """By key, in their order."""
    values: dict[str | None, list[Any]] = {}
    token: BrowseToken | None = None
    while (page := await life.messages.browse(topic, token, 1000, "read_committed", None, 0)).found:
        for message in page.in_json().messages:
            values.setdefault(message.key, []).append(message.value)
        token = page.next
    return values


async def _counts(life: Life, subscription: str) -> Any:
    try:
        served = await life.subscriptions.at_home(TOPIC, subscription)
    except errors.MetatxnError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        return "there is no such subscription"
    return [(each.segment, each.backlog, each.pending_acks) for each in await served.segments()]
