"""Goal: whatever upkeep does to the ledgers of a segment, and wherever its owner dies, readers see what the policy
keeps, once and in order, and what they were told about the begin and the end never moves backwards.

Method: random operations on a segment: messages with keys, inside and outside transactions, rolls, indexes, rewriting,
compaction, trims, drops, acknowledgements and moves at any position, other owners, and deaths between any two writes to
the store, the disk and the bucket. A model knows what was decided. At every rest it is compared with each kind of
reader from every position there ever was, with offsets, backlogs, the laws of the store and what is left in the
storage; a reader with small pages goes on beside everything. DESIGN §5.18, §5.19.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from metastore.check import StoreCheck
from metastore.errors import MetastoreError
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.subscriptions import SubscriptionRecord
from metastore.txn.records.topics import TopicRecord
from metatxn.wire import errors
from metatxn.wire.frames import Entry, PayloadKind, RawFrame
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from metatxn.wire.record_batches import KafkaRecord
from participants.ledger.directories import segment_directory
from participants.ledger.offsets import first_offset
from participants.ledger.storage import LedgerError
from participants.messages.batches import encode_batch
from participants.segment.recovery import SegmentUnavailable
from participants.segment.segment import Cleanup, Segment
from participants.segment.trimming import trim
from participants.subscription.definitions import Definition, Definitions
from participants.subscription.places import Place
from participants.subscription.segment_subscription import SegmentSubscription
from participants.subscription.segment_subscriptions import subscriptions_of
from tests.extent import usually
from tests.participants.prefixes.lives import Files, Objects
from tests.participants.prefixes.lives import Place as Where
from tests.participants.prefixes.steps import MortalStore, Steps
from tests.participants.reconciling import reconcile_subscribed
from tests.participants.segment.world import SEGMENT, Node, World, released

TOPIC = "public/default/t"
KEYS = "abcd"
OPERATIONS = 45
DIES_BEHIND = 14
"""The most steps that a process takes that is to die."""
DEAD = (MetastoreError, LedgerError, SegmentUnavailable, errors.MetatxnError, OSError)


class MortalNode(Node):
    """One that shares its storage with its successors, or is copied."""

    def __init__(self, world: World, where: Where, storage: Any, steps: Steps) -> None:
        super().__init__(MortalStore(steps, world.store.inner), None, storage, world)  # type: ignore[arg-type]
        self.where = where
        self.steps = steps

    async def stop(self) -> None:
        for segment in self.segments:
            await segment.close()
        await self.materializing.close()
        await self._exit.aclose()
        await self.storage.close()


@dataclass(slots=True)
class Written:
    key: str | None
    value: str | None
    """None deletes the key."""
    txn_id: TxnId | None


@dataclass(slots=True)
class Model:
    entries: dict[Position, Written] = field(default_factory=dict)
    committed: set[TxnId] = field(default_factory=set)
    aborted: set[TxnId] = field(default_factory=set)
    gone: set[Position] = field(default_factory=set)
    """What was committed and is not there any more."""
    trimmed: Position = field(default_factory=lambda: Position(0, -1))
    acked: set[Position] = field(default_factory=set)

    def is_committed(self, position: Position) -> bool:
        written = self.entries[position]
        return written.txn_id is None or written.txn_id in self.committed

    def readable(self) -> list[Position]:
        """What is committed and before the first entry of an open transaction, in order."""
        found = []
        for position in sorted(self.entries):
            txn_id = self.entries[position].txn_id
            if txn_id is not None and txn_id not in self.committed | self.aborted:
                break
            if self.is_committed(position) and position > self.trimmed:
                found.append(position)
        return found

    def kept(self) -> set[Position]:
        """Of these, what every policy keeps: messages without a key, and the last one of each key unless it deletes
        it."""
        last = {self.entries[each].key or str(each): each for each in self.readable()}
        return {each for each in last.values() if self.entries[each].value is not None}


class Upkeep:
    def __init__(self, draw: random.Random, directory: Path, where: Where, *, kafka: bool) -> None:
        self.draw = draw
        self.world = World(directory)
        self.where = where
        self.kafka = kafka
        self.model = Model()
        self.open: dict[TxnId, bool] = {}
        self.told: dict[str, Any] = {}
        self.numbers = 0
        self.incarnation = 0
        self.deaths = 0
        self.dropped: set[int] = set()
        self.deposed: list[MortalNode] = []
        self.node: MortalNode
        self.segment: Segment

    # -- processes ---------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        storage = await self.where.open(Steps())
        record = SegmentRecord(
            topic=TOPIC, range=(0, 0xFFFF), storage=storage.storage_id, next_offset=0 if self.kafka else None
        )
        await storage.close()
        topic = TopicRecord(
            name=TOPIC, segments=(SEGMENT,), next_segment=1, created_ms=0, format="kafka" if self.kafka else None
        )
        store = self.world.store.inner
        batch = store.batch().create(paths.segment(SEGMENT), record.encode())
        await store.apply(batch.create(paths.topic(TOPIC), topic.encode()))
        await self.world.store.lease_ids(paths.id_sequence(1), 1_000)
        await self.start()
        await self.subscribe(Position(0, -1))

    async def start(self) -> None:
        """The next owner; its opening may be interrupted, too."""
        while True:
            steps = Steps()
            self.node = MortalNode(self.world, self.where, await self.where.open(steps), steps)
            await self.node.start()
            if await self.survives(self._open()):
                return
            await self.bury()

    async def _open(self) -> None:
        self.segment = await self.node.open()
        self.segment.cleanup = Cleanup(0, ())

    async def bury(self) -> None:
        self.deaths += 1
        self.where = self.node.where.after_death()
        await self.node.stop()

    async def survives(self, work: Awaitable[Any]) -> bool:
        """Do it; now and then the process dies meanwhile. Then nothing is known of it."""
        steps, node = self.node.steps, self.node
        if self.draw.random() < 0.25:
            steps.arm(self.draw.randint(1, DIES_BEHIND), answered=self.draw.random() < 0.5)
        died, working = steps.died.next(), asyncio.ensure_future(work)
        await asyncio.wait([working, died], return_when=asyncio.FIRST_COMPLETED)
        if not steps.dead:
            await working
            await self._quiet(node)
        if not steps.dead:
            steps.disarm()
            return True
        working.cancel()
        with suppress(asyncio.CancelledError, *DEAD):
            await working
        return False

    async def _quiet(self, node: MortalNode) -> None:
        while not node.steps.dead and (tasks := {each for one in node.segments for each in one._tasks}):
            await asyncio.wait([*tasks, node.steps.died.next()], return_when=asyncio.FIRST_COMPLETED)

    # -- operations --------------------------------------------------------------------------------------------

    async def publish(self) -> None:
        self.numbers += 1
        key = self.draw.choice(KEYS) if self.draw.random() < 0.97 else None
        value = f"v{self.numbers}" if self.draw.random() < 0.8 or key is None else None
        txn_id = self.draw.choice([None, None, *self.open])
        written = Written(key, value, txn_id)
        if await self.survives(self._publish(written)):
            return
        await self.bury()
        await self.start()
        found = [each.position for each in await self.read("read_uncommitted", self.segment.ledgers.start)]
        for position in found:
            if position not in self.model.entries:
                self.model.entries[position] = written

    async def _publish(self, written: Written) -> None:
        message = {"key": written.key, "value": written.value}
        payload, kind = json.dumps([message]).encode(), PayloadKind.MESSAGES
        if self.kafka:
            key, value = (each.encode() if each is not None else None for each in (written.key, written.value))
            payload, kind = encode_batch([KafkaRecord(key, value)]), PayloadKind.KAFKA
        position, _ = await self.segment.publish(Entry(payload, kind, 1, written.txn_id))
        self.model.entries[position] = written

    async def start_transaction(self) -> None:
        self.open[await self.world.begin()] = self.draw.random() < 0.4

    async def decide(self) -> None:
        if not self.open:
            return
        txn_id = self.draw.choice(list(self.open))
        commits = self.open.pop(txn_id)
        await (self.world.commit(txn_id) if commits else self.world.abort(txn_id))
        (self.model.committed if commits else self.model.aborted).add(txn_id)
        await self.dying_or(lambda: released(self.segment, txn_id))

    async def dying_or(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Do it until a process lives to its end. It may be repeated."""
        while not await self.survives(work()):
            await self.bury()
            await self.start()

    async def roll(self) -> None:
        async def once() -> None:
            if self.segment.ledgers.open is not None and self.segment.ledgers.open.entries:
                assert self.segment.on_full is not None
                await self.segment.on_full()

        await self.dying_or(once)

    async def tend(self) -> None:
        async def once() -> None:
            before = {each.id for each in self.segment.ledgers.ledgers}
            reading = asyncio.create_task(self.read_beside(), name="a reader beside")
            self.segment.tend()
            try:
                await self._quiet(self.node)
                await reading
            finally:
                reading.cancel()
            self.dropped |= before - {each.id for each in self.segment.ledgers.ledgers}

        await self.dying_or(once)

    async def trim(self) -> None:
        ends = [each for each in self.model.readable() if each <= self.segment.buffer.max_read_position]
        before = self.draw.choice(ends[: len(ends) // 3 or 1]) if ends else None
        if before is None or self.draw.random() < 0.5:
            return

        async def once() -> None:
            await trim(self.segment, self.node.context.store, self.node.storage, before)

        await self.dying_or(once)
        self.model.trimmed = self.segment.ledgers.trimmed or self.model.trimmed
        assert self.model.trimmed < before

    async def reopen(self) -> None:
        await self.bury()
        await self.start()

    async def depose(self) -> None:
        """Another owner, while this one lives; of files there is only one at a time."""
        if isinstance(self.where, Files):
            await self.reopen()
            return
        self.segment.tend()
        for _ in range(self.draw.randint(0, 60)):
            await asyncio.sleep(0)
        self.deposed.append(self.node)
        await self.start()

    # -- subscriptions -----------------------------------------------------------------------------------------

    async def subscribe(self, behind: Position) -> None:
        """It begins behind this position, as if it was moved there."""
        self.incarnation += 1
        starts = {SEGMENT: str(Place.behind(behind))}
        record = SubscriptionRecord(
            incarnation=self.incarnation, type="shared", initial="earliest", created_ms=0, starts=starts
        )
        store = self.world.store.inner
        await store.apply(store.batch().put(paths.subscription(TOPIC, "s"), record.encode()))
        self.model.acked = {each for each in self.model.entries if each <= behind}

        async def once() -> None:
            await reconcile_subscribed(self.segment)
            await self.subscription()

        await self.dying_or(once)

    async def move(self) -> None:
        await self.subscribe(self.anywhere())

    async def subscription(self) -> SegmentSubscription:
        (definition,) = await Definitions(self.node.context.store).of_topic(TOPIC)
        assert isinstance(definition, Definition)
        return await subscriptions_of(self.segment).get(definition)

    async def acknowledge(self) -> None:
        readable = [each for each in self.model.readable() if each <= self.segment.buffer.max_read_position]
        if not readable:
            return
        position, cumulative = self.draw.choice(readable), self.draw.random() < 0.4

        async def once() -> None:
            part = await self.subscription()
            if cumulative:
                acks = [await part.cumulative_ack(position, 0, None)]
            else:
                acks = await part.single_acks([(position, 0)], None)
            await part.acknowledge(acks)

        await self.dying_or(once)
        self.model.acked |= {each for each in self.model.entries if each <= position} if cumulative else {position}

    def anywhere(self) -> Position:
        """A position that is or was there, or is between two of them; not before the start."""
        known = [self.segment.ledgers.start, *self.model.entries]
        known = [each for each in known if self.segment.ledgers.start <= each <= self.segment.buffer.max_read_position]
        at = self.draw.choice(known or [self.segment.ledgers.start])
        return self.draw.choice([at, max(Position(at.ledger, -1), self.segment.ledgers.start)])

    # -- readers -----------------------------------------------------------------------------------------------

    async def read(self, kind: str, after: Position, max_bytes: int = 1 << 20) -> list[RawFrame]:
        seen: list[RawFrame] = []
        reader = self.segment.reader
        revision = None
        while True:
            if kind == "read_snapshot":
                page = await reader.read_snapshot(after, max_bytes, revision)
                revision = page.revision
            else:
                page = await getattr(reader, kind)(after, max_bytes)
            seen += page.frames
            if page.end:
                return seen
            assert page.next > after
            after = page.next

    async def read_beside(self) -> None:
        """What was committed when it began and is kept when it ends is read once, in order; nothing else is."""
        begin, kept, end = self.anywhere(), self.model.kept(), self.segment.buffer.max_read_position
        seen: list[Position] = []
        at = begin
        while True:
            page = await self.segment.reader.read_committed(at, self.draw.choice((1, 100, 300)))
            for _ in range(self.draw.randint(0, 30)):
                await asyncio.sleep(0)
            seen += [frame.position for frame in page.frames]
            if page.end:
                break
            at = page.next
        assert seen == sorted(set(seen)) and all(self.model.is_committed(each) for each in seen)
        assert {each for each in kept if begin < each <= end} <= set(seen)
        assert not self.model.gone & set(seen), "it came back"

    # -- judging -----------------------------------------------------------------------------------------------

    async def judge(self) -> None:
        model, segment = self.model, self.segment
        start = segment.ledgers.start
        committed = await self.read("read_committed", start)
        found = [frame.position for frame in committed]
        readable = model.readable()
        assert found == sorted(set(found)) and set(found) <= set(readable)
        assert model.kept() <= set(found), "what is kept is there"
        assert not model.gone & set(found), "it came back"
        open_ledger = segment.ledgers.last_durable.ledger
        assert {each for each in readable if each.ledger == open_ledger} <= set(found)
        model.gone |= set(readable) - set(found)
        for frame in committed:
            value = model.entries[frame.position].value
            assert value is None or value.encode() in bytes(frame.payload)
        uncommitted = [frame.position for frame in await self.read("read_uncommitted", start)]
        assert uncommitted == sorted(set(uncommitted)) and set(uncommitted) <= set(model.entries)
        snapshot = [frame.position for frame in await self.read("read_snapshot", start)]
        assert snapshot == [each for each in uncommitted if model.is_committed(each)]
        assert found == [each for each in snapshot if each in set(readable)]
        places = {*model.entries, *(Position(each.ledger, -1) for each in model.entries)}
        for place in sorted(each for each in places if each >= start):
            for kind, expected in (("read_committed", found), ("read_uncommitted", uncommitted)):
                behind = [each for each in expected if each > place]
                page = await getattr(segment.reader, kind)(place, 1)
                first = [page.frames[0].position] if page.frames else []
                assert first == behind[: len(first)] and (first or page.next < (behind or [Position(1 << 60, 0)])[0])
            assert [each.position for each in await self.read("read_committed", place)] == [
                each for each in found if each > place
            ]
            before = [each for each in uncommitted if each < place]
            assert await segment.reader.position_before(place, 1) == (before[-1] if before else start.next)
        assert await segment.reader.last_visible() == (found[-1] if found else None)
        await self.judge_what_is_told(committed, places)
        counts = await (await self.subscription()).dispatch.counts()
        assert counts.backlog == len(set(found) - model.acked), (found, model.acked, counts)

    async def judge_what_is_told(self, committed: list[RawFrame], places: set[Position]) -> None:
        ledgers, buffer = self.segment.ledgers, self.segment.buffer
        told: dict[str, Any] = {
            "start": ledgers.start,
            "end": ledgers.shown(buffer.last_durable),
            "readable": ledgers.shown(buffer.max_read_position),
        }
        if self.kafka:
            offsets = self.segment.offsets
            told |= {"log start": await offsets.start(), "log end": offsets.end, "stable": await offsets.stable_end()}
            assert told["log start"] <= told["stable"] <= told["log end"]
            known = [(first_offset(frame), frame.position) for frame in committed]
            assert known == sorted(known)
            for offset in range(told["log start"], told["log end"] + 1):
                behind = await self.read("read_committed", await offsets.place_of(offset))
                assert [each.position for each in behind] == [each for first, each in known if first >= offset]
            for place in (each for each in places if each >= ledgers.start):
                assert await offsets.after(place) <= min([first for first, each in known if each > place] or [1 << 60])
                if place.entry >= 0 and place.ledger < ledgers.ledgers[-1].id:
                    gone = ledgers.is_left_out(place) or place <= ledgers.start
                    assert (await offsets.first_of(place) is None) == gone
        for name, value in told.items():
            assert self.told.get(name, value) <= value, f"{name} has moved backwards"
        self.told |= told

    async def end(self) -> None:
        """Once nothing is open and no process dies, nothing is left that could go."""
        while self.open:
            await self.decide()
        self.draw = random.Random()
        self.draw.random = lambda: 0.99  # type: ignore[method-assign]
        for node in self.deposed:
            await node.stop()
        await self.roll()
        for _ in range(4):
            await self.tend()
        await self.judge()
        record = self.segment.record
        shown = self.segment.ledgers.shown(self.segment.buffer.max_read_position)
        for ledger in self.segment.ledgers.sealed[1:]:
            assert ledger.last_kept >= 0 or ledger.id >= shown.ledger, f"ledger {ledger.id} is empty, and stays"
        stored = await self.world.store.inner.get(paths.segment(SEGMENT))
        assert stored is not None and SegmentRecord.decode(stored.value) == record and record.trimmed == ()
        listed = {each.id for each in record.ledgers}
        there = self.where.ledgers()[segment_directory(SEGMENT)]
        assert there == listed if isinstance(self.where, Files) else listed <= there
        assert self.where.drafts() == []
        findings = [f"{each.key}: {each.problem}" async for each in StoreCheck(self.world.store.inner).findings()]
        assert findings == []
        await self.reopen()
        await self.judge()

    async def close(self) -> None:
        await self.node.stop()
        await self.world.close()


@pytest.mark.parametrize("kafka", [False, True], ids=["messages", "kafka"])
@pytest.mark.parametrize("where", ["files", "objects"])
@pytest.mark.parametrize("seed", usually(range(2), range(20)))
async def test_readers_see_what_is_kept_whatever_upkeep_does(
    tmp_path: Path, seed: int, where: str, kafka: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(f"{seed} {where} {kafka}")
    monkeypatch.setattr("participants.segment.rewriting.HIDDEN_PARTS", draw.choice((1, 2, 2)))
    monkeypatch.setattr("participants.segment.compacting.LEFT_OUT_PARTS", draw.choice((2, 16, 1_000)))
    monkeypatch.setattr("participants.segment.compacting.KEYS_PER_PASS", draw.choice((2, 1_000)))
    place: Where = Files(tmp_path / "data") if where == "files" else Objects()
    upkeep = Upkeep(draw, tmp_path, place, kafka=kafka)
    await upkeep.begin()
    operations: dict[Callable[[], Awaitable[None]], int] = {
        upkeep.publish: 20,
        upkeep.start_transaction: 5,
        upkeep.decide: 6,
        upkeep.roll: 9,
        upkeep.tend: 9,
        upkeep.trim: 2,
        upkeep.acknowledge: 3,
        upkeep.move: 2,
        upkeep.reopen: 1,
        upkeep.depose: 1,
    }
    done: list[str] = []
    try:
        for _ in range(OPERATIONS):
            (operation,) = draw.choices(list(operations), list(operations.values()))
            done.append(operation.__name__)
            await operation()
            if draw.random() < 0.25:
                await upkeep.judge()
        await upkeep.end()
    except BaseException as error:
        error.add_note(f"after {', '.join(done)}")
        raise
    finally:
        await upkeep.close()
