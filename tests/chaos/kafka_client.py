"""A process of Kafka's clients until SIGTERM, or until it is killed: `… kafka_client SERVERS DIRECTORY NAME SEED`.

    Feeder     sends inputs by an idempotent producer, patiently, or one at a time and only for a while
    Member     of a group: writes an output for each input, with its offsets in the same transaction
    Twin       a member with the transactional id of another: each fences the other one, and this one rests in between
    Reader     reads on and on what is committed, by its own partitions

All are programs of confluent-kafka. Each begins anew where the group is after what it is told not to recover from, as
the library's manual says. What it was asked and told is written down as that of the other clients (`client.py`).
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.chaos.client import Ledger, end_process
from tests.chaos.schedule import FEEDER, MEMBERS, TWIN
from tests.histories.calls import Outcome, Recorder
from tests.histories.messages.consumption import KAFKA_INPUTS, KAFKA_OUTPUTS

PARTITIONS = 4
"""Of the inputs, and of the outputs."""
GROUP = "transformers"
SESSION_MS = 6_000
TRANSACTION_TIMEOUTS_MS = (2_000, 10_000, 30_000)
"""Shorter than the session, and longer: one who comes back late may find its transaction open, and its place taken."""
IMPATIENT_MS = (1_000, 4_000)
PATIENCE_S = 20.0
ATTEMPTS = 3
"""At a commit that has not been answered."""
FLUSH_S = 1.0
POLL_S = 0.5
PAUSE_S = 0.1
DAWDLE_S = 4.0
REST_S = 8.0
"""Of the twin, after it was fenced or has failed."""
JSON = [("content-type", b"application/json")]
COMMITTED = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "fetch.wait.max.ms": 100,
}
"""Settings of consumers."""

T = TypeVar("T")


class Scribe:
    """Writes the calls of one actor down. A message's id is the name of its actor and a number."""

    def __init__(self, recorder: Recorder, actor: str) -> None:
        self._recorder = recorder
        self._actor = actor
        self._numbers = itertools.count()

    def call(self, action: dict[str, Any], do: Callable[[], T], told: Callable[[T], Any] = lambda _: None) -> T:
        """`told` gives what is kept of the answer. Whatever has failed may have been done all the same."""
        call = self._recorder.invoke(self._actor, action)
        try:
            answer = do()
        except KafkaException as error:
            self._recorder.answer(call, self._actor, Outcome.UNKNOWN, told_by(error.args[0]))
            raise
        self._recorder.answer(call, self._actor, Outcome.OK, told(answer))
        return answer

    def send(
        self, producer: Producer, topic: str, partition: int, txn: str | None = None, of: str | None = None
    ) -> None:
        name = f"{self._actor}.{next(self._numbers)}"
        parts = {"id": name, "topic": topic, "key": str(partition), "txn": txn, "amount": 0, "of": of}
        call = self._recorder.invoke(self._actor, {"do": "write", **parts})
        answered = partial(self._answered, call)
        value = json.dumps({"id": name})
        try:
            producer.produce(topic, value, str(partition), partition, on_delivery=answered, headers=JSON)
        except KafkaException as error:
            self._recorder.answer(call, self._actor, Outcome.UNKNOWN, told_by(error.args[0]))
            raise

    def _answered(self, call: str, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._recorder.answer(call, self._actor, Outcome.UNKNOWN, told_by(error))
        else:
            self._recorder.answer(call, self._actor, Outcome.OK, message.offset())

    def told(self, action: dict[str, Any], error: KafkaError) -> None:
        """Of an error that came by itself."""
        call = self._recorder.invoke(self._actor, action)
        self._recorder.answer(call, self._actor, Outcome.UNKNOWN, told_by(error))


def told_by(error: KafkaError) -> str:
    return f"Kafka {error.name()}: {error.str()}"


class Actor(ABC):
    """Does its `turn` again and again; what the brokers refuse ends a turn, and nothing else may."""

    pause_s = PAUSE_S

    def __init__(self, servers: str, name: str, recorder: Recorder, dice: Random) -> None:
        self.name = name
        self.dice = dice
        self.scribe = Scribe(recorder, name)
        self.recorder = recorder
        self._servers = servers

    def settings(self, more: dict[str, Any]) -> dict[str, Any]:
        """Of a client. One that cannot connect tries again so soon that faults of seconds are over for it, too."""
        always = {"client.id": self.name, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 500}
        return {"bootstrap.servers": self._servers, **always, **more}

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(self.dice.expovariate(1 / self.pause_s)):
            self.quietly(self.turn)
        self.quietly(self.leave)

    def quietly(self, do: Callable[[], object]) -> None:
        try:
            do()
        except KafkaException as error:
            self.say(told_by(error.args[0]))

    def say(self, what: str) -> None:
        print(f"{self.name}: {what}", flush=True)  # noqa: T201  into the log

    @abstractmethod
    def turn(self) -> None: ...

    @abstractmethod
    def leave(self) -> None:
        """In the end, when all is calm."""


class Feeder(Actor):
    """A patient one waits for the answer, however long that takes, and has many messages under way. Another one gives a
    message up after a while, and goes on in the next epoch; it has only one under way, since what else there was may be
    sent again then, by the library, and be there twice."""

    _producer: Producer | None = None

    def turn(self) -> None:
        if self._producer is None or self.dice.random() < 0.03:
            self._begin()
        assert self._producer is not None
        for _ in range(self.dice.choice((1, 5, 20)) if self._patient else 1):
            self.scribe.send(self._producer, KAFKA_INPUTS, self.dice.randrange(PARTITIONS))
        while self._producer.flush(FLUSH_S):
            pass
        if self._failed:
            self._producer = None

    def leave(self) -> None:
        self._producer = None

    def _begin(self) -> None:
        self._patient = self.dice.random() < 0.7
        self._failed = False
        self._producer = Producer(
            self.settings(
                {
                    "enable.idempotence": True,
                    "linger.ms": self.dice.choice((0, 5)),
                    "message.timeout.ms": 0 if self._patient else self.dice.choice(IMPATIENT_MS),
                    "error_cb": self._heard,
                }
            )
        )

    def _heard(self, error: KafkaError) -> None:
        if error.fatal():
            self._failed = True
            self.scribe.told({"do": "fail"}, error)


class Member(Actor):
    """It has its inputs from the last position of the group: after an abort it goes back there, or begins anew."""

    pause_s = 0.02
    abort = 0.1
    dawdle = 0.05
    """How often a transaction takes longer, maybe too long, so that what befalls a member finds it inside one."""

    def __init__(self, servers: str, name: str, recorder: Recorder, dice: Random, transactional_id: str) -> None:
        super().__init__(servers, name, recorder, dice)
        self._transactional_id = transactional_id
        self._producers = itertools.count()
        self._transactions = itertools.count()
        self._producer: Producer | None = None
        self.consumer: Consumer | None = None
        self.passed = 0
        """How many inputs it has passed with its group."""
        self._given: list[Message] = []
        """What it has of its present partitions, and has not transformed."""
        self._membership: bytes | None = None
        """The member and generation to which these were assigned. A consumer that has been frozen names no member once
        it has noticed that its session is over, and what it was given before may belong to others by then."""

    def turn(self) -> None:
        try:
            if self._producer is None:
                self._begin()
            self._receive()
            if self._given and self._membership is None:
                self.begin_anew()
            elif self._given and self._membership is not None:
                self._transform(self._given, self._membership)
        except KafkaException:
            self.begin_anew()
            raise

    def begin_anew(self) -> None:
        self._producer = None
        self.leave()

    def leave(self) -> None:
        consumer, self.consumer, self._membership, self._given = self.consumer, None, None, []
        if consumer is not None:
            consumer.close()

    def _begin(self) -> None:
        self._timeout_ms = self.dice.choice(TRANSACTION_TIMEOUTS_MS)
        name = f"{self.name}.p{next(self._producers)}"
        producer = Producer(
            self.settings(
                {
                    "transactional.id": self._transactional_id,
                    "transaction.timeout.ms": self._timeout_ms,
                    "linger.ms": 0,
                }
            )
        )
        action = {"do": "init", "producer": name, "transactional_id": self._transactional_id}
        self.scribe.call(action, lambda: producer.init_transactions(PATIENCE_S))
        self._producer, self._producer_name = producer, name
        self.consumer = Consumer(
            self.settings(
                {
                    **COMMITTED,
                    "group.id": GROUP,
                    "session.timeout.ms": SESSION_MS,
                    "heartbeat.interval.ms": 1_000,
                    "max.poll.interval.ms": 30_000,
                }
            )
        )
        self.consumer.subscribe([KAFKA_INPUTS], on_assign=self._assigned, on_revoke=self._revoked)

    def _assigned(self, consumer: Consumer, _: Sequence[TopicPartition]) -> None:
        membership = consumer.consumer_group_metadata()
        self._membership = None if is_of_nobody(membership) else membership

    def _revoked(self, _: Consumer, __: Sequence[TopicPartition]) -> None:
        self._membership = None
        self._given.clear()

    def _receive(self) -> None:
        """One by one, so that what was given before partitions were revoked can be told from what comes after."""
        assert self.consumer is not None
        most, self._given = self.dice.choice((1, 5, 50)), []
        while len(self._given) < most and (found := self.consumer.poll(0 if self._given else POLL_S)) is not None:
            if (error := found.error()) is not None:
                self.scribe.told({"do": "receive"}, error)
                raise KafkaException(error)
            self._given.append(found)

    def _transform(self, messages: Sequence[Message], membership: bytes) -> None:
        producer = self._producer
        assert producer is not None
        txn = f"{self._producer_name}.t{next(self._transactions)}"
        begin = {"do": "begin", "timeout_ms": self._timeout_ms, "producer": self._producer_name}
        self.scribe.call(begin, producer.begin_transaction, lambda _: txn)
        behind: dict[int, TopicPartition] = {}
        try:
            for each in messages:
                self.scribe.send(producer, KAFKA_OUTPUTS, each.partition(), txn, of=json.loads(each.value())["id"])
                behind[each.partition()] = TopicPartition(KAFKA_INPUTS, each.partition(), each.offset() + 1)
            if self.dice.random() < self.dawdle:
                time.sleep(self.dice.uniform(0, DAWDLE_S))
            offsets = {"do": "offsets", "txn": txn}
            places = list(behind.values())
            self.scribe.call(offsets, lambda: producer.send_offsets_to_transaction(places, membership, PATIENCE_S))
            if self.dice.random() >= self.abort:
                self._commit(producer, txn)
                self.passed += len(messages)
                return
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.say(told_by(error.args[0]))
        self._end(producer, txn, commit=False)
        self._go_back(messages)

    def _commit(self, producer: Producer, txn: str) -> None:
        for attempt in itertools.count(1):
            try:
                self._end(producer, txn, commit=True)
                return
            except KafkaException as error:
                if attempt == ATTEMPTS or not error.args[0].retriable():
                    raise

    def _end(self, producer: Producer, txn: str, *, commit: bool) -> None:
        end = producer.commit_transaction if commit else producer.abort_transaction
        self.scribe.call({"do": "end", "txn": txn, "commit": commit}, lambda: end(PATIENCE_S))

    def _go_back(self, messages: Sequence[Message]) -> None:
        """To the inputs of a transaction that was aborted."""
        assert self.consumer is not None
        if self.dice.random() < 0.3:
            self.begin_anew()
            return
        first = {each.partition(): each.offset() for each in reversed(messages)}
        for partition, offset in first.items():
            self.consumer.seek(TopicPartition(KAFKA_INPUTS, partition, offset))


class Twin(Member):
    """A zombie for most of its life: the other one fences it at once."""

    def begin_anew(self) -> None:
        super().begin_anew()
        self.pause_s = REST_S

    def _begin(self) -> None:
        self.pause_s = Member.pause_s
        super()._begin()


def is_of_nobody(membership: bytes) -> bool:
    """Whether the consumer is in no generation: brokers take its offsets unseen, as those of a client without a
    group."""
    return membership.startswith(b"CGMDv2:\xff\xff\xff\xff")


class Reader(Actor):
    pause_s = 1.0

    def __init__(self, servers: str, name: str, recorder: Recorder, dice: Random, topic: str = KAFKA_OUTPUTS) -> None:
        super().__init__(servers, name, recorder, dice)
        self._topic = topic
        self.ended: set[int] = set()
        """The partitions whose end it has seen."""
        self._consumer = Consumer(
            self.settings({**COMMITTED, "group.id": "none", "enable.partition.eof": True, "check.crcs": True})
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])

    def turn(self) -> None:
        call = self.recorder.invoke(self.name, {"do": "read", "reader": self.name, "topic": self._topic})
        self.recorder.answer(call, self.name, Outcome.OK, self.read())

    def read(self) -> list[tuple[str, str]]:
        """What comes within a moment, as (key, id)."""
        seen: list[tuple[str, str]] = []
        for each in self._consumer.consume(500, POLL_S):
            error = each.error()
            if error is None:
                seen.append((each.key().decode(), json.loads(each.value())["id"]))
            elif error.code() == KafkaError._PARTITION_EOF:
                self.ended.add(each.partition())
            else:
                self.scribe.told({"do": "receive"}, error)
        return seen

    def leave(self) -> None:
        self.turn()
        self._consumer.close()


def actors(name: str, life: str, servers: str, recorder: Recorder, dice: Random) -> list[Actor]:
    """Of the process of this name, in this life of it."""
    if name == FEEDER:
        feeders = [Feeder(servers, f"{life}-{number}", recorder, Random(dice.random())) for number in range(2)]
        readers = [Reader(servers, f"{life}-{topic}", recorder, dice, topic) for topic in (KAFKA_INPUTS, KAFKA_OUTPUTS)]
        return [*feeders, *readers]
    if name == TWIN:
        return [Twin(servers, life, recorder, dice, MEMBERS[0])]
    return [Member(servers, life, recorder, dice, name)]


def main(servers: str, directory: str, name: str, seed: str) -> None:
    life = f"{name}-{uuid.uuid4().hex[:6]}"
    dice = Random(f"{seed} {name} {len(list(Path(directory).iterdir()))}")
    recorder = Recorder(Ledger(Path(directory) / f"{life}.jsonl").take, life, time.monotonic_ns)
    threading.excepthook = end_process
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    at_work = actors(name, life, servers, recorder, dice)
    threads = [threading.Thread(target=each.run, args=(stop,), name=each.name) for each in at_work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
