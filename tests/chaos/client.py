"""A process of clients until SIGTERM, or until it is killed: `python -m tests.chaos.client URLS DIRECTORY NAME SEED`.

    Teller      transfers between accounts over three topics, two to six entries that sum up to zero; commits, aborts,
                leaves to the timeout, or lets a rival end the same transaction at the same moment
    Clerk       puts orders, plain or in a transaction
    Worker      takes orders and writes a bill for each, with the acknowledgement in the same transaction
    Author      appends to keyed logs, several at a time, plain or in a transaction
    Auditor     reads the whole bank at one revision, with or without holding it there
    Follower    reads a topic on and on
    Surveyor    splits segments, and merges neighbours

Each has a client of the library for itself, and writes down every call before it is made and after it was answered.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import metatxn
from metatxn import Message
from tests.bounds import applied, drawn
from tests.histories.calls import Outcome, Recorder
from tests.histories.messages.consumption import INPUTS, OUTPUTS

BANK = ["bank0", "bank1", "bank2"]
LOG = "log"
SUBSCRIPTION = "work"
ACCOUNTS = 10
KEYS = 4
PATIENCE_S = 10.0
"""How long the library tries each request."""
TIMEOUT_MS = (3_000, 15_000, 30_000)
PAUSE_S = 0.3
READING_PAUSE_S = 2.0
SURVEYING_PAUSE_S = 8.0
HELD_FOR_S = 3_000.0
"""Longer than a snapshot takes, and than faults that keep a hold from being prolonged."""
TELL_EVERY = 100
"""This many messages of a long read: anyone who waits for its end sees that it goes on."""
MOST_SEGMENTS = 3
"""Of a topic at once."""

T = TypeVar("T")


class Scribe:
    """Writes the calls of one actor down. A message's id is the name of its actor and a number."""

    def __init__(self, recorder: Recorder, actor: str) -> None:
        self._recorder = recorder
        self._actor = actor
        self._numbers = itertools.count()

    def call(self, action: dict[str, Any], do: Callable[[], T], told: Callable[[T], Any] = lambda _: None) -> T:
        """`told` gives what is kept of the answer."""
        call = self._recorder.invoke(self._actor, action)
        try:
            answer = do()
        except metatxn.MetatxnError as error:
            self._recorder.answer(call, self._actor, *_outcome(error))
            raise
        self._recorder.answer(call, self._actor, Outcome.OK, told(answer))
        return answer

    def send(
        self,
        producer: metatxn.Producer,
        key: str,
        txn: metatxn.Transaction | None = None,
        amount: int = 0,
        of: str | None = None,
    ) -> Future[str]:
        name = f"{self._actor}.{next(self._numbers)}"
        parts = {"id": name, "topic": producer.topic, "key": key, "amount": amount, "of": of}
        call = self._recorder.invoke(self._actor, {"do": "write", **parts, "txn": txn.id if txn else None})
        try:
            future = producer.send({"id": name, "amount": amount}, key, txn)
        except metatxn.MetatxnError as error:
            self._recorder.answer(call, self._actor, *_outcome(error))
            raise
        future.add_done_callback(partial(self._answered, call))
        return future

    def _answered(self, call: str, future: Future[str]) -> None:
        error = future.exception()
        assert error is None or isinstance(error, metatxn.MetatxnError)
        self._recorder.answer(call, self._actor, *(_outcome(error) if error else (Outcome.OK, future.result())))

    def begin(self, client: metatxn.Client, timeout_ms: int) -> metatxn.Transaction:
        action = {"do": "begin", "timeout_ms": timeout_ms}
        return self.call(action, lambda: client.begin(timeout_ms=timeout_ms), lambda txn: txn.id)

    def end(self, txn: metatxn.Transaction, *, commit: bool) -> None:
        action = {"do": "end", "txn": txn.id, "commit": commit}
        self.call(action, txn.commit if commit else txn.abort)


def _outcome(error: metatxn.MetatxnError) -> tuple[Outcome, str]:
    return Outcome.FAILED if error.definite else Outcome.UNKNOWN, f"{type(error).__name__}: {error}"


class Actor(ABC):
    """Does its `turn` again and again; what the services refuse ends a turn, and nothing else may."""

    pause_s = PAUSE_S

    def __init__(self, url: str, name: str, recorder: Recorder, dice: Random) -> None:
        self.name = name
        self.url = url
        self.dice = dice
        self.scribe = Scribe(recorder, name)
        self.client = metatxn.connect(url, request_timeout_s=PATIENCE_S)
        self._producers: dict[str, metatxn.Producer] = {}

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(self.dice.expovariate(1 / self.pause_s)):
            self.quietly(self.turn)

    def quietly(self, do: Callable[[], object]) -> None:
        try:
            do()
        except metatxn.MetatxnError as error:
            print(f"{self.name}: {type(error).__name__}: {error}", flush=True)  # noqa: T201  into the log

    @abstractmethod
    def turn(self) -> None: ...

    def producer(self, topic: str) -> metatxn.Producer:
        if topic not in self._producers:
            self._producers[topic] = self.client.producer(topic, max_entry_messages=self.dice.choice((1, 3, 100)))
        return self._producers[topic]

    def transaction(self, work: Callable[[metatxn.Transaction], object], *, abort: float) -> None:
        """Begin, do the work, and commit; or abort with that probability, and when the work has failed."""
        txn = self.scribe.begin(self.client, self.dice.choice(TIMEOUT_MS))
        commit = self.dice.random() >= abort
        try:
            work(txn)
        except metatxn.MetatxnError:
            self.scribe.end(txn, commit=False)
            raise
        self.scribe.end(txn, commit=commit)


class Teller(Actor):
    def turn(self) -> None:
        fate = self.dice.random()
        if fate < 0.7:
            self.transaction(self._transfer, abort=0.15)
        elif fate < 0.8:
            self._transfer(self.scribe.begin(self.client, TIMEOUT_MS[0]))
        else:
            self._race()

    def _transfer(self, txn: metatxn.Transaction) -> list[Future[str]]:
        given = [self.dice.randint(1, 100) for _ in range(self.dice.choice((1, 1, 1, 2, 5)))]
        sent = []
        for amount in [*given, -sum(given)]:
            account = self.dice.randrange(ACCOUNTS)
            sent.append(self.scribe.send(self.producer(BANK[account % len(BANK)]), str(account), txn, amount))
        return sent

    def _race(self) -> None:
        """Two rivals end one transaction, the same way or not, over different connections."""
        txn = self.scribe.begin(self.client, TIMEOUT_MS[1])
        for written in self._transfer(txn):
            written.result()
        with metatxn.connect(self.url, request_timeout_s=PATIENCE_S) as other:
            same = other.attach(txn.id)
            commit = self.dice.random() < 0.5
            rival = threading.Thread(target=self.quietly, args=[lambda: self.scribe.end(same, commit=commit)])
            rival.start()
            self.quietly(lambda: self.scribe.end(txn, commit=True))
            rival.join()


class Clerk(Actor):
    def turn(self) -> None:
        if self.dice.random() < 0.5:
            self.transaction(self._order, abort=0.3)
        else:
            self._order(None)
            self.producer(INPUTS).flush()

    def _order(self, txn: metatxn.Transaction | None) -> None:
        for _ in range(self.dice.choice((1, 2, 3))):
            self.scribe.send(self.producer(INPUTS), str(self.dice.randrange(KEYS)), txn)


class Worker(Actor):
    """What it was given and did not acknowledge goes back when it comes again as somebody else. So it does after
    every failure, and after a while without orders: another broker may have the segment by now."""

    pause_s = 0.05
    abort = 0.15
    turns_without_orders = 3

    def __init__(self, url: str, name: str, recorder: Recorder, dice: Random) -> None:
        super().__init__(url, name, recorder, dice)
        self._consumer = self.client.consumer(INPUTS, SUBSCRIPTION)
        self.idle = 0

    def run(self, stop: threading.Event) -> None:
        super().run(stop)
        self.leave()

    def leave(self) -> None:
        self.quietly(self._consumer.close)
        self.quietly(self.client.close)

    def turn(self) -> None:
        try:
            orders = self._receive()
            if orders:
                self.transaction(partial(self._bill, orders), abort=self.abort)
        except metatxn.MetatxnError:
            self._begin_again()
            raise
        self.idle = 0 if orders else self.idle + 1
        if self.idle >= self.turns_without_orders:
            self._begin_again()

    def _receive(self) -> list[Message]:
        orders: list[Message] = []
        limit = self.dice.choice((1, 3, 10))
        while len(orders) < limit and (order := self._consumer.receive(0 if orders else 1.0)):
            orders.append(order)
        return orders

    def _bill(self, orders: list[Message], txn: metatxn.Transaction) -> None:
        for order in orders:
            self.scribe.send(self.producer(OUTPUTS), order.key or "", txn, of=order.value["id"])
        self._consumer.acknowledge(orders, txn)

    def _begin_again(self) -> None:
        self.leave()
        self.client = metatxn.connect(self.url, request_timeout_s=PATIENCE_S)
        self._producers.clear()
        self._consumer = self.client.consumer(INPUTS, SUBSCRIPTION)
        self.idle = 0


class Author(Actor):
    def turn(self) -> None:
        if self.dice.random() < 0.5:
            self.transaction(self._append, abort=0.2)
        else:
            self._append(None)
            self.producer(LOG).flush()

    def _append(self, txn: metatxn.Transaction | None) -> None:
        for _ in range(self.dice.choice((1, 4, 12))):
            self.scribe.send(self.producer(LOG), str(self.dice.randrange(KEYS)), txn)


class Observer(Actor):
    """Reads only. Its last turn comes when all is calm, so that at least this one is judged."""

    pause_s = READING_PAUSE_S
    read = 0

    def take(self, message: Message) -> str:
        self.read += 1
        if self.read % TELL_EVERY == 0:
            print(f"{self.name} has read {self.read} messages", flush=True)  # noqa: T201  into the log
        return str(message.value["id"])

    def run(self, stop: threading.Event) -> None:
        super().run(stop)
        self.quietly(self.turn)


class Auditor(Observer):
    """Some snapshots are held: as long as the holds last, none of these may be refused as too old (DESIGN §5.24)."""

    def turn(self) -> None:
        self.scribe.call({"do": "snapshot"}, self._look, lambda seen: seen)

    def _look(self) -> dict[str, list[str]]:
        revision = self.client.cluster().revision
        held: list[metatxn.ReadHold] = []
        if self.dice.random() < 0.5 and hasattr(self.client, "read_hold"):  # which release 0.2.0 has not
            self.quietly(lambda: held.extend(self.client.read_hold(topic, HELD_FOR_S, revision) for topic in BANK))
        try:
            readers = {topic: self.client.reader(topic, isolation="snapshot", revision=revision) for topic in BANK}
            return {topic: [self.take(message) for message in reader] for topic, reader in readers.items()}
        except metatxn.InvalidArgument as error:
            if len(held) == len(BANK):
                raise AssertionError("a snapshot that was held is refused") from error
            raise
        finally:
            for hold in held:
                hold.release()


class Follower(Observer):
    def __init__(self, url: str, name: str, recorder: Recorder, dice: Random) -> None:
        super().__init__(url, name, recorder, dice)
        self._recorder = recorder
        self._readers = {topic: self.client.reader(topic) for topic in (*BANK, LOG, INPUTS, OUTPUTS)}

    def turn(self) -> None:
        topic = self.dice.choice(sorted(self._readers))
        seen: list[tuple[str | None, str]] = []
        call = self._recorder.invoke(self.name, {"do": "read", "reader": self.name, "topic": topic})
        outcome = Outcome.UNKNOWN
        try:
            for message in self._readers[topic]:
                seen.append((message.key, self.take(message)))
            outcome = Outcome.OK
        finally:  # what came before a failure was read all the same
            self._recorder.answer(call, self.name, outcome, seen)


class Surveyor(Actor):
    pause_s = SURVEYING_PAUSE_S
    topics: Sequence[str] = (*BANK, LOG, INPUTS, OUTPUTS)

    def turn(self) -> None:
        topic = self.dice.choice(self.topics)
        active = [segment for segment in self.client.topic(topic).segments if segment.state == "active"]
        active.sort(key=lambda segment: segment.range)
        if len(active) < MOST_SEGMENTS:
            split = self.dice.choice(active).segment
            self.scribe.call({"do": "split", "segment": split}, lambda: self.client.split_segment(split))
        else:
            first = self.dice.randrange(len(active) - 1)
            merged = [segment.segment for segment in active[first : first + 2]]
            self.scribe.call({"do": "merge", "segments": merged}, lambda: self.client.merge_segments(*merged))


ACTORS: list[type[Actor]] = [Teller, Teller, Clerk, Worker, Author, Auditor, Follower, Surveyor]


class Ledger:
    """Whole lines, which outlive the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._lock = threading.Lock()

    def take(self, line: bytes) -> None:
        with self._lock:
            while line:
                line = line[os.write(self._file, line) :]


def end_process(failure: threading.ExceptHookArgs) -> None:
    """What no service can cause: the one who has started us must hear of it."""
    threading.__excepthook__(failure)
    sys.stderr.flush()
    os._exit(1)


def main(urls: str, directory: str, name: str, seed: str, surveyed: str = "") -> None:
    life = f"{name}-{uuid.uuid4().hex[:6]}"
    dice = Random(f"{seed} {name} {len(list(Path(directory).iterdir()))}")
    recorder = Recorder(Ledger(Path(directory) / f"{life}.jsonl").take, life, time.monotonic_ns)
    threading.excepthook = end_process
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threads = []
    kinds: list[type[Actor]] = [*ACTORS, Surveyor] if surveyed else ACTORS
    for number, kind in enumerate(kinds):
        actor = kind(dice.choice(urls.split(",")), f"{life}-{number}", recorder, Random(dice.random()))
        if number == len(ACTORS) and isinstance(actor, Surveyor):
            actor.topics, actor.pause_s = surveyed.split(","), SURVEYING_PAUSE_S / 2
        threads.append(threading.Thread(target=actor.run, args=(stop,), name=actor.name))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    with applied(drawn(sys.argv[4])):
        main(*sys.argv[1:])
