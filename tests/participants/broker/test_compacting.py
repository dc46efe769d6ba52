"""Goal: of compacted ledgers the latest committed value of each key stays, with everything that is not known to be
replaced, and nothing comes back that was deleted; readers, subscriptions and snapshots are told the truth about it.

Method: a broker in this process, on both storages, with a clock that the test sets; a pass is `reconcile`. A random
topic is compared with a dictionary. DESIGN §5.19.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from metastore.errors import OutcomeUnknown
from metastore.types import Applied, Batch
from metatxn.wire import errors
from metatxn.wire.broker import Message
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.messages.payloads import encode_messages
from participants.segment.segment import Segment
from participants.topic.compaction import CompactedViews
from tests.extent import usually
from tests.participants.broker.test_compaction import page, rest, view
from tests.participants.broker.test_retention import Retaining
from tests.participants.segment.faulty_store import Fault, puts
from tests.participants.segment.world import World, payload_of, snapshot

DAY_MS = 86_400_000
NEVER = 10**12


class Compacting(Retaining):
    async def put(self, *messages: tuple[str | None, Any], txn_id: TxnId | None = None) -> str:
        """One entry."""
        body = {"messages": [{"key": key, "value": value} for key, value in messages]}
        inside = f"?txn_id={txn_id}" if txn_id else ""
        return str((await self.asked("POST", f"/messages{inside}", body))["message_ids"][0])

    async def roll(self) -> None:
        for name in self.segments:
            segment = await self.segment(name)
            if segment.on_full is not None and segment.ledgers.open is not None and segment.ledgers.open.entries:
                await segment.on_full()

    async def ledger(self, *messages: tuple[str | None, Any]) -> None:
        """A ledger with an entry for each message, and closed."""
        for message in messages:
            await self.put(message)
        await self.roll()

    async def compacted(self, passes: int = 3) -> None:
        await self.passes(passes)

    async def read(self) -> list[tuple[str | None, Any]]:
        """Everything that is there, from the earliest message on."""
        first = await page(self.process)
        seen = [(message["key"], message["value"]) for message in first["messages"]]
        return seen + await rest(self.process, first["next"])


@pytest.fixture
async def topic(world: World) -> AsyncIterator[Compacting]:
    found = await Compacting.start(world)
    assert isinstance(found, Compacting)
    await found.set(cleanup="compact")
    yield found
    await found.process.stop()


async def test_the_latest_value_of_each_key_stays_and_so_does_what_has_no_key(topic: Compacting) -> None:
    await topic.ledger(("a", 1), ("b", 1), (None, "x"), ("a", 2))
    await topic.ledger(("a", 3), ("c", 1))
    await topic.put(("b", 8))
    await topic.put(("b", 9))
    await topic.compacted()
    expected = [("b", 1), (None, "x"), ("a", 3), ("c", 1), ("b", 8), ("b", 9)]
    assert await topic.read() == expected, "an open ledger replaces nothing"
    assert (await topic.record()).ledgers[0].form is not None
    await topic.roll()
    await topic.compacted()
    assert await topic.read() == [(None, "x"), ("a", 3), ("c", 1), ("b", 9)]
    await topic.crash()
    assert await topic.read() == [(None, "x"), ("a", 3), ("c", 1), ("b", 9)] and await topic.findings() == []


@pytest.mark.parametrize("cleanup", ["delete", None])
async def test_without_the_policy_nothing_is_compacted(topic: Compacting, cleanup: str | None) -> None:
    await topic.set(cleanup=cleanup)
    await topic.ledger(("a", 1), ("a", 2))
    await topic.compacted()
    assert await topic.read() == [("a", 1), ("a", 2)]


async def test_a_policy_that_changes_meanwhile_counts(topic: Compacting) -> None:
    segment = await topic.segment()
    await topic.passes(1)
    assert segment.cleanup is not None
    await topic.ledger(("a", 1), ("a", 2))
    await topic.set(cleanup="delete")
    segment.tend()
    await topic.idle()
    assert await topic.read() == [("a", 1), ("a", 2)] and (await topic.record()).compaction is None


@pytest.mark.parametrize("commit", [True, False])
async def test_what_a_transaction_may_still_replace_stays(topic: Compacting, commit: bool) -> None:
    await topic.ledger(("a", 1), ("a", 2))
    txn = await topic.world.begin()
    await topic.put(("a", 3), txn_id=txn)
    await topic.ledger(("b", 1), ("b", 2))
    await topic.compacted()
    assert await topic.read() == [("a", 2)]
    await (topic.commit(txn) if commit else topic.abort(txn))
    await topic.compacted(4)
    assert await topic.read() == ([("a", 3), ("b", 2)] if commit else [("a", 2), ("b", 2)])


async def test_a_deletion_stays_for_its_time_and_nothing_comes_back(topic: Compacting) -> None:
    await topic.set(delete_retention_ms=DAY_MS)
    topic.at_hour(0)
    await topic.ledger(("a", 1), ("b", 1))
    await topic.ledger(("a", None), ("c", 1))
    await topic.compacted()
    assert await topic.read() == [("b", 1), ("a", None), ("c", 1)]
    topic.at_hour(30)
    await topic.ledger(("d", 1))
    await topic.compacted()
    assert await topic.read() == [("b", 1), ("c", 1), ("d", 1)] == await view(topic.process)


async def test_a_deletion_stays_while_a_value_of_its_key_is_in_an_entry_that_stays(topic: Compacting) -> None:
    await topic.set(delete_retention_ms=0)
    await topic.put(("a", 1), ("b", 1))
    await topic.roll()
    await topic.ledger(("a", None), ("c", None))
    topic.at_hour(1)
    await topic.ledger(("d", 1), ("d", 2))
    await topic.compacted(4)
    assert await topic.read() == [("a", 1), ("b", 1), ("a", None), ("d", 2)]
    assert await view(topic.process) == [("b", 1), ("d", 2)]


async def test_a_deletion_in_a_child_stays_while_its_parent_is_there(topic: Compacting) -> None:
    await topic.set(delete_retention_ms=0)
    await topic.put(("a", 1))
    await topic.process.layout.split(topic.segments[0], None)
    topic.segments = list((await topic.process.broker.topics.get("public/default/t")).topic.segments)
    topic.process.broker.forget_topic("public/default/t")
    await topic.ledger(("a", None), ("b", 1), ("b", 2))
    topic.at_hour(1)
    await topic.compacted(4)
    assert ("a", None) in await topic.read() and await view(topic.process) == [("b", 2)]


async def test_keys_beyond_what_memory_holds_take_several_passes(
    topic: Compacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("participants.segment.compacting.KEYS_PER_PASS", 2)
    await topic.ledger(*((f"k{number % 5}", number) for number in range(15)))
    await topic.compacted(1)
    await topic.compacted(12)
    assert await topic.read() == [(f"k{number % 5}", number) for number in range(10, 15)]


async def test_an_entry_goes_once_all_of_its_messages_are_replaced_by_whatever_pass(topic: Compacting) -> None:
    await topic.put(("a", 1), ("b", 1))
    await topic.put(("c", 1), ("d", 1))
    await topic.ledger(("a", 2))
    await topic.compacted()
    await topic.ledger(("d", 2), ("e", 1))
    await topic.compacted()
    assert await topic.read() == [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("a", 2), ("d", 2), ("e", 1)]
    await topic.ledger(("b", 2), ("e", 2), ("f", 1))
    await topic.compacted()
    assert await topic.read() == [("c", 1), ("d", 1), ("a", 2), ("d", 2), ("b", 2), ("e", 2), ("f", 1)]


async def test_a_ledger_is_not_rewritten_for_next_to_nothing(
    topic: Compacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stays for that is remembered all the same: the deletion of `a` stays, too."""
    monkeypatch.setattr("participants.segment.compacting.LEFT_OUT_PARTS", 2)
    await topic.set(delete_retention_ms=0)
    await topic.ledger(("a", 1), ("b", 1), ("c", 1))
    await topic.ledger(("a", None))
    topic.at_hour(1)
    await topic.compacted(4)
    assert await topic.read() == [("a", 1), ("b", 1), ("c", 1), ("a", None)]
    assert await view(topic.process) == [("b", 1), ("c", 1)]


async def test_a_snapshot_before_the_compaction_is_refused(topic: Compacting) -> None:
    txns = [await topic.world.begin() for _ in range(2)]
    await topic.put(("a", 1), txn_id=txns[0])
    await topic.commit(txns[0])
    before = await topic.world.store.current_revision()
    await topic.put(("a", 2), txn_id=txns[1])
    await topic.commit(txns[1])
    segment = await topic.segment()
    assert '"value":1' in (await snapshot(segment, before))[0]
    await topic.roll()
    await topic.compacted()
    for _ in range(2):
        with pytest.raises(errors.PositionTrimmed, match="compacted at revision"):
            await snapshot(segment, before)
        answer = await topic.ask("GET", f"/messages?isolation=snapshot&revision={before}")
        assert answer.status_code == 410 and answer.json()["code"] == "POSITION_TRIMMED"
        assert len(await snapshot(segment, await topic.world.store.current_revision())) == 1
        await topic.crash()
        segment = await topic.segment()


async def test_nothing_left_out_nothing_refused(topic: Compacting) -> None:
    await topic.ledger(("a", 1), ("b", 1))
    before = await topic.world.store.current_revision()
    await topic.compacted()
    record = await topic.record()
    assert record.compaction is not None and record.compaction.through == "1:1"
    assert len(await snapshot(await topic.segment(), before)) == 2


async def test_subscriptions_pass_over_what_is_gone(topic: Compacting) -> None:
    """What a consumer holds may go, too. It can still be acknowledged, no matter who serves the segment by then."""
    await topic.subscribe("s")
    await topic.ledger(("a", 1), ("b", 1), ("a", 2), ("a", 3))
    held = [each["message_id"] for each in await topic.receive(limit=1)]
    assert (await topic.shown())["backlog"] == 4
    await topic.compacted()
    assert await topic.read() == [("b", 1), ("a", 3)]
    assert (await topic.shown())["backlog"] in (2, 3), "the one that is held, or not"
    await topic.redeliver()
    assert [each["value"] for each in await topic.receive()] == [1, 3]
    await topic.acked(held)
    await topic.crash()
    assert (await topic.shown())["backlog"] == 2
    await topic.acked(held)
    assert (await topic.ask("POST", "/subscriptions/s/acks", {"kind": "individual", "message_ids": held})).is_success
    given = await topic.receive()
    assert [each["value"] for each in given] == [1, 3]
    await topic.acked([each["message_id"] for each in given])
    assert (await topic.shown())["backlog"] == 0


async def test_aborted_messages_that_are_gone_are_in_no_backlog(
    topic: Compacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in that of a subscription which delivers whatever is stored, either (DESIGN §5.18)."""
    monkeypatch.setattr("participants.subscription.message_counts.PAGE_BYTES", 1)
    await topic.set(cleanup="delete")
    await topic.subscribe("all", isolation="read_uncommitted")
    txn = await topic.world.begin()
    for number in range(4):
        await topic.put(("a", number), txn_id=txn)
    await topic.put(("b", 1))
    await topic.abort(txn)
    await topic.roll()
    await topic.put(("c", 1))
    assert (await topic.shown("all"))["backlog"] == 6
    await topic.passes()
    assert (await topic.record()).ledgers[0].form is not None
    assert (await topic.shown("all"))["backlog"] == 2
    assert [each["value"] for each in await topic.receive("all")] == [1, 1]


async def test_what_is_in_a_ledger_that_was_dropped_can_be_acknowledged(topic: Compacting) -> None:
    """By itself and with what is before it, no matter who serves the segment by then."""
    await topic.subscribe("s")
    for number in range(4):
        await topic.ledger(("a", number))
    held = [each["message_id"] for each in await topic.receive(limit=2)]
    await topic.compacted()
    record = await topic.record()
    assert [each.id for each in record.ledgers] == [1, 4, 5] and await topic.findings() == []
    assert topic.process.device.ledgers() == {1, 4, 5}
    for _ in range(2):
        await topic.acked(held[1:])
        await topic.acked(held)
        assert [each["value"] for each in await topic.receive()] == [3]
        assert (await topic.shown())["backlog"] == 1
        await topic.crash()
    given = [each["message_id"] for each in await topic.receive()]
    await topic.acked(given)
    assert (await topic.shown())["backlog"] == 0


async def last_visible(topic: Compacting) -> Position | None:
    return await (await topic.segment()).reader.last_visible()


async def test_the_last_visible_entry_is_one_that_is_there(topic: Compacting) -> None:
    """The one that was found before may be gone: a deletion, or with its ledger. The next one is found by a search from
    the end on, also if it was passed by before."""
    await topic.set(delete_retention_ms=0)
    await topic.ledger(("b", 1), ("a", 1))
    await topic.ledger(("a", None))
    assert await last_visible(topic) == Position(2, 0)
    txn = await topic.world.begin()
    await topic.put(("c", 1), txn_id=txn)
    await topic.abort(txn)
    assert await last_visible(topic) == Position(2, 0), "behind it is only what was aborted"
    topic.at_hour(1)
    await topic.compacted()
    assert await topic.read() == [("b", 1)]
    for _ in range(2):
        assert await last_visible(topic) == Position(1, 0)
        await topic.crash()
    await topic.put(("d", 1))
    assert await last_visible(topic) == (await topic.segment()).buffer.last_durable


async def test_what_is_left_out_while_the_last_visible_entry_is_searched_is_not_the_result(
    topic: Compacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    await topic.set(delete_retention_ms=0)
    await topic.ledger(("b", 1), ("a", 1), ("a", None))
    topic.at_hour(1)
    segment = await topic.segment()
    within = segment.reader._last_visible_within

    async def and_then_compact(*args: Position) -> Position | None:
        monkeypatch.setattr(segment.reader, "_last_visible_within", within)
        found = await within(*args)
        assert found == Position(1, 2)
        await topic.compacted()
        return found

    monkeypatch.setattr(segment.reader, "_last_visible_within", and_then_compact)
    assert await segment.reader.last_visible() == Position(1, 0)


async def test_a_view_goes_on_while_its_ledgers_are_compacted(
    topic: Compacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is gone from the view was replaced by what follows it."""
    await topic.ledger(("a", 1), ("b", 1), ("c", 1))
    first = await page(topic.process, compacted="true", max=1)
    assert [(each["key"], each["value"]) for each in first["messages"]] == [("a", 1)]
    await topic.ledger(("b", 2), ("a", 2))
    await topic.compacted()
    expected = [("c", 1), ("b", 2), ("a", 2)]
    for most in (1, 10):
        assert await rest(topic.process, first["next"], max=most) == expected
    monkeypatch.setattr(CompactedViews, "_remember", lambda *_: None)
    await topic.crash()
    assert await rest(topic.process, first["next"]) == expected


@pytest.mark.parametrize("in_effect", [False, True], ids=["lost request", "lost reply"])
async def test_an_apply_whose_answer_is_lost(topic: Compacting, in_effect: bool) -> None:
    for number in (1, 3):
        await topic.ledger(("a", number), ("a", number + 1))
        fault = Fault(puts("/segment/"), hold_before=True)
        lost = OutcomeUnknown("the connection was lost")
        fault.before, fault.after = (None, lost) if in_effect else (lost, None)
        topic.world.store.fault(fault)
        passing = asyncio.create_task(topic.compacted())
        await fault.reached.wait()
        fault.go.set()
        await passing
    assert await topic.read() == [("a", 4)]
    await topic.crash()
    assert await topic.read() == [("a", 4)]


async def test_what_is_hidden_only_by_memory_is_not_left_out(
    topic: Compacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that was read before is judged by the index that is written later."""
    monkeypatch.setattr("participants.segment.rewriting.HIDDEN_PARTS", 0)
    txn = await topic.world.begin()
    await topic.put(("a", "never"), txn_id=txn)
    await topic.ledger(("b", 1), ("b", 2), ("b", 3))
    await topic.put(("a", "never"), txn_id=txn)
    await topic.abort(txn)
    await topic.compacted()
    segment = await topic.segment()
    assert not segment.hidden.is_indexed(1) and (await topic.record()).ledgers[0].form is not None
    found = await segment.reader.read_uncommitted(Position(1, -1), 1 << 20)
    assert ["never" in payload_of(frame) for frame in found.frames].count(True) == 1
    assert await topic.read() == [("b", 3)]


async def publish_raw(segment: Segment, messages: list[tuple[str, Any]], txn_id: TxnId | None) -> None:
    payload = encode_messages([Message(key=key, value=value) for key, value in messages])
    await segment.publish(Entry(payload, PayloadKind.MESSAGES, len(messages), txn_id))


@pytest.mark.parametrize("seed", usually(range(3), range(6)))
async def test_a_random_topic_has_the_values_of_a_dictionary(
    topic: Compacting, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr("participants.segment.compacting.KEYS_PER_PASS", draw.choice((1, 3, 1_000)))
    monkeypatch.setattr("participants.segment.compacting.LEFT_OUT_PARTS", draw.choice((2, 16, 1_000)))
    monkeypatch.setattr("participants.segment.compacting.FILTER_BYTES", draw.choice((1, 1 << 20)))
    await topic.set(delete_retention_ms=draw.choice((0, 0, NEVER)))
    written: set[tuple[str, Any]] = set()
    latest: dict[str, Any] = {}
    for number in range(60):
        messages = [
            (draw.choice("abcdefgh"), None if draw.random() < 0.3 else f"{number}.{each}")
            for each in range(draw.choice((1, 1, 3)))
        ]
        fate = draw.choice(("plain", "plain", "commit", "abort"))
        txn = await topic.world.begin() if fate != "plain" else None
        await publish_raw(await topic.segment(), messages, txn)
        if txn is not None:
            await (topic.commit(txn) if fate == "commit" else topic.abort(txn))
        if fate != "abort":
            latest.update(messages)
            written.update(messages)
        if draw.random() < 0.2:
            await topic.roll()
        if draw.random() < 0.2:
            await topic.compacted(1)
        if draw.random() < 0.05:
            await topic.crash()
    await topic.roll()
    await topic.compacted(6)
    live = {key: value for key, value in latest.items() if value is not None}
    found = await topic.read()
    assert set(found) <= written
    last = dict(found)
    assert {key: value for key, value in last.items() if value is not None} == live
    assert dict(await view(topic.process)) == live


async def test_a_form_that_was_named_by_a_late_request_is_the_one_that_is_read(
    topic: Compacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request lands between the read and the apply of its repetition, and then the policy changes."""
    segment, store = await topic.segment(), topic.world.store
    await topic.passes(1)
    await topic.ledger(("a", 1), ("a", 2))
    apply, naming = store.apply, list[Batch]()

    async def late(batch: Batch) -> Applied:
        if any(b'"form":' in value for value in batch.puts.values()):
            naming.append(batch)
            if len(naming) == 1:
                raise OutcomeUnknown("who knows")
            if len(naming) == 2:
                await apply(naming[0])
                await topic.set(cleanup="delete")
        return await apply(batch)

    monkeypatch.setattr(store, "apply", late)
    segment.tend()
    await topic.idle()
    assert len(naming) >= 2 and (await topic.record()).ledgers[0].form is not None
    await topic.passes(2)
    assert await topic.read() == [("a", 2)]
