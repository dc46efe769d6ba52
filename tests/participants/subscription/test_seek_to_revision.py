"""Goal: a subscription that is moved to a revision gets exactly the transactions that a snapshot at this revision does
not show, whatever lies between what, and loses nothing that is outside of transactions and came later.

Method: random interleavings of transactions on two segments, with crashes; each revision is compared with the snapshot.
Several brokers: `test_spread`. DESIGN §5.10.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from metastore.txn import paths
from metastore.txn.records.transactions import GcHorizon
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.segment.reading import Run
from participants.subscription.places import START, Place, Span, Start
from participants.topic.cut import PassedEntries
from tests.participants.subscription.consuming import Consuming
from tests.participants.subscription.test_seek import seek


def cut_of(entries: str) -> str:
    """What is passed (`|`) of entries that are outside of transactions (`p`), decided (`d`) or undecided (`u`)."""
    cut = PassedEntries()
    decided = {"p": None, "d": True, "u": False}
    positions = [Position(1 + number // 3, number % 3) for number in range(len(entries))]  # three in each ledger
    for kind, position in zip(entries, positions, strict=True):
        cut.add(Run(position, position, decided[kind]))
    place, acked = cut.start()
    spans = [Span(START, place), *acked]
    assert all(span.start > place for span in acked)
    passed = [any(span.start <= Place.at(position) < span.end for span in spans) for position in positions]
    return "".join("|" if each else "." for each in passed)


@pytest.mark.parametrize(
    ("entries", "passed"),
    [
        ("ppp", "..."),
        ("ddd", "|||"),
        ("uuu", "..."),
        ("pdp", "||."),
        ("pudp", "|.|."),
        ("upup", "...."),
        ("dpupdup", "||.||.."),
        ("pdpupdup", "|||.||.."),
        ("dudupupd", "|.|.|.||"),
    ],
)
def test_what_is_passed(entries: str, passed: str) -> None:
    assert cut_of(entries) == passed


def test_a_cut_has_no_range_without_an_entry() -> None:
    cut = PassedEntries()
    for number in range(1, 9):
        cut.add(Run(Position(number, 0), Position(number, 5), number % 2 == 0))
    assert [span.start.ledger for span in cut.start().acked] == [1, 3, 5, 7]
    assert PassedEntries().start() == Start(START)


async def shown_at(consuming: Consuming, revision: int) -> list[Any]:
    page = await consuming.asked("GET", f"/messages?isolation=snapshot&revision={revision}&max=1000")
    return [message["value"] for message in page["messages"]]


async def previewed(consuming: Consuming, revision: int) -> tuple[int, ...]:
    """Counted at once, and page by page: that never tells more than there is, and comes to the same in the end."""
    place = {"revision": revision}
    told = await consuming.asked("POST", "/subscriptions/s/seek/preview", place)
    assert told["complete"]
    least, complete = (0, 0, 0), False
    while not complete:
        part = await consuming.asked("POST", "/subscriptions/s/seek/preview", place | {"for_ms": 0})
        before, least, complete = least, numbers(part), part["complete"]
        assert all(a <= b <= c for a, b, c in zip(before, least, numbers(told), strict=True)), (before, least, told)
    assert part == told
    return least


def numbers(told: Any) -> tuple[int, int, int]:
    messages, again, skipped = (sum(each[name] for each in told["segments"]) for name in NUMBERS)
    return messages, again, skipped


NUMBERS = ("messages", "again", "skipped")


@pytest.mark.parametrize("seed", range(3))
async def test_snapshot_and_subscription_have_every_transaction_once(
    consuming: Consuming, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices, world = random.Random(seed), consuming.world
    monkeypatch.setattr("participants.segment.reading.READ_BYTES", choices.choice((1, 500, 1 << 20)))
    await consuming.subscribe(kind=choices.choice(("shared", "key_shared", "failover")))
    open_ones: dict[TxnId, list[int]] = {}
    decided: dict[int, tuple[int, bool]] = {}
    outside: list[int] = []
    for value in range(60):
        while len(open_ones) < 4:
            open_ones[await world.begin()] = []
        txn_id = choices.choice([*open_ones, None])
        await consuming.publish(value, txn_id=txn_id)
        (open_ones[txn_id] if txn_id else outside).append(value)
        if choices.random() < 0.3:
            txn_id, commits = choices.choice([*open_ones]), choices.random() < 0.7
            revision = await (world.commit(txn_id) if commits else world.abort(txn_id))
            decided.update(dict.fromkeys(open_ones.pop(txn_id), (revision, commits)))
        if value == 30:
            await consuming.crash()
    for revision in choices.sample(sorted({revision for revision, _ in decided.values()}), 6):
        await previewed(consuming, revision)
        await seek(consuming, revision=revision, force=True)
        if choices.random() < 0.5:
            await consuming.crash()
        shown, found = await shown_at(consuming, revision), await consuming.values()
        while open_ones:
            txn_id, values = open_ones.popitem()
            decided.update(dict.fromkeys(values, (await world.commit(txn_id), True)))
        passed = {value for value, (at, _) in decided.items() if at <= revision}
        assert {*shown} - {*outside} == {value for value in passed if decided[value][1]}
        expected = [value for value, (at, commits) in decided.items() if at > revision and commits]
        expected += [value for value in outside if value > max(passed)]
        while len(found) < len(expected) and (more := await consuming.values(wait_ms=5_000)):
            found += more
        assert sorted(found + await consuming.values(wait_ms=1)) == sorted(expected)
        assert await previewed(consuming, revision) == (len(expected), 0, 0), "it is there already"
    assert await consuming.findings() == []


async def test_what_is_passed_behind_an_open_transaction_stays_so_when_the_broker_dies(consuming: Consuming) -> None:
    await consuming.subscribe()
    early, late = await consuming.world.begin(), await consuming.world.begin()
    for value in range(4):
        await consuming.publish(value, txn_id=(early, late)[value % 2])
    revision = await consuming.world.commit(late)
    await seek(consuming, revision=revision)
    await consuming.crash()
    assert await consuming.values() == []
    await consuming.commit(early)
    received = await consuming.receive()
    assert [message["value"] for message in received] == [0, 2]
    await consuming.acked([message["message_id"] for message in received][:1])
    await consuming.crash()
    assert await consuming.values() == [2]
    assert await consuming.findings() == []


async def test_a_preview_counts_what_a_snapshot_shows_as_passed_wherever_it_lies(consuming: Consuming) -> None:
    """Of five messages of a transaction that is decided later and four that have passed, some are acknowledged."""
    await consuming.subscribe()
    early, late = await consuming.world.begin(), await consuming.world.begin()
    ids = [(await consuming.publish(value, txn_id=(early, late)[value % 2]))[0] for value in range(9)]
    revision = await consuming.world.commit(late)
    assert await previewed(consuming, revision) == (0, 0, 0), "nothing can be read yet"
    await consuming.commit(early)
    await consuming.receive(limit=6)
    await consuming.acked([ids[0], ids[1], ids[4]])
    before = await consuming.shown()
    assert await previewed(consuming, revision) == (5, 2, 3)
    assert await consuming.shown() == before
    await seek(consuming, revision=revision)
    assert await consuming.values() == [0, 2, 4, 6, 8]
    wrong = await consuming.ask("POST", "/subscriptions/s/seek/preview", {"revision": revision + 10**6})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "revision")


@pytest.mark.parametrize("acked", [["1:0:0", "1:0:0"], ["1:1:0", "1:0:0"], ["1:0", "1:1:0"]])
async def test_a_broker_refuses_a_range_that_contains_nothing(consuming: Consuming, acked: list[str]) -> None:
    await consuming.subscribe()
    (segment,) = consuming.segments
    body = {"incarnation": 1, "positions": {segment: "1:0"}, "acked": {segment: [acked]}}
    refused = await consuming.ask("POST", "/subscriptions/s/share/preview", body)
    assert (refused.status_code, refused.json()["field"]) == (422, "acked")
    body = {"incarnation": 1, "within": {segment: ["1:0", "x"]}}
    counted = await consuming.ask("POST", "/subscriptions/s/share/preview", body)
    assert (counted.status_code, counted.json()["field"]) == (422, "within")


async def test_a_broker_forgets_the_oldest_of_too_many_unfinished_counts(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("participants.segment.reading.READ_BYTES", 1)
    monkeypatch.setattr("participants.topic.move_counts.MOST_KEPT", 1)
    await consuming.subscribe()
    await consuming.publish_each(1, 2, 3)
    revision = await consuming.world.store.current_revision()

    async def complete(at: int) -> bool:
        place = {"revision": at, "for_ms": 0}
        return bool((await consuming.asked("POST", "/subscriptions/s/seek/preview", place))["complete"])

    assert [await complete(each) for each in (revision, revision - 1) * 3] == [False] * 6
    assert [await complete(revision - 1) for _ in range(2)] == [False, True]


async def test_what_is_later_than_the_last_transaction_of_a_revision_is_delivered(consuming: Consuming) -> None:
    await consuming.subscribe()
    txn_id = await consuming.world.begin()
    await consuming.publish_each("before", "also before")
    await consuming.publish("inside", txn_id=txn_id)
    revision = await consuming.world.commit(txn_id)
    await consuming.publish_each("after", "also after")
    await seek(consuming, revision=revision)
    assert await consuming.values() == ["after", "also after"]


async def test_a_revision_that_is_not_kept_is_refused_and_changes_nothing(consuming: Consuming) -> None:
    await consuming.subscribe()
    await consuming.publish("a")
    world = consuming.world
    now = await world.store.current_revision()
    for revision, why in ((now + 10**6, "in the future"), (now - 1, "have been collected")):
        if why != "in the future":
            horizon = GcHorizon(revision=now).encode()
            await world.store.apply(world.store.batch().put(paths.GC_HORIZON, horizon))
        refused = await seek(consuming, 422, revision=revision)
        assert (refused["code"], refused["field"]) == ("INVALID_ARGUMENT", "revision") and why in refused["detail"]
    assert await consuming.values() == ["a"]


async def test_more_parts_than_a_record_holds_are_refused(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("participants.topic.cut.MAX_CUT_RANGES", 2)
    await consuming.subscribe()
    early, late = await consuming.world.begin(), await consuming.world.begin()
    for value in range(4):
        await consuming.publish(value, txn_id=(early, late)[value % 2])
    revision = await consuming.world.commit(late)
    await seek(consuming, revision=revision)
    for value in range(2):
        await consuming.publish(value, txn_id=(early, await consuming.world.begin())[value % 2])
    last = await consuming.world.begin()
    await consuming.publish("last", txn_id=last)
    revision = await consuming.world.commit(last)
    assert "parts" in (await seek(consuming, 422, revision=revision))["detail"]
