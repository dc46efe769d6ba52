"""Goal: no matter who dies behind any single write of what a broker or a coordinator does, a blank one finishes it: the
same end as without a death, no acknowledged entry lost or doubled, nothing left over.

Method: every interrupted prefix, enumerated (see `harness`), with ledgers as files or as objects, and with the answer
to the last step heard or lost. DESIGN §9; scenarios 69-76, 80-86, 89-92, 95, 96, 112, 123, 129.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from coordinator.gc_sweep import GcSweep
from coordinator.timeout_sweep import TimeoutSweep
from coordinator.transactions import Transactions
from metastore.txn import paths
from metastore.txn.records.subscriptions import SubscriptionRecord
from metastore.txn.records.transactions import FirstNumber, Header
from metatxn.wire import errors
from metatxn.wire.broker import Message
from metatxn.wire.coordinator import MAX_TIMEOUT_MS, BeginRequest, ConnectRequest
from metatxn.wire.frames import MIN_FRAME_BYTES, Entry, PayloadKind
from metatxn.wire.ids import TxnId
from metatxn.wire.names import MessageId, number_of_segment
from metatxn.wire.position import Position
from participants.broker.placement import wanted
from participants.messages.exclusive_producers import Claim
from participants.messages.payloads import encode_messages
from participants.segment.trimming import trim
from participants.subscription.share import AckRequest
from participants.topic.messages import PublishOptions
from participants.topic.seeking import Target
from tests.extent import usually
from tests.participants.broker.stories import HIGH, LOW
from tests.participants.prefixes.harness import PLACES, TOPIC, Client, Story, carried_out, every_prefix
from tests.participants.prefixes.lives import Life
from tests.participants.prefixes.steps import Steps

DEAD = "public/default/dead"
PARENT = "segment://public/default/t/0000-ffff-0"
LOWER, UPPER = "segment://public/default/t/0000-7fff-1", "segment://public/default/t/8000-ffff-2"


async def created(life: Life, segments: int = 1) -> None:
    topic = await life.broker.topics.create(TOPIC, segments, None, life.storage.storage_id, life.world.now_ms())
    await life.broker.until_opened(topic.segments)
    await life.serving()


async def send(
    life: Life, client: Client, key: str, value: str, txn: TxnId | None = None, epoch: int | None = None
) -> None:
    """Exactly once: under the same sequence however often."""
    options = PublishOptions(txn, f"producer of {value}", 1, epoch)
    message = Message(key=key, value=value)
    await client.once(f"send {value}", lambda: life.messages.publish(TOPIC, [message], options))


class Publish(Story):
    """Plain and in transactions that commit, abort, and stay open; with the decision carried out."""

    async def prepare(self, life: Life, client: Client) -> None:
        await created(life)
        for name in ("committed", "aborted", "open"):
            await client.begin(name)

    async def act(self, life: Life, client: Client) -> None:
        for number in range(2):
            await send(life, client, LOW, f"plain {number}")
            for name, txn in client.txns.items():
                await send(life, client, LOW, f"{name} {number}", txn)
        await client.end("committed", commit=True)
        await client.end("aborted", commit=False)


class Roll(Story):
    """Over several ledgers, with a transaction over all of them."""

    max_ledger_bytes = 2 * (MIN_FRAME_BYTES + 60)

    async def prepare(self, life: Life, client: Client) -> None:
        await created(life)
        await client.begin("committed")

    async def act(self, life: Life, client: Client) -> None:
        for number in range(4):
            await send(life, client, LOW, f"plain {number}")
            await send(life, client, LOW, f"inside {number}", client.txns["committed"])
            await life.quiet()
        await client.end("committed", commit=True)


class Split(Story):
    async def prepare(self, life: Life, client: Client) -> None:
        await created(life)
        await client.begin("committed")
        await client.begin("aborted")
        for key in (LOW, HIGH):
            await send(life, client, key, f"first {key}")
            await send(life, client, key, f"second {key}", client.txns["committed"])
            await send(life, client, key, f"never {key}", client.txns["aborted"])

    async def act(self, life: Life, client: Client) -> None:
        await client.once("split", lambda: life.layout.split(PARENT, None))
        for key in (LOW, HIGH):
            await send(life, client, key, f"third {key}", client.txns["committed"])
            await send(life, client, key, f"fourth {key}")
        await client.end("committed", commit=True)
        await client.end("aborted", commit=False)


class Merge(Split):
    async def prepare(self, life: Life, client: Client) -> None:
        await super().prepare(life, client)
        await client.once("split", lambda: life.layout.split(PARENT, None))

    async def act(self, life: Life, client: Client) -> None:
        for key in (LOW, HIGH):
            await send(life, client, key, f"between {key}", client.txns["committed"])
        await client.once("merge", lambda: life.layout.merge(LOWER, UPPER))
        for key in (LOW, HIGH):
            await send(life, client, key, f"last {key}")
        await client.end("committed", commit=True)


class ClaimTopic(Story):
    """One program takes the topic from another, which has a transaction open, and gives it back."""

    async def prepare(self, life: Life, client: Client) -> None:
        await created(life, segments=2)
        txn, epoch = await client.begin("committed"), await self._claimed(life, client, "first")
        for key in (LOW, HIGH):
            await send(life, client, key, f"first {key}", epoch=epoch)
            await send(life, client, key, f"inside {key}", txn, epoch)

    async def act(self, life: Life, client: Client) -> None:
        first, second = client.answers["first"].epoch, await self._claimed(life, client, "second")
        for key in (LOW, HIGH):
            for epoch in (first, None):
                await client.once(f"{key} {epoch}", functools.partial(self._refused, life, client, key, epoch))
            await send(life, client, key, f"second {key}", epoch=second)
        await client.end("committed", commit=True)
        await client.once("release", lambda: life.broker.exclusive_producers.release(TOPIC, second))
        for key in (LOW, HIGH):
            await send(life, client, key, f"plain {key}")

    async def _refused(self, life: Life, client: Client, key: str, epoch: int | None) -> None:
        with pytest.raises(errors.NotAllowed):
            await send(life, client, key, f"never {key}", epoch=epoch)

    async def _claimed(self, life: Life, client: Client, session: str) -> int:
        claim = Claim(session, None, fence=True, ttl_ms=60_000)
        held = await client.once(session, lambda: life.claims.claim(TOPIC, claim))
        return int(held.epoch)


class Seal(Story):
    async def prepare(self, life: Life, client: Client) -> None:
        await created(life)
        await client.begin("committed")
        await send(life, client, LOW, "plain")

    async def act(self, life: Life, client: Client) -> None:
        await send(life, client, LOW, "inside", client.txns["committed"])
        await client.once("seal", lambda: life.layout.seal(PARENT))
        await client.end("committed", commit=True)


class Trim(Roll):
    """With aborted entries in what goes, so that outcomes go with it."""

    async def prepare(self, life: Life, client: Client) -> None:
        await created(life)
        await client.begin("aborted")
        for number in range(3):
            await send(life, client, LOW, f"plain {number}")
            await send(life, client, LOW, f"never {number}", client.txns["aborted"])
            await life.quiet()
        await client.end("aborted", commit=False)
        segment = await life.segment(PARENT)
        while segment.buffer.aborted_count == 0:
            await segment.changed.wait()
        await life.quiet()
        await send(life, client, LOW, "kept")
        client.answers["before"] = segment.buffer.last_durable

    async def act(self, life: Life, client: Client) -> None:
        segment = await life.segment(PARENT)
        await client.once("trim", lambda: trim(segment, life.store, life.storage, client.answers["before"]))


class Retain(Trim):
    """A policy drops the ledgers in which everything is old, and closes the open one."""

    async def prepare(self, life: Life, client: Client) -> None:
        await super().prepare(life, client)
        await life.quiet()
        life.world._time_ms = count(10_000_000)
        await send(life, client, LOW, "young")
        await life.quiet()
        await life.broker.policies.change_topic(TOPIC, {"retention_ms": 5_000_000, "retention": "hard"})

    async def act(self, life: Life, client: Client) -> None:
        await life.layout.retention.look()


class Remove(Merge):
    """Three sealed segments in two layers, trimmed, with sequences, cursors and aborted entries, go one after another;
    the first one is the home of the subscription."""

    subscriptions = ("s",)

    async def prepare(self, life: Life, client: Client) -> None:
        await super().prepare(life, client)
        await subscribed(life, client)
        await acknowledge(life, client, None)
        await super().act(life, client)
        await client.end("aborted", commit=False)
        await carried_out(life, client.txns.values())

    async def act(self, life: Life, client: Client) -> None:
        for segment_id in (PARENT, LOWER, UPPER):
            if (segment := life.broker.served.get(segment_id)) is not None:
                await trim(segment, life.store, life.storage, segment.ledgers.last_durable.next)
        while len((await life.broker.topics.get(TOPIC)).topic.segments) > 1:
            await life.layout.removal.look()


class Index(Story):
    """What is hidden in full ledgers moves from outcomes into indexes: of aborted transactions, one of which goes on in
    the open ledger. As these ledgers are mostly hidden, they are rewritten without it."""

    async def prepare(self, life: Life, client: Client) -> None:
        await created(life)
        await client.begin("over")
        for name in ("first", "second"):
            await client.begin(name)
            await send(life, client, LOW, f"plain {name}")
            await send(life, client, LOW, f"never {name}", client.txns[name])
            await send(life, client, LOW, f"over {name}", client.txns["over"])
            await client.end(name, commit=False)
            await self.roll(life)
        await send(life, client, LOW, "never", client.txns["over"])
        await client.end("over", commit=False)
        segment = await life.segment(PARENT)
        while len(segment.buffer.outcomes()) < len(client.txns):
            await segment.changed.wait()

    async def roll(self, life: Life) -> None:
        segment = await life.segment(PARENT)
        assert segment.on_full is not None
        await segment.on_full()

    async def act(self, life: Life, client: Client) -> None:
        segment = await life.segment(PARENT)
        while len(segment.buffer.outcomes()) > 1:
            segment.tend()
            await life.quiet()
        assert set(segment.buffer.outcomes()) <= {client.txns["over"]}
        assert all(segment.hidden.is_indexed(ledger.id) for ledger in segment.record.ledgers[:2])
        while any(ledger.form is None or ledger.former for ledger in segment.record.ledgers[:2]):
            segment.tend()
            await life.quiet()


class Compact(Story):
    """The latest value of each key stays: over two full ledgers, with a deletion that is old, and a subscription."""

    subscriptions = ("s",)

    async def prepare(self, life: Life, client: Client) -> None:
        await created(life)
        await subscribed(life, client)
        segment = await life.segment(PARENT)
        for number in range(2):
            await send(life, client, HIGH, f"deleted {number}")
            await send(life, client, LOW, f"replaced {number}")
        assert segment.on_full is not None
        await segment.on_full()
        await life.messages.publish(TOPIC, [Message(key=HIGH, value=None)], PublishOptions(None, None, None))
        await send(life, client, LOW, "stays")
        await segment.on_full()
        client.answers["end"] = segment.ledgers.sealed[-1].last
        await life.broker.policies.change_topic(TOPIC, {"cleanup": "compact", "delete_retention_ms": 0})

    async def act(self, life: Life, client: Client) -> None:
        segment = await life.segment(PARENT)
        while (done := segment.record.compaction) is None or Position.parse(done.through) < client.answers["end"]:
            await life.layout.retention.look()
            segment.tend()
            await life.quiet()


class DropEmpty(Index):
    """Nothing is left of two full ledgers between others: of one everything is replaced, of the other one aborted."""

    subscriptions = ("s",)

    async def prepare(self, life: Life, client: Client) -> None:
        await created(life)
        await subscribed(life, client)
        await send(life, client, HIGH, "first")
        await self.roll(life)
        await send(life, client, LOW, "replaced")
        await self.roll(life)
        await client.begin("aborted")
        await send(life, client, LOW, "never", client.txns["aborted"])
        await client.end("aborted", commit=False)
        await carried_out(life, client.txns.values())
        await self.roll(life)
        await send(life, client, LOW, "stays")
        await self.roll(life)
        await life.broker.policies.change_topic(TOPIC, {"cleanup": "compact"})

    async def act(self, life: Life, client: Client) -> None:
        segment = await life.segment(PARENT)
        while {2, 3} & {ledger.id for ledger in segment.record.ledgers}:
            await life.layout.retention.look()
            segment.tend()
            await life.quiet()

    async def end(self, life: Life, client: Client) -> None:
        (record,) = (await life.records()).values()
        assert [ledger.id for ledger in record.ledgers][:2] == [1, 4] and record.first_position == "0:-1"
        await super().end(life, client)


class DeleteTopic(Merge):
    """Layers of segments, outcomes, sequences, a subscription with acknowledgements, and an open transaction."""

    async def prepare(self, life: Life, client: Client) -> None:
        await super().prepare(life, client)
        await subscribed(life, client)
        await client.begin("acking")
        await acknowledge(life, client, "acking")
        await client.end("aborted", commit=False)

    async def act(self, life: Life, client: Client) -> None:
        await client.once("delete", lambda: life.layout.deletion.delete(TOPIC))


class ForgetTopic(DeleteTopic):
    """And create it again: its segments and its subscription have other numbers."""

    async def prepare(self, life: Life, client: Client) -> None:
        await super().prepare(life, client)
        await super().act(life, client)
        client.txns.pop("acking")  # it lost its operation with the topic

    async def act(self, life: Life, client: Client) -> None:
        await life.layout.forgetting.forget_due(life.world.now_ms())
        await client.once("create", lambda: self._create(life))
        await subscribed(life, client)
        await send(life, client, LOW, "of the next topic")

    async def _create(self, life: Life) -> None:
        with contextlib.suppress(errors.AlreadyExists):  # by who has died
            await created(life)
        await life.serving()

    async def end(self, life: Life, client: Client) -> None:
        await super().end(life, client)
        first = FirstNumber.decode((await life.world.store.inner.scan(paths.FIRST_NUMBER)).records[0].value).number
        topic = await life.broker.topics.get(TOPIC)
        assert first == 3, "the topic had three segments"
        assert [number_of_segment(each) for each in topic.topic.segments] == [first]


async def subscribed(life: Life, client: Client) -> None:
    record = SubscriptionRecord(incarnation=1, type="shared", initial="earliest", created_ms=life.world.now_ms())
    await life.subscriptions.create(TOPIC, "s", record)


async def acknowledge(life: Life, client: Client, txn: str | None) -> None:
    """A message of its own, in that transaction or for good; also when the broker that gave it is dead."""

    async def receive_and_acknowledge() -> None:
        ids = await client.once(f"received for {txn}", lambda: received(life))
        txn_id = client.txns[txn] if txn is not None else None
        await life.subscriptions.acknowledge(TOPIC, "s", AckRequest(ids, txn_id=txn_id, for_all=True))

    await client.once(f"acknowledge in {txn}", receive_and_acknowledge)


async def received(life: Life) -> list[MessageId]:
    given = (await (await life.subscriptions.at_home(TOPIC, "s")).receive("c", 1, 0)).messages
    assert given
    return [MessageId.parse(each.message.message_id) for each in given]


class Acknowledge(Story):
    """For good, in a transaction that commits, in one that aborts."""

    subscriptions = ("s",)

    async def prepare(self, life: Life, client: Client) -> None:
        await created(life)
        await subscribed(life, client)
        for number in range(4):
            await send(life, client, LOW, str(number))
        for name in ("committed", "aborted"):
            await client.begin(name)
        for txn in (None, "committed", "aborted"):
            await client.once(f"received for {txn}", lambda: received(life))

    async def act(self, life: Life, client: Client) -> None:
        for name in (None, "committed", "aborted"):
            await acknowledge(life, client, name)
        await client.end("committed", commit=True)
        await client.end("aborted", commit=False)


class Expire(Acknowledge):
    """By a TTL, on both sides of what an open transaction has acknowledged, which expires once that is aborted."""

    async def prepare(self, life: Life, client: Client) -> None:
        await super().prepare(life, client)
        await acknowledge(life, client, "aborted")
        life.world._time_ms = count(10_000_000)
        await send(life, client, LOW, "young")
        await life.broker.policies.change_topic(TOPIC, {"ttl_ms": 5_000_000})

    async def act(self, life: Life, client: Client) -> None:
        await life.layout.retention.look()
        await client.end("aborted", commit=False)
        await carried_out(life, [client.txns["aborted"]])
        await life.layout.retention.look()


class GiveUp(Story):
    """A message that was delivered too often has a dead letter and is acknowledged, in a transaction of the broker. One
    whose broker has died ends by its timeout."""

    subscriptions = ("s",)
    topics = (TOPIC, DEAD)

    async def prepare(self, life: Life, client: Client) -> None:
        await created(life)
        topic = await life.broker.topics.create(DEAD, 1, None, life.storage.storage_id, life.world.now_ms())
        await life.broker.until_opened(topic.segments)
        wanted = SubscriptionRecord(
            incarnation=1, type="shared", initial="earliest", created_ms=0, dead_letter_topic=DEAD, max_redeliveries=1
        )
        await client.once("subscribed", lambda: life.subscriptions.create(TOPIC, "s", wanted))
        for key in (LOW, HIGH):
            await send(life, client, key, key)

    async def act(self, life: Life, client: Client) -> None:
        await time_out(life)
        for _ in range(3):
            await (await life.subscriptions.at_home(TOPIC, "s")).receive("c", 100, 0)
            await life.subscriptions.redeliver(TOPIC, "s", None)
            await carried_out(life, [])


async def time_out(life: Life) -> None:
    """What was begun by the one who is dead."""
    late = Transactions(life.store, lambda: life.world.now_ms() + MAX_TIMEOUT_MS)
    await TimeoutSweep(late, max_clock_skew_ms=0).sweep_once()


class DeleteSubscription(Acknowledge):
    async def prepare(self, life: Life, client: Client) -> None:
        await super().prepare(life, client)
        await acknowledge(life, client, None)
        await acknowledge(life, client, "committed")

    async def act(self, life: Life, client: Client) -> None:
        await client.once("delete", lambda: life.subscriptions.drop(TOPIC, "s"))


class Seek(Acknowledge):
    """To a revision at which a transaction was open that lies between others, away from what is acknowledged for good,
    and in a transaction, which it aborts. What is acknowledged afterwards is so for good."""

    async def prepare(self, life: Life, client: Client) -> None:
        await created(life)
        await subscribed(life, client)
        for number in range(2):
            for name in ("late", "early"):
                await send(life, client, LOW, f"{name} {number}", await client.begin(name))
        await client.end("early", commit=True)
        client.answers["revision"] = await life.store.current_revision()
        await client.end("late", commit=True)
        await carried_out(life, client.txns.values())
        await client.begin("open")
        for txn in (None, "open"):
            await acknowledge(life, client, txn)

    async def act(self, life: Life, client: Client) -> None:
        target = Target(revision=client.answers["revision"])
        await client.once("seek", lambda: life.subscriptions.seek(TOPIC, "s", target, force=True))
        client.answers["end open"] = "by the seek"
        ids = await client.once("received", lambda: received(life))
        await client.once(
            "acknowledge", lambda: life.subscriptions.acknowledge(TOPIC, "s", AckRequest(ids, for_all=True))
        )

    async def end(self, life: Life, client: Client) -> None:
        await super().end(life, client)
        await carried_out(life, client.txns.values())
        store = life.world.store.inner
        record = await store.get(paths.subscription(TOPIC, "s"))
        assert record is not None
        current = paths.cursor(PARENT, "s", SubscriptionRecord.decode(record.value).incarnation)
        cursors = (await store.scan(paths.cursors(PARENT, "s"))).records
        assert cursors and all(each.key.startswith(current) for each in cursors), "of the last incarnation alone"
        served = await life.subscriptions.at_home(TOPIC, "s")
        assert [each.message.value for each in (await served.receive("other", 9, 0)).messages] == ["late 1"]
        served.leave("other")


class Recover(Publish):
    """A broker that starts dies: with transactions decided meanwhile, and ledgers that were full, empty, and torn."""

    opening = True
    max_ledger_bytes = Roll.max_ledger_bytes
    subscriptions = ("s",)

    async def prepare(self, life: Life, client: Client) -> None:
        await super().prepare(life, client)
        await subscribed(life, client)
        for number in range(2):
            await send(life, client, LOW, f"acknowledged {number}")
        for number in range(2):
            await send(life, client, LOW, f"plain {number}")
            for name, txn in client.txns.items():
                await send(life, client, LOW, f"{name} {number}", txn)
        for txn_name in ("committed", "aborted"):
            await acknowledge(life, client, txn_name)
        await life.layout.split(PARENT, None)
        await send(life, client, HIGH, "in a child", client.txns["committed"])

    async def between(self, client: Client) -> None:
        await client.end("committed", commit=True)
        await client.end("aborted", commit=False)

    async def act(self, life: Life, client: Client) -> None:
        await send(life, client, HIGH, "after")


class Begin(Story):
    """Under a transaction key, begun again by the one who was not answered, and without one; each writes, one commits.
    What was begun for nobody ends by its timeout, and no header is left of anything."""

    async def prepare(self, life: Life, client: Client) -> None:
        await created(life)

    async def act(self, life: Life, client: Client) -> None:
        transactions = life.transactions
        connect = ConnectRequest(epoch=-1)
        epoch = (await client.once("connect", lambda: transactions.keys.connect("k", connect))).epoch
        keyed = BeginRequest(transaction_key="k", epoch=epoch, version=1)
        for name, request in (("keyed", keyed), ("plain", BeginRequest())):
            begun = await client.once(f"begin {name}", functools.partial(transactions.begin, request))
            client.txns[name] = begun.txn_id
            await send(life, client, LOW, f"in {name}", client.txns[name])
        headers = [Header.decode(record.value) for record in (await life.world.store.inner.scan(paths.HEADERS)).records]
        assert [header.state for header in headers if header.key == "k"] in (["OPEN"], ["COMMITTED"]), "begun once"
        await client.once("end keyed", lambda: transactions.commit(client.txns["keyed"]))
        again = await transactions.begin(keyed)
        assert not again.created and again.txn["already_committed"]

    async def end(self, life: Life, client: Client) -> None:
        await super().end(life, client)
        late = Transactions(life.store, lambda: life.world.now_ms() + MAX_TIMEOUT_MS)
        await TimeoutSweep(late, max_clock_skew_ms=0).sweep_once()
        await carried_out(life, client.txns.values())
        await GcSweep(life.store, late.clock, late.metrics, retention_ms=0).collect_once()
        assert not (await life.world.store.inner.scan(paths.HEADERS)).records


ENDS = {"plain": True, "remembered": True, "prepared": True, "aborted": False, "late": False}
"""By name: whether it commits."""


class End(Story):
    """By a coordinator, in every way, and again by the one who was not answered: committed, with remembered writers,
    kept alive and prepared before; aborted; and timed out. Carried out by the broker."""

    async def prepare(self, life: Life, client: Client) -> None:
        await created(life)
        for name in ENDS:
            client.txns[name] = (await life.transactions.begin(BeginRequest())).txn_id
            await send(life, client, LOW, f"in {name}", client.txns[name])

    async def act(self, life: Life, client: Client) -> None:
        transactions, txns = life.transactions, client.txns
        await client.once("remember", lambda: transactions.add_writers(txns["remembered"], ["w"]))
        await client.once("keep alive", lambda: transactions.keep_alive(txns["prepared"], MAX_TIMEOUT_MS))
        await client.once("prepare", lambda: transactions.prepare(txns["prepared"]))
        for name in ("plain", "remembered", "prepared"):
            await client.once(f"end {name}", functools.partial(transactions.commit, txns[name]))
        await client.once("end aborted", lambda: transactions.abort(txns["aborted"]))
        late = Transactions(life.store, lambda: life.world.now_ms() + MAX_TIMEOUT_MS)
        await client.once("end late", TimeoutSweep(late, max_clock_skew_ms=0).sweep_once)
        await carried_out(life, txns.values())

    async def end(self, life: Life, client: Client) -> None:
        for name, committed in ENDS.items():
            record = await life.world.store.inner.get(paths.header(client.txns[name]))
            assert record is not None
            assert Header.decode(record.value).state == ("COMMITTED" if committed else "ABORTED"), name


class Materialize(Story):
    """Decisions are carried out, each in slices: on entries, on those of writers that do not count, and on
    acknowledgements."""

    subscriptions = ("s",)

    async def prepare(self, life: Life, client: Client) -> None:
        await created(life)
        await subscribed(life, client)
        segment = await life.segment(PARENT)
        for name in ("committed", "aborted"):
            await client.begin(name)
            await send(life, client, LOW, f"acknowledged in {name}")
            await acknowledge(life, client, name)
        for number in range(2):
            for name, txn in client.txns.items():
                for writer in ("good", "void"):
                    message = Message(key=LOW, value=f"{name} {number} of {writer}")
                    payload = encode_messages([message])
                    await segment.publish(Entry(payload, PayloadKind.MESSAGES, 1, txn, writer, None, number))

    async def act(self, life: Life, client: Client) -> None:
        await client.once("end committed", lambda: client.world.commit(client.txns["committed"], ["good"]))
        await client.end("aborted", commit=False)
        await carried_out(life, client.txns.values())


class Collect(Publish):
    """The headers of what is decided and carried out go, those of what is open stay; what was hidden stays hidden."""

    async def prepare(self, life: Life, client: Client) -> None:
        await super().prepare(life, client)
        await super().act(life, client)
        await carried_out(life, [client.txns["committed"], client.txns["aborted"]])
        last = await life.world.store.inner.get(paths.header(client.txns["aborted"]))
        assert last is not None
        client.answers["last decision"] = last.version

    async def act(self, life: Life, client: Client) -> None:
        await client.once("collect", life.gc_sweep.collect_once)
        left = (await life.world.store.inner.scan(paths.HEADERS)).records
        assert [record.key for record in left] == [paths.header(client.txns["open"])]

    async def end(self, life: Life, client: Client) -> None:
        segment = await life.segment(PARENT)
        with pytest.raises(errors.MetatxnError, match="too old"):
            await segment.reader.read_snapshot(segment.ledgers.start, 1, client.answers["last decision"] - 1)
        await super().end(life, client)


class Stop(Publish):
    """A broker that stops in order, with transactions open: what it can it gives up for others to take."""

    stopping = True

    async def act(self, life: Life, client: Client) -> None:
        for name, txn in client.txns.items():
            await send(life, client, LOW, f"{name} 0", txn)

    async def end(self, life: Life, client: Client) -> None:
        await client.end("committed", commit=True)
        await super().end(life, client)


class HandOver(Publish):
    """Another broker comes, is given its share of the segments, and goes; transactions stay open meanwhile.

    The one that gives and takes back dies. Shares are by chance, so the steps are not the same in every run.
    """

    async def prepare(self, life: Life, client: Client) -> None:
        await created(life, 4)
        for name in ("committed", "open"):
            await client.begin(name)
            for key in (LOW, HIGH):
                await send(life, client, key, f"{name} {key}", client.txns[name])

    async def act(self, life: Life, client: Client) -> None:
        segments = (await life.broker.topics.get(TOPIC)).topic.segments
        other = await self.second(life, segments)
        try:
            await other.begin()
            brokers = {each.broker.id: each.broker for each in (life, other)}
            goal = {segment: wanted(segment, brokers) for segment in segments}
            while any(set(broker.served) != {s for s in goal if goal[s] == each} for each, broker in brokers.items()):
                await asyncio.sleep(0.001)
        finally:
            await other.end()

    async def second(self, life: Life, segments: Sequence[str]) -> Life:
        """One whose id makes it the owner of some segments."""
        while True:
            other = await Life.create(life.world, life.place, Steps())
            if any(wanted(segment, [life.broker.id, other.broker.id]) == other.broker.id for segment in segments):
                return other
            await other.end()

    async def end(self, life: Life, client: Client) -> None:
        await client.end("committed", commit=True)
        await super().end(life, client)


@pytest.fixture(autouse=True)
def _slices_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done in slices can die between any two of them."""
    for slices in (
        "participants.txn.materializer.OPS_PER_APPLY",
        "participants.segment.trimming.OUTCOMES_PER_APPLY",
        "participants.segment.indexing.OUTCOMES_PER_APPLY",
        "participants.segment.dedup_snapshot.DELETED_PER_APPLY",
        "participants.segment.dedup_snapshot.CHUNK_BYTES",
        "participants.subscription.deletion.RECORDS_PER_APPLY",
        "coordinator.gc_sweep.TOGETHER",
    ):
        monkeypatch.setattr(slices, 1)


STORIES = (
    Begin,
    Publish,
    End,
    Materialize,
    Collect,
    Roll,
    Retain,
    Remove,
    Split,
    Merge,
    Seal,
    Trim,
    Index,
    Compact,
    DropEmpty,
    DeleteTopic,
    ForgetTopic,
    Acknowledge,
    Expire,
    GiveUp,
    Seek,
    DeleteSubscription,
    Recover,
    Stop,
    ClaimTopic,
)


WAYS = [(place, answered) for place in PLACES for answered in (True, False)]
"""Where the ledgers are, and whether the last step is answered before the process dies. `make test` has two for each
story, with both places and both answers; every other story has the other two. `make test-all` has all."""


@pytest.mark.parametrize(
    ("story", "place", "answered"),
    [
        pytest.param(story, place, answered, id=f"{story.__name__}-{place}-{'answered' if answered else 'unanswered'}")
        for number, story in enumerate(STORIES)
        for turn, (place, answered) in enumerate(WAYS)
        if usually((turn in (0, 3)) == (number % 2 == 0), True)
    ],
)
async def test_every_interrupted_prefix_ends_as_the_whole(
    story: type[Story], place: str, answered: bool, tmp_path: Path
) -> None:
    assert await every_prefix(story, place, tmp_path, answered=answered) > 1


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "unanswered"])
async def test_every_interrupted_prefix_of_a_hand_over(answered: bool, tmp_path: Path) -> None:
    assert await every_prefix(HandOver, "objects", tmp_path, answered=answered, elsewhere=False) > 1
