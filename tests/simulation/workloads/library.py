"""Consume, transform, produce, as in `consume`, with the client that people use: `metatxn.connect_async`.

Its retries, its directory of services, its delivery with batches and sequences, its redirects, its transactions and its
consumers with their signs of life run as they are; only the transport below it is the simulated network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from random import Random
from typing import Any

from metatxn import Message
from metatxn.ahead import LEAST_TIMEOUT_MS
from metatxn.carried import NOT_TOLD
from metatxn.client import AsyncClient, connect_async
from metatxn.producer import AsyncProducer
from metatxn.transaction import AsyncTransaction
from metatxn.wire.errors import MetatxnError
from tests.bounds import entry_bounds
from tests.simulation.client import parse_position
from tests.simulation.history import Asked, Begun, End, HandedOut, Outcome, Write
from tests.simulation.transport import SimulatedTransport
from tests.simulation.workloads.base import Actor, Workload
from tests.simulation.workloads.consume import CONSUMERS, PRODUCERS, TIMEOUT_MS, Consume

REQUEST_TIMEOUT_S = 12
LIMIT = 5
IN_A_ROW = 8


class Library(Consume):
    name = "library"

    async def set_up(self) -> None:
        await super().set_up()
        self.receipts = [
            await self.create_topic(name, self.world.generator(name)) for name in ("receipts", "copies of receipts")
        ]

    def start(self) -> None:
        for number in range(PRODUCERS):
            self.employ(f"shop-{number}", Shop)
        for number in range(CONSUMERS):
            self.employ(f"packer-{number}", Packer)
        self.employ("rivals", Rivals)
        self.employ("cashier", Cashier)


class ChangedMind(Exception):
    """The application does not want to commit after all."""


class Told(Exception):
    """What the library has raised is written down, and will be judged."""


class User(Actor):
    """Has a client of its own, for as long as it lives. What it raises and nobody has written down is a mistake."""

    refusals = (Told, ChangedMind)

    def __init__(self, workload: Workload, name: str, random: Random) -> None:
        super().__init__(workload, name, random)
        self.library = self._connect(f"library of {name}")

    def _connect(self, name: str) -> AsyncClient:
        cluster = self.workload.cluster
        transport = SimulatedTransport(cluster.network)
        library = connect_async(
            self.random.choice((*cluster.coordinator_urls, *cluster.broker_urls)),
            request_timeout_s=REQUEST_TIMEOUT_S,
            transport=transport,
            randomness=self.workload.world.generator(name),
        )
        transport.known = lambda: library._connection.directory._urls.get("coordinator", ())
        self.history.stays.append(transport.stays)
        return library

    def outcome_of(self, error: MetatxnError) -> Outcome:
        """What may be believed: a copy that a proxy has made of a request may arrive when the client was refused."""
        certain = error.definite and not self.workload.world.faults.rates.net_duplicated
        return Outcome.FAILED if certain else Outcome.UNKNOWN

    @contextmanager
    def asking(self, verb: str, **about: Any) -> Iterator[Asked]:
        """Write down what is asked for and what comes of it. Raises `Told` for what the library raises."""
        asked = Asked(verb, self.history.revision, **about)
        self.history.asked.append(asked)
        try:
            yield asked
        except MetatxnError as error:
            self.refused(asked, error)
            raise Told from error
        asked.outcome = Outcome.OK

    def refused(self, asked: Asked, error: MetatxnError) -> None:
        if error.definite:
            code = error.code or "UNREACHABLE"
            asked.txn_id = asked.txn_id or error.members.get("txn_id")
            asked.refuse(code, error.detail, error.members, self.outcome_of(error), self.history.revision)

    async def leave(self) -> None:
        with suppress(Told), self.asking("leave"):
            await self.library.close()

    async def begin(self) -> AsyncTransaction:
        by = f"{self.random.getrandbits(64):016x}"
        with self.asking("txns", by=by):
            txn = await self.library.begin(self.random.choice(TIMEOUT_MS), properties={"by": by})
        self.history.answered_begins.append(Begun(txn.id, by, ((txn.header and txn.header.properties) or {}).get("by")))
        return txn

    async def put(self, producer: AsyncProducer, key: str, txn: AsyncTransaction | None = None) -> asyncio.Future[str]:
        """Send a message and write down what comes of it, whenever that is."""
        write, asked = self._about_to_write(producer, key, txn.id if txn else None)
        try:
            sent = await producer.send(_message(write), key=key, txn=txn)
        except MetatxnError as error:
            write.outcome = self.outcome_of(error)
            self.refused(asked, error)
            raise Told from error
        sent.add_done_callback(partial(self._delivered, write, asked))
        return sent

    async def put_many(self, producer: AsyncProducer, keys: Sequence[str]) -> asyncio.Future[list[str]]:
        """Send messages together, and write down what comes of them. If one fails, others may be there."""
        about = [self._about_to_write(producer, key, None) for key in keys]
        try:
            sent = await producer.send_many([_message(write) for write, _ in about], keys)
        except MetatxnError as error:
            raise Told from error
        sent.add_done_callback(partial(self._delivered_together, about))
        return sent

    def _about_to_write(self, producer: AsyncProducer, key: str, txn_id: str | None) -> tuple[Write, Asked]:
        self._numbers += 1
        name, begun = f"{self.name}-{self._numbers}", self.workload.world.loop.time()
        write = Write(name, txn_id, None, producer.topic, key, 0, self.name, begun)
        self.history.writes.append(write)
        asked = Asked("messages", self.history.revision, txn_id=txn_id, topic=producer.topic)
        self.history.asked.append(asked)
        return write, asked

    def _delivered_together(self, about: Sequence[tuple[Write, Asked]], sent: asyncio.Future[list[str]]) -> None:
        if sent.exception() is None:
            for (write, asked), position in zip(about, sent.result(), strict=True):
                self._is_durable(write, asked, position)

    def _is_durable(self, write: Write, asked: Asked, position: str) -> None:
        asked.outcome = write.outcome = Outcome.OK
        write.position = None if position == NOT_TOLD else parse_position(position)
        write.ended = self.workload.world.loop.time()

    def _delivered(self, write: Write, asked: Asked, sent: asyncio.Future[str]) -> None:
        error = sent.exception()
        if error is None:
            self._is_durable(write, asked, sent.result())
        elif isinstance(error, MetatxnError):
            write.outcome = self.outcome_of(error)
            self.refused(asked, error)


def _message(write: Write) -> dict[str, Any]:
    return {"id": write.id, "key": write.key, "amount": 0}


class Shop(User):
    """Several messages at once, which share entries; some are sent together."""

    def __init__(self, workload: Workload, name: str, random: Random) -> None:
        super().__init__(workload, name, random)
        assert isinstance(workload, Library)
        self._orders = self.library.producer(workload.orders, name, **entry_bounds(workload.world.seed))

    async def act(self) -> None:
        keys = [f"order-{self.random.randrange(20)}" for _ in range(self.random.choice((1, 1, 3)))]
        sent: list[asyncio.Future[Any]]
        if len(keys) > 1 and self.random.random() < 0.5:
            sent = [await self.put_many(self._orders, keys)]
        else:
            sent = [await self.put(self._orders, key) for key in keys]
        try:
            await asyncio.gather(*sent)
        except MetatxnError as error:
            raise Told from error


class Cashier(User):
    """Begins one transaction after another, so the library begins some of them ahead. Every other receipt has a copy in
    another topic, so that several entries of a transaction travel together; the commit travels with them if they go to
    one broker."""

    pause_s = 4.0

    def __init__(self, workload: Workload, name: str, random: Random) -> None:
        super().__init__(workload, name, random)
        assert isinstance(workload, Library)
        bounds = entry_bounds(workload.world.seed)
        self._receipts = [self.library.producer(topic, **bounds) for topic in workload.receipts]

    async def act(self) -> None:
        for number, txn in enumerate([await self._begin_at_once() for _ in range(IN_A_ROW)]):
            await self._receipt(txn, f"till-{number}")

    async def _begin_at_once(self) -> AsyncTransaction:
        with self.asking("txns"):
            txn = await self.library.begin(LEAST_TIMEOUT_MS)
        header = txn.header
        assert header is not None and header.deadline_ms is not None and header.created_ms is not None
        ahead = header.deadline_ms - header.created_ms > LEAST_TIMEOUT_MS
        self.history.handed_out.append(HandedOut(txn.id, self.history.revision, ahead))
        return txn

    async def _receipt(self, txn: AsyncTransaction, key: str) -> None:
        end = End(txn.id, self.random.random() < 0.9, self.name)
        self.history.ends.append(end)
        try:
            with self.asking("commit" if end.commit else "abort", txn_id=txn.id) as asked:
                for producer in self._receipts[: 1 + int(txn.id, 16) % 2]:
                    await self.put(producer, key, txn)
                await (txn.commit() if end.commit else txn.abort())
        except Told:
            end.outcome, end.code = asked.outcome, asked.code
            raise
        end.outcome = Outcome.OK
        self.is_closed(txn.id)


class Rivals(User):
    """Two clients that commit the same transaction at the same moment, each with a list of writers of its own; one of
    them may have remembered its list instead. Anyone who is told that it is committed has decided the writers."""

    def __init__(self, workload: Workload, name: str, random: Random) -> None:
        super().__init__(workload, name, random)
        self._other = self._connect(f"other library of {name}")

    async def leave(self) -> None:
        with suppress(Told), self.asking("leave"):
            await self._other.close()
        await super().leave()

    async def act(self) -> None:
        txn = await self.begin()
        ours, theirs = ("ours",), self.random.choice((("theirs",), ()))
        remembered = self.random.random() < 0.5
        if remembered:
            with self.asking("writers", txn_id=txn.id):
                await txn.remember_writers(list(ours))
        first = self._commit(txn, None if remembered else ours, ours)
        await asyncio.gather(first, self._commit(self._other.attach(txn.id), theirs, None))

    async def _commit(
        self, txn: AsyncTransaction, writers: tuple[str, ...] | None, remembered: tuple[str, ...] | None
    ) -> None:
        await asyncio.sleep(self.random.choice((0, 0.01, 0.1)))
        end = End(txn.id, True, self.name, writers, remembered)
        self.history.ends.append(end)
        try:
            with self.asking("commit", txn_id=txn.id) as asked:
                await txn.commit(None if writers is None else list(writers))
        except Told:
            end.outcome, end.code = asked.outcome, asked.code
        else:
            end.outcome = Outcome.OK
            self.is_closed(txn.id)


class Packer(User):
    def __init__(self, workload: Workload, name: str, random: Random) -> None:
        super().__init__(workload, name, random)
        assert isinstance(workload, Library)
        self._parcels = self.library.producer(workload.parcels, name, **entry_bounds(workload.world.seed))
        self._consumer = self.library.consumer(workload.orders, workload.subscription, name)

    async def leave(self) -> None:
        with suppress(Told), self._asking("leave"):
            await self._consumer.close()
        await super().leave()

    def _asking(self, verb: str, txn_id: str | None = None) -> AbstractContextManager[Asked]:
        """As `asking`, of the subscription."""
        consumer = self._consumer
        return self.asking(verb, topic=consumer.topic, subscription=consumer.subscription, txn_id=txn_id)

    async def act(self) -> None:
        with self._asking("receive"):
            first = await self._consumer.receive(timeout_s=1)
        if first is None:
            return
        messages = [first]
        while len(messages) < LIMIT and (more := self._consumer.prefetched()) is not None:
            messages.append(more)
        try:
            await self._pack(messages)
        except (Told, ChangedMind):
            with self._asking("redeliver"):
                await self._consumer.negative_acknowledge(messages)
            raise

    async def _pack(self, messages: list[Message]) -> None:
        txn = await self.begin()
        if self.random.random() < 0.05:
            await self._fill(txn, messages)
            return  # nobody ends it
        end = End(txn.id, True, self.name)
        try:
            with self.asking("commit", txn_id=txn.id) as asked:
                async with txn:
                    await self._fill(txn, messages)
                    if self.random.random() < 0.1:
                        raise ChangedMind
                    self.history.ends.append(end)
        except Told:
            end.outcome, end.code = asked.outcome, asked.code
            raise
        end.outcome = Outcome.OK
        self.is_closed(txn.id)

    async def _fill(self, txn: AsyncTransaction, messages: list[Message]) -> None:
        for message in messages:
            order: dict[str, Any] = message.value
            await self.put(self._parcels, order["id"], txn)
        with self._asking("acks", txn.id):
            await self._consumer.acknowledge(messages, txn)
