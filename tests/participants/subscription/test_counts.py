"""Goal: what is shown of a subscription is so: messages that are not acknowledged, those that somebody was given, those
that are pending in which transaction; whatever happens, and without reading the backlog for it each time.

Method: the scenarios F to H one by one, with the counts after every step; then random steps, after each of which every
message is looked at one by one; then the reads are counted. Scenarios 47-60, 62-65, 67, 68.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from metastore.errors import OutcomeUnknown, StoreUnavailable
from metatxn.wire.ids import TxnId
from metatxn.wire.names import MessageId
from participants.messages.payloads import message_count
from participants.segment.trimming import trim
from participants.subscription.places import START, Place, Span, Start
from participants.subscription.ranges import RangeSet
from participants.subscription.segment_subscription import SegmentSubscription
from participants.subscription.segment_subscriptions import subscriptions_of
from tests.extent import usually
from tests.participants.segment.faulty_store import INTENT, Fault
from tests.participants.subscription.consuming import Consuming

Shown = tuple[int, int, dict[TxnId, int]]


async def counts(consuming: Consuming, name: str = "s") -> Shown:
    """Backlog, unacked, pending."""
    shown = await consuming.shown(name)
    pending = {TxnId.parse(txn_id): number for txn_id, number in shown["pending_acks"].items()}
    return shown["backlog"], shown["unacked"], pending


async def given(consuming: Consuming, entries: Sequence[int], **how: Any) -> list[str]:
    """A subscription all of whose messages were given to a consumer: this many of each entry."""
    await consuming.subscribe(**how)
    ids = [each for number in entries for each in await consuming.publish(*range(number))]
    assert len(await consuming.receive()) == len(ids)
    assert await counts(consuming) == (len(ids), len(ids), {})
    return ids


async def begun(consuming: Consuming, number: int) -> list[TxnId]:
    return [await consuming.world.begin() for _ in range(number)]


batch = pytest.mark.parametrize("entries", [(1,) * 6, (6,), (2, 4)], ids=["batch off", "one batch", "two batches"])


@batch
async def test_47_48_49_pending_is_not_unacked_and_what_returns_is(
    consuming: Consuming, entries: tuple[int, ...]
) -> None:
    ids = await given(consuming, entries)
    one, two = await begun(consuming, 2)
    await consuming.acked(ids[:4], one)
    assert await counts(consuming) == (6, 2, {one: 4})
    assert await consuming.redeliver() == 2
    assert await counts(consuming) == (6, 2, {one: 4}), "whether somebody holds it or it waits"
    await consuming.abort(one)
    assert await counts(consuming) == (6, 6, {})
    assert len(await consuming.receive()) == 6
    assert await counts(consuming) == (6, 6, {})
    await consuming.acked(ids, two)
    assert await counts(consuming) == (6, 0, {two: 6})
    await consuming.commit(two)
    assert await counts(consuming) == (0, 0, {})


@batch
async def test_50_51_a_conflict_changes_no_count(consuming: Consuming, entries: tuple[int, ...]) -> None:
    ids = await given(consuming, entries)
    one, two, three = await begun(consuming, 3)
    await consuming.acked(ids[:2], one)
    assert await consuming.conflicts(ids[1:4], two)
    assert await counts(consuming) == (6, 4, {one: 2})
    await consuming.acked(ids[3:4], two)
    await consuming.commit(one)
    assert await consuming.conflicts(ids[:1], three)
    assert await counts(consuming) == (4, 3, {two: 1})
    await consuming.acked(ids[4:5])
    assert await consuming.conflicts(ids[4:6], three)
    assert await counts(consuming) == (3, 2, {two: 1})


async def test_52_53_each_subscription_has_its_own_counts(consuming: Consuming) -> None:
    await consuming.subscribe("in")
    await consuming.subscribe("other")
    ids = await consuming.publish("a", "b")
    await consuming.receive("in")
    (txn,) = await begun(consuming, 1)
    await consuming.acked(ids[:1], txn, name="in")
    await consuming.publish("made of a", txn_id=txn)
    assert await counts(consuming, "in") == (2, 1, {txn: 1}), "what is not visible is in no backlog"
    assert await counts(consuming, "other") == (2, 0, {})
    await consuming.commit(txn)
    assert await counts(consuming, "in") == (2, 1, {})
    assert await counts(consuming, "other") == (3, 0, {})


@batch
async def test_54_plain_and_transactional_acks_mixed(consuming: Consuming, entries: tuple[int, ...]) -> None:
    ids = await given(consuming, entries)
    (txn,) = await begun(consuming, 1)
    await consuming.acked(ids[0:5:2], txn)
    await consuming.acked(ids[1:5:2])
    assert await counts(consuming) == (4, 1, {txn: 3})
    await consuming.commit(txn)
    assert await counts(consuming) == (1, 1, {})


@batch
async def test_55_56_57_an_abort_restores_the_unacked_count_with_a_consumer_or_without(
    consuming: Consuming, entries: tuple[int, ...]
) -> None:
    ids = await given(consuming, entries)
    one, two = await begun(consuming, 2)
    await consuming.acked(ids[1:3], one)
    await consuming.acked(ids[4:], two)
    await consuming.abort(one)
    assert await counts(consuming) == (6, 4, {two: 2})
    await consuming.asked("DELETE", "/subscriptions/s/consumers/c")
    assert await counts(consuming) == (6, 4, {two: 2})
    await consuming.abort(two)
    assert await counts(consuming) == (6, 6, {})
    assert len(await consuming.receive(consumer="next")) == 6
    assert await counts(consuming) == (6, 6, {})


async def test_58_a_refused_ack_changes_nothing_and_an_unknown_one_is_pending(consuming: Consuming) -> None:
    ids = await given(consuming, (3,))
    (txn,) = await begun(consuming, 1)
    consuming.world.store.fault(Fault(INTENT, before=StoreUnavailable("gone")))
    assert (await consuming.ack(ids[:1], txn)).status_code == 503
    assert await counts(consuming) == (3, 3, {})
    consuming.world.store.fault(Fault(INTENT, after=OutcomeUnknown("no answer")))
    assert (await consuming.ack(ids[:1], txn)).status_code == 504
    assert await counts(consuming) == (3, 2, {txn: 1})
    await consuming.commit(txn)
    assert await counts(consuming) == (2, 2, {})


@batch
async def test_59_60_80_after_a_restart_nobody_was_given_anything_and_what_is_pending_is(
    consuming: Consuming, entries: tuple[int, ...]
) -> None:
    """Redelivery counts begin anew, see docs/brokers.md."""
    ids = await given(consuming, entries)
    one, two = await begun(consuming, 2)
    await consuming.acked(ids[:3], one)
    await consuming.acked(ids[3:4])
    await consuming.acked(ids[4:5], two)
    await consuming.crash()
    assert await counts(consuming) == (5, 0, {one: 3, two: 1})
    assert [message["redelivery_count"] for message in await consuming.receive()] == [0]
    assert await counts(consuming) == (5, 1, {one: 3, two: 1})
    await consuming.abort(one)
    await consuming.commit(two)
    assert await counts(consuming) == (4, 4, {})
    assert [message["redelivery_count"] for message in await consuming.receive()] == [1, 1, 1]


@batch
async def test_62_63_65_cumulative_acks(consuming: Consuming, entries: tuple[int, ...]) -> None:
    ids = await given(consuming, entries, kind="failover")
    one, two, three = await begun(consuming, 3)
    for step in (1, 3, 4):
        await consuming.acked(ids[step : step + 1], one, kind="cumulative")
        assert await counts(consuming) == (6, 5 - step, {one: step + 1})
    assert await consuming.conflicts(ids[5:], two, kind="cumulative")
    assert await counts(consuming) == (6, 1, {one: 5})
    await consuming.abort(one)
    assert await counts(consuming) == (6, 6, {})
    await consuming.redeliver()
    await consuming.acked(ids[5:], three, kind="cumulative")
    assert await counts(consuming) == (6, 0, {three: 6})
    await consuming.commit(three)
    assert await counts(consuming) == (0, 0, {})


@batch
async def test_64_below_the_mark_delete_and_over_what_was_acknowledged_singly(
    consuming: Consuming, entries: tuple[int, ...]
) -> None:
    ids = await given(consuming, entries, kind="failover")
    one, two = await begun(consuming, 2)
    await consuming.acked(ids[:2], kind="individual")
    assert await consuming.conflicts(ids[1:2], one, kind="cumulative")
    await consuming.acked(ids[3:4])
    await consuming.acked(ids[4:5], one, kind="cumulative")
    assert await counts(consuming) == (3, 1, {one: 2}), "what is acknowledged is not pending"
    await consuming.acked(ids[5:], two)
    assert await counts(consuming) == (3, 0, {one: 2, two: 1})
    await consuming.abort(one)
    assert await counts(consuming) == (3, 2, {two: 1})


async def test_67_68_messages_of_one_batch(consuming: Consuming) -> None:
    ids = await given(consuming, (4,))
    one, two, three = await begun(consuming, 3)
    await consuming.acked(ids[:1], one)
    await consuming.acked(ids[1:3], two)
    assert await counts(consuming) == (4, 1, {one: 1, two: 2})
    await consuming.commit(one)
    await consuming.abort(two)
    assert await counts(consuming) == (3, 3, {})
    assert await consuming.conflicts(ids[:1], three)
    await consuming.acked(ids[1:2], three)
    assert await counts(consuming) == (3, 2, {three: 1})


async def test_what_the_commit_does_not_count_returns(consuming: Consuming) -> None:
    """DESIGN §5.12."""
    ids = await given(consuming, (2, 2))
    (txn,) = await begun(consuming, 1)
    await consuming.acked(ids[:2], txn, writer="counts")
    await consuming.acked(ids[1:4], txn, writer="void")
    assert await counts(consuming) == (4, 0, {txn: 4})
    await consuming.commit(txn, writers=["counts"])
    assert await counts(consuming) == (2, 2, {})


async def test_what_was_delivered_more_than_once_is_counted_until_it_is_acknowledged(consuming: Consuming) -> None:
    """Whether somebody holds it, nobody, or a transaction has acknowledged it."""
    ids = await given(consuming, (3,))
    (txn,) = await begun(consuming, 1)
    again = []

    async def look() -> None:
        again.append((await consuming.shown())["redelivered"])

    await consuming.redeliver()
    await look()
    await consuming.receive(limit=2)
    await look()
    await consuming.acked(ids[:1], txn)
    await look()
    await consuming.acked(ids[1:2])
    await look()
    await consuming.commit(txn)
    await look()
    assert again == [0, 2, 2, 1, 0]


# -- against looking at every message ---------------------------------------------------------------------------------


async def looked_at(part: SegmentSubscription) -> Shown:
    """Message by message, from the beginning."""
    backlog, unacked, pending = 0, 0, Counter[TxnId]()
    at, end = part.segment.ledgers.start, False
    while not end:
        page = await part.segment.reader.read_committed(at, 1 << 20)
        for frame in page.frames:
            for index in range(message_count(frame)):
                place = Place.at(frame.position)._replace(message=index)
                if place in part.cursor:
                    continue
                backlog += 1
                if (holder := part.pending.holder(place)) is not None:
                    pending[holder] += 1
                elif part.deliveries.get(place) is not None:
                    unacked += 1
        at, end = page.next, page.end
    return backlog, unacked, dict(pending)


async def looked_around(part: SegmentSubscription, start: Start) -> tuple[int, int, int]:
    """What would be delivered from there on, what of that is acknowledged, and what else is not, message by message."""
    messages, again, skipped = 0, 0, 0
    passed = RangeSet(start.acked)
    at, end = part.segment.ledgers.start, False
    while not end:
        page = await part.segment.reader.read_committed(at, 1 << 20)
        for frame in page.frames:
            for index in range(message_count(frame)):
                each = Place.at(frame.position)._replace(message=index)
                given = each >= start.place and each not in passed
                messages += given
                again += given and each in part.cursor
                skipped += not given and each not in part.cursor
        at, end = page.next, page.end
    return messages, again, skipped


class Walk:
    """Random steps of everything that can happen to a subscription."""

    def __init__(self, consuming: Consuming, seed: int) -> None:
        self.consuming = consuming
        self.choose = random.Random(seed)
        self.ids: list[str] = []
        self.open: list[TxnId] = []

    async def step(self) -> None:
        names = ["publish"] * 3 + ["publish_within"] * 2 + ["receive"] * 4 + ["acknowledge"] * 6
        names += ["end"] * 2 + ["redeliver", "leave", "trim", "crash"]
        await getattr(self, self.choose.choice(names))()

    async def a_transaction(self) -> TxnId:
        if not self.open or self.choose.random() < 0.3:
            self.open.append(await self.consuming.world.begin())
        return self.choose.choice(self.open)

    def a_place(self) -> Place:
        """Anywhere, also where nothing can be read any more or yet."""
        some = self.choose.choice(self.ids) if self.ids else None
        return START if some is None else Place.at(MessageId.parse(some).position)

    def a_start(self) -> Start:
        """At such a place, with what has passed behind it."""
        first, *others = sorted(self.a_place() for _ in range(self.choose.choice((1, 1, 3, 5))))
        return Start(first, tuple(Span(a, b) for a, b in zip(others[::2], others[1::2], strict=True) if a < b))

    async def publish(self) -> None:
        self.ids += await self.consuming.publish(*range(self.choose.randint(1, 5)))

    async def publish_within(self) -> None:
        txn = await self.a_transaction()
        self.ids += await self.consuming.publish(*range(self.choose.randint(1, 5)), txn_id=txn)

    async def receive(self) -> None:
        await self.consuming.receive(consumer=self.choose.choice("ab"), limit=self.choose.randint(1, 12))

    async def acknowledge(self) -> None:
        """Of anything, given or not; what conflicts, cannot be read, or does not fit the subscription is refused."""
        if self.ids:
            txn = await self.a_transaction() if self.choose.random() < 0.6 else None
            cumulative = self.choose.random() < 0.15
            some = self.choose.sample(self.ids, 1 if cumulative else min(len(self.ids), self.choose.randint(1, 6)))
            await self.consuming.ack(some, txn, kind="cumulative" if cumulative else "individual")

    async def end(self) -> None:
        if self.open:
            txn = self.open.pop(self.choose.randrange(len(self.open)))
            await (self.consuming.commit(txn) if self.choose.random() < 0.5 else self.consuming.abort(txn))

    async def redeliver(self) -> None:
        await self.consuming.redeliver()

    async def leave(self) -> None:
        await self.consuming.asked("DELETE", "/subscriptions/s/consumers/a")

    async def trim(self) -> None:
        segment = await self.consuming.segment()
        positions = [MessageId.parse(each).position for each in self.ids[: len(self.ids) // 4]]
        readable = [each for each in positions if each <= segment.buffer.max_read_position]
        if readable:
            await trim(segment, self.consuming.world.store, self.consuming.process.storage, readable[-1])

    async def crash(self) -> None:
        await self.consuming.crash()
        await self.consuming.idle()


@pytest.mark.parametrize("seed", usually(range(3), range(8)))
async def test_the_counts_are_those_of_looking_at_every_message(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """With pages of a few entries and few checkpoints, so that they are passed, thinned, trimmed and extended."""
    monkeypatch.setattr("participants.subscription.message_counts.PAGE_BYTES", 300)
    monkeypatch.setattr("participants.subscription.message_counts.MAX_CHECKPOINTS", 6)
    await consuming.subscribe(kind=("failover", "shared")[seed % 2])
    walk = Walk(consuming, seed)
    for number in range(60):
        await walk.step()
        (part,) = subscriptions_of(await consuming.segment())
        shown = await counts(consuming)
        assert shown == await looked_at(part), f"after step {number}"
        again = sum(delivery.times > 1 for _, delivery in part.deliveries.items())
        assert (await consuming.shown())["redelivered"] == again, f"after step {number}"
        start = walk.a_start()
        moved = await part.dispatch.moved(start)
        assert (moved.messages, moved.again, moved.skipped) == await looked_around(part, start), f"after step {number}"


async def test_a_look_reads_the_backlog_once_and_then_only_what_is_new(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded, too: the page ends that are remembered are."""
    monkeypatch.setattr("participants.subscription.message_counts.PAGE_BYTES", 1000)
    monkeypatch.setattr("participants.subscription.message_counts.MAX_CHECKPOINTS", 16)
    await consuming.subscribe("s")
    await consuming.subscribe("t")
    for start in range(0, 1000, 5):
        await consuming.publish(*range(start, start + 5))
    segment = await consuming.segment()
    reads, read = 0, subscriptions_of(segment)._message_counts[False]._read

    async def counted(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read(*arguments)

    monkeypatch.setattr(subscriptions_of(segment)._message_counts[False], "_read", counted)
    assert await counts(consuming) == (1000, 0, {})
    assert reads > 20, "or the pages are too large for this test"
    pages, reads = reads, 0
    for number in range(10):
        await consuming.publish(number)
        assert await counts(consuming) == (1001 + number, 0, {})
    assert await counts(consuming, "t") == (1010, 0, {}), "what one subscription had counted serves the others"
    assert reads <= 3 * 11 < pages * 11
    assert len(subscriptions_of(segment)._message_counts[False]._sums) <= 17
    while await consuming.receive():
        pass
    reads = 0
    assert await counts(consuming) == (1010, 1010, {})
    assert reads == 0, "what was given is known"
