"""Goal: what a policy drops is dropped, with its bytes; what the policy, a subscription or a transaction needs stays.

Method: a broker in this process, on both storages, with a clock that the test sets; a pass is `reconcile`. What may go
by age and size is a pure function.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from metastore.errors import OutcomeUnknown
from metastore.txn import paths
from metastore.txn.records.segments import LedgerRecord, SegmentRecord
from metatxn.wire.policies import PolicySettings, effective
from participants.segment.retention import droppable
from tests.participants.segment.faulty_store import Fault, puts
from tests.participants.segment.world import World, committed
from tests.participants.subscription.consuming import TOPIC, Consuming

HOUR_MS = 3_600_000
POLICY = {"retention_ms": HOUR_MS, "roll_ms": 1_000}


class Retaining(Consuming):
    """A topic of one segment."""

    @classmethod
    async def start(cls, world: World, segments: int = 1) -> Retaining:
        found = await super().start(world, segments)
        assert isinstance(found, cls)
        return found

    def at_hour(self, hour: float) -> None:
        self.world._time_ms = count(int(hour * HOUR_MS) + 10_000)

    async def set(self, **settings: Any) -> None:
        await self.asked("PATCH", "", settings)

    async def passes(self, times: int = 2) -> None:
        """A pass closes the open ledger, the next one may drop it."""
        for _ in range(times):
            await self.process.broker.reconcile()
            await self.idle()

    async def ledger_at(self, hour: float, *values: str) -> list[str]:
        """Publish one ledger, and close it."""
        self.at_hour(hour)
        ids = await self.publish_each(*values)
        self.at_hour(hour + 0.01)
        await self.passes(1)
        return ids

    async def left(self) -> list[str]:
        return [text.partition('"value":"')[2].partition('"')[0] for text in await committed(await self.segment())]

    async def record(self) -> SegmentRecord:
        stored = await self.world.store.inner.get(paths.segment(self.segments[0]))
        assert stored is not None
        return SegmentRecord.decode(stored.value)


@pytest.fixture
async def topic(world: World) -> AsyncIterator[Retaining]:
    found = await Retaining.start(world)
    yield found
    await found.process.stop()


async def test_old_ledgers_go_with_their_bytes_and_readers_are_told(topic: Retaining) -> None:
    await topic.set(**POLICY)
    old = await topic.ledger_at(0, "a", "b")
    await topic.ledger_at(0.8, "c")
    assert await topic.left() == ["a", "b", "c"]
    before = (await topic.segment()).ledgers.start
    topic.at_hour(1.5)
    await topic.passes()
    assert old and await topic.left() == ["c"]
    record = await topic.record()
    assert record.trimmed == () and topic.process.device.ledgers() == {each.id for each in record.ledgers}
    answer = await topic.process.http.get(
        f"/v1/segments/{topic.segments[0].replace('/', '%2F')}/entries?after={before}"
    )
    assert answer.json()["code"] == "POSITION_TRIMMED"
    assert topic.process.metrics.retention_ledgers._value.get() == 1
    assert topic.process.metrics.retention_bytes._value.get() > 0
    topic.at_hour(3)
    await topic.passes()
    assert await topic.left() == []
    answer = await topic.process.http.get(f"/v1/segments/{topic.segments[0].replace('/', '%2F')}/entries")
    assert answer.status_code == 200, "a reader may begin where everything was dropped"
    assert await topic.publish("d") and await topic.left() == ["d"]


async def test_without_a_policy_nothing_rolls_and_nothing_goes(topic: Retaining) -> None:
    await topic.ledger_at(0, "a")
    topic.at_hour(1000)
    await topic.passes()
    assert await topic.left() == ["a"] and len((await topic.record()).ledgers) == 1


async def test_what_a_subscription_has_not_acknowledged_stays_unless_retention_is_hard(topic: Retaining) -> None:
    await topic.set(**POLICY)
    await topic.subscribe("s")
    ids = [*await topic.ledger_at(0, "a", "b"), *await topic.ledger_at(0.1, "c")]
    await topic.receive("s")
    topic.at_hour(5)
    await topic.passes()
    assert await topic.left() == ["a", "b", "c"]
    await topic.acked(ids[1:2], name="s")
    await topic.passes()
    assert await topic.left() == ["a", "b", "c"], "one message of the ledger is not acknowledged"
    txn = await topic.world.begin()
    await topic.acked(ids[:1], txn, name="s")
    await topic.passes()
    assert await topic.left() == ["a", "b", "c"], "that may yet be aborted"
    await topic.commit(txn)
    await topic.passes()
    assert await topic.left() == ["c"]
    await topic.set(retention="hard")
    await topic.passes()
    assert await topic.left() == []
    await topic.publish("d")
    assert await topic.values("s", "other") == ["d"]


async def test_a_subscription_that_is_not_open_here_yet_counts(topic: Retaining) -> None:
    await topic.set(**POLICY)
    await topic.ledger_at(0, "a")
    await topic.subscribe("s")
    segment = await topic.segment()
    assert segment.attached is not None
    segment.attached._open.clear()  # type: ignore[attr-defined]
    topic.at_hour(5)
    await topic.passes()
    assert await topic.left() == ["a"]


async def test_nothing_goes_beyond_the_first_entry_of_an_open_transaction(topic: Retaining) -> None:
    await topic.set(**POLICY)
    await topic.ledger_at(0, "a")
    txn = await topic.world.begin()
    await topic.publish("b", txn_id=txn)
    await topic.ledger_at(0.1, "c")
    topic.at_hour(5)
    await topic.passes()
    assert (await topic.record()).first_position != "0:-1", "what is before it has gone"
    await topic.commit(txn)
    assert await topic.left() == ["b", "c"]
    await topic.passes()
    assert await topic.left() == []


@pytest.mark.parametrize("change", ["policy", "subscription", "namespace"])
async def test_what_begins_to_keep_messages_in_the_middle_of_a_pass_keeps_them(topic: Retaining, change: str) -> None:
    """The trim is held back just before its apply."""
    await topic.set(**POLICY)
    await topic.ledger_at(0, "a")
    topic.at_hour(5)
    held = topic.world.store.fault(Fault(puts("/segment/"), hold_before=True))
    passing = asyncio.create_task(topic.process.broker.reconcile())
    await held.reached.wait()
    if change == "policy":
        await topic.set(retention_ms=-1)
    elif change == "subscription":
        await topic.subscribe("s")
    else:
        path = "/v1/policies/namespaces/public/default"
        await topic.process.http.patch(path, json={"retention": "acknowledged"})
    held.go.set()
    await passing
    await topic.idle()
    assert await topic.left() == ["a"]
    await topic.passes()
    assert await topic.left() == (["a"] if change != "namespace" else [])


@pytest.mark.parametrize("roll_ms", [1_000, None], ids=["that still closes ledgers", "that asks for nothing"])
async def test_a_trim_of_unknown_outcome_hides_nothing_that_a_later_policy_keeps(
    topic: Retaining, roll_ms: int | None
) -> None:
    """Found by the simulation: memory had given it up, and nobody looked at the segment any more."""
    await topic.set(**POLICY)
    await topic.ledger_at(0, "a")
    topic.at_hour(5)
    topic.world.store.fault(Fault(puts("/segment/"), before=OutcomeUnknown("who knows")))
    await topic.process.broker.reconcile()
    await topic.set(retention_ms=-1, roll_ms=roll_ms)
    await topic.passes(1)
    assert await topic.left() == ["a"]


async def test_a_trim_of_unknown_outcome_is_not_carried_out_against_a_later_policy(topic: Retaining) -> None:
    await topic.set(**POLICY)
    await topic.ledger_at(0, "a")
    topic.at_hour(5)
    topic.world.store.fault(Fault(puts("/segment/"), before=OutcomeUnknown("who knows")))
    await topic.process.broker.reconcile()
    await topic.set(retention_ms=-1, retention_bytes=1 << 40)
    await topic.passes(1)
    assert await topic.left() == ["a"]


async def test_a_trim_whose_answer_was_lost_leaves_no_bytes_behind(topic: Retaining) -> None:
    """Found by the simulation: as it had taken effect, nothing more was due, and no pass did what follows a trim."""
    await topic.set(**POLICY)
    await topic.ledger_at(0, "a")
    topic.at_hour(5)
    topic.world.store.fault(Fault(puts("/segment/"), after=OutcomeUnknown("who knows")))
    await topic.passes(1)
    record = await topic.record()
    assert record.trimmed == () and topic.process.device.ledgers() == {each.id for each in record.ledgers}
    assert (await topic.segment()).record.ledgers == record.ledgers and await topic.left() == []


async def test_what_an_earlier_version_has_sealed_is_measured_first(topic: Retaining) -> None:
    await topic.set(roll_ms=1_000)
    await topic.ledger_at(0, "a")
    await topic.ledger_at(0.5, "b")
    known = await topic.record()
    bare = tuple(each.model_copy(update={"bytes": None, "last_ms": None}) for each in known.ledgers)
    stored = await topic.world.store.get(paths.segment(topic.segments[0]))
    assert stored is not None
    await topic.world.store.apply(
        topic.world.store.batch().replace(stored, known.model_copy(update={"ledgers": bare}).encode())
    )
    (await topic.segment()).record = known.model_copy(update={"ledgers": bare})
    await topic.set(retention_ms=HOUR_MS)
    await topic.passes()
    assert await topic.left() == ["a", "b"]
    assert (await topic.record()).ledgers == known.ledgers
    topic.at_hour(1.2)
    await topic.passes()
    assert await topic.left() == ["b"]


async def test_a_small_bound_closes_ledgers_and_the_latest_bytes_stay(topic: Retaining) -> None:
    await topic.set(retention_bytes=300)
    sent = [str(number) for number in range(12)]
    for value in sent:
        await topic.publish(value)
        await topic.passes(1)
    await topic.passes()
    left, sizes = await topic.left(), [each.bytes or 0 for each in (await topic.record()).ledgers]
    assert len(left) < len(sent) and left == sent[-len(left) :]
    assert sum(sizes) >= 300 > sum(sizes[1:])


# -- the pure part -----------------------------------------------------------------------------------------------------


def segment_of(*ledgers: tuple[int, int, int]) -> SegmentRecord:
    """Ledgers by number, bytes and latest publish time; behind them an open one."""
    sealed = tuple(LedgerRecord(id=n, storage="s", entries=1, bytes=size, last_ms=at) for n, size, at in ledgers)
    return SegmentRecord(
        topic=TOPIC,
        range=(0, 1),
        storage="s",
        ledgers=(*sealed, LedgerRecord(id=99, storage="s")),
    )


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (PolicySettings(), {}),
        (PolicySettings(retention_ms=50), {"x": 1}),
        (PolicySettings(retention_ms=49), {"x": 2, "y": 5}),
        (PolicySettings(retention_ms=-1, retention_bytes=-1), {}),
        (PolicySettings(retention_bytes=100), {}),
        (PolicySettings(retention_bytes=61), {"x": 1}),
        (PolicySettings(retention_bytes=60), {"x": 2}),
        (PolicySettings(retention_bytes=0), {"x": 3, "y": 6}),
        (PolicySettings(retention_bytes=61, retention_ms=0), {"x": 3, "y": 6}),
    ],
)
def test_the_oldest_ledgers_of_all_segments_go_first(policy: PolicySettings, expected: dict[str, int]) -> None:
    records = {
        "x": segment_of((1, 30, 49), (2, 10, 50), (3, 40, 99)),
        "y": segment_of((5, 10, 50), (6, 10, 70)),
    }
    found = droppable(effective(("topic", policy)), records, now_ms=100)
    assert {segment: ledger.id for segment, ledger in found.items()} == expected


def test_a_ledger_is_no_older_than_the_one_before_it() -> None:
    records = {"x": segment_of((1, 10, 90), (2, 10, 10))}
    assert droppable(effective(("topic", PolicySettings(retention_ms=50))), records, now_ms=100) == {}


def test_a_ledger_of_unknown_age_or_size_stays() -> None:
    bare = SegmentRecord(
        topic=TOPIC,
        range=(0, 1),
        storage="s",
        ledgers=(LedgerRecord(id=1, storage="s", entries=1), LedgerRecord(id=2, storage="s")),
    )
    assert droppable(effective(("topic", PolicySettings(retention_ms=0, retention_bytes=0))), {"x": bare}, 100) == {}
