"""Kafka's producers: their ids, and the transaction that each has open (DESIGN §5.22).

    transactional.id   a transaction key `kafka:<id>` of the principal; its session names the producer id that holds it
    InitProducerId     connect: the predecessor is fenced, and its transaction aborted, in one apply
    AddPartitionsToTxn begin behind the last transaction, unless one is open
    EndTxn             commit or abort the last one, if this process has begun it or was asked to end it before

Every producer id is new and random, so its epoch is always 0. The key's record tells everything else, so any process
can go on for any producer. What is remembered here saves a read, or makes a late request harmless.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field

from coordinator.ends import Abort, Commit
from coordinator.transaction_keys import Follows
from coordinator.transactions import Transactions
from metastore.api import MetadataStore
from metastore.txn.key_records import KeyRecord, read_key
from metastore.txn.records.transactions import TransactionKey
from metastore.txn.store import TransactionRecords, read_key_and_transaction
from metatxn.service.security.principal import ANYONE, Principal
from metatxn.wire import errors
from metatxn.wire.coordinator import MAX_TIMEOUT_MS, BeginRequest, ConnectRequest
from metatxn.wire.ids import TxnId
from metatxn_gateways.kafka.codes import KafkaCode, KafkaError
from metatxn_gateways.kafka.recently_used import RecentlyUsed
from participants.segment.intents import BeginIntents
from participants.segment.segment import Segment

REMEMBERED_PRODUCERS = 10_000
EPOCH = 0
KEY_PREFIX = "kafka:"
"""The prefix of the transaction keys."""
MOST_ANNOUNCED = 16
"""The most segments whose intents are stored by the apply that begins a transaction."""
_VISIBLE_WITHIN_S = 1.0
_LOOKS = 3


@dataclass(slots=True, weakref_slot=True)
class TransactionalProducer:
    """A transactional producer. `epoch` is that of the key. `txn_id` is the last transaction that this process knows:
    it `is_open`, or this process has `ended` it: committed (True) or aborted (False); or it was ended otherwise. One
    that `was_lost` was ended without its producer, which must not go on as if it was open.

    `owner` is the principal that holds the key. `coordinated` is the transaction that the producer has begun here, or
    is known to end here."""

    id: int
    owner: str | None
    key: str
    epoch: int
    timeout_ms: int
    txn_id: TxnId | None = None
    is_open: bool = False
    ended: bool | None = None
    was_lost: bool = False
    coordinated: TxnId | None = None
    segments: dict[str, Segment] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def heard_of(self, held: TransactionKey) -> None:
        """Take over what the key's record says."""
        last = held.txn_id or held.last_txn_id
        txn_id = None if last is None else TxnId.parse(last)
        if txn_id != self.txn_id:
            self.txn_id, self.ended = txn_id, None
            self.segments.clear()
            self.groups.clear()
        self.is_open = held.txn_id is not None
        self.was_lost = not self.is_open and txn_id is not None and not held.ended_by_holder


@dataclass(frozen=True, slots=True)
class ProducerSession:
    """The session of a key, as text: `kafka/<producer id>/<timeout>`, and after that the id that it had before."""

    producer_id: int
    timeout_ms: int
    before: int | None = None

    def __str__(self) -> str:
        before = "" if self.before is None else f"/{self.before}"
        return f"kafka/{self.producer_id}/{self.timeout_ms}{before}"

    @classmethod
    def of(cls, held: TransactionKey | None) -> ProducerSession | None:
        """The session that holds the key, or None if its holder is not a client of Kafka's."""
        kind, *numbers = (held.session if held is not None and held.session is not None else "").split("/")
        if kind != "kafka" or len(numbers) not in (2, 3) or not all(each.isdigit() for each in numbers):
            return None
        return cls(*map(int, numbers))


class Producers:
    def __init__(self, store: MetadataStore, transactions: Transactions) -> None:
        self._store = store
        self._transactions = transactions
        self._transactional: RecentlyUsed[int, TransactionalProducer] = RecentlyUsed(REMEMBERED_PRODUCERS)

    # -- who holds a transactional id ----------------------------------------------------------------------------

    async def connect(
        self, transactional_id: str | None, timeout_ms: int, before: tuple[int, int] | None, caller: Principal = ANYONE
    ) -> int:
        """A new producer id. `before` are the id and epoch that the client has now, if it has any: then it must be the
        holder, and a repeated request is answered as the first one.

        Raises INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED and the errors of `TransactionKeys.connect`.
        """
        producer_id = secrets.randbits(63)
        if transactional_id is None:
            return producer_id
        if not 1 <= timeout_ms <= MAX_TIMEOUT_MS:
            raise KafkaError(KafkaCode.INVALID_TRANSACTION_TIMEOUT)
        key, expected = _key_of(transactional_id), -1
        if before is not None:
            held = (await read_key(self._store, caller.name, key)).live
            session = ProducerSession.of(held)
            if session is not None and session.before == before[0]:
                return session.producer_id
            if held is None or session is None or (session.producer_id, EPOCH) != before:
                raise KafkaError(KafkaCode.PRODUCER_FENCED)
            expected = held.epoch
        made = ProducerSession(producer_id, timeout_ms, None if before is None else before[0])
        request = ConnectRequest(epoch=expected, session=str(made), owner=caller.name)
        try:
            connected = await self._transactions.keys.connect(key, request)
        except errors.NotAllowed:
            raise KafkaError(KafkaCode.PRODUCER_FENCED) from None
        producer = TransactionalProducer(producer_id, caller.name, key, connected.epoch, timeout_ms)
        self._transactional.setdefault(producer_id, producer)
        return producer_id

    async def transactional(
        self, transactional_id: str, producer_id: int, epoch: int, caller: Principal = ANYONE
    ) -> TransactionalProducer:
        """The producer that holds the transactional id of this caller, or that did so when it was last asked for. One
        that was not known here has heard of no transaction yet. Raises PRODUCER_FENCED for any other one, and
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED for one that is known to be another principal's."""
        key = _key_of(transactional_id)
        known = self._transactional.get(producer_id)
        if known is None:
            held, session = await self._held(caller.name, key, producer_id)
            known = TransactionalProducer(producer_id, caller.name, key, held.epoch, session.timeout_ms)
            known = self._transactional.setdefault(producer_id, known)  # another request of it may have been faster
        if known.owner != caller.name:
            raise KafkaError(KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if known.key != key or epoch != EPOCH:
            raise KafkaError(KafkaCode.PRODUCER_FENCED)
        return known

    async def _held(self, owner: str | None, key: str, producer_id: int) -> tuple[TransactionKey, ProducerSession]:
        """The key's record as it is now. Raises PRODUCER_FENCED if another producer holds it."""
        return _held_by(producer_id, await read_key(self._store, owner, key))

    async def _look(self, producer: TransactionalProducer) -> None:
        producer.heard_of((await self._held(producer.owner, producer.key, producer.id))[0])

    async def _look_at_both(self, producer: TransactionalProducer) -> tuple[KeyRecord, TransactionRecords | None]:
        """Look, and read the transaction that was known before at the same revision."""
        if producer.txn_id is None:
            key, records = await read_key(self._store, producer.owner, producer.key), None
        else:
            key, records = await read_key_and_transaction(self._store, producer.owner, producer.key, producer.txn_id)
        producer.heard_of(_held_by(producer.id, key)[0])
        return key, records

    # -- its transaction -----------------------------------------------------------------------------------------

    async def add(self, producer: TransactionalProducer, segments: list[Segment]) -> None:
        """Begin a transaction, unless one is open. Raises INVALID_PRODUCER_EPOCH if the last one was ended without its
        producer, COORDINATOR_LOAD_IN_PROGRESS, and the errors of `Transactions.begin`."""
        async with producer.lock:
            if producer.is_open:  # as far as is known here: another process may have ended it, and begun the next one
                await self._look(producer)
            for _ in range(_LOOKS):
                if producer.is_open:
                    break
                if producer.was_lost:
                    raise KafkaError(KafkaCode.INVALID_PRODUCER_EPOCH)
                try:
                    await self._begin(producer, segments)
                except errors.NotAllowed:
                    await self._look(producer)
            else:
                raise KafkaError(KafkaCode.COORDINATOR_LOAD_IN_PROGRESS)
            producer.coordinated = producer.txn_id
            producer.segments.update((segment.id, segment) for segment in segments)

    async def _begin(self, producer: TransactionalProducer, segments: list[Segment]) -> None:
        request = BeginRequest(
            timeout_ms=producer.timeout_ms, transaction_key=producer.key, epoch=producer.epoch, owner=producer.owner
        )
        intents = BeginIntents(segment.publisher.intents for segment in segments[:MOST_ANNOUNCED])
        try:
            begun = await self._transactions.begin(request, follows=Follows(producer.txn_id, intents))
        finally:
            intents.settle()
        if begun.txn["state"] != "OPEN":
            await self._look(producer)
            return
        producer.txn_id, producer.is_open, producer.ended = begun.txn_id, True, None
        producer.segments.clear()
        producer.groups.clear()

    async def open_transaction(self, producer: TransactionalProducer, refused: TxnId | None = None) -> TxnId:
        """The transaction that a producer writes in. It is `refused` if a participant knew better.

        Another process may have begun it, so anything but an open one is looked up. Raises INVALID_TXN_STATE if there
        is none, and INVALID_PRODUCER_EPOCH if it was ended without its producer.
        """
        if not producer.is_open or producer.txn_id in (None, refused):
            await self._look(producer)
        if producer.was_lost:
            raise KafkaError(KafkaCode.INVALID_PRODUCER_EPOCH)
        if not producer.is_open or producer.txn_id is None:
            raise KafkaError(KafkaCode.INVALID_TXN_STATE)
        return producer.txn_id

    async def end(self, producer: TransactionalProducer, *, commit: bool) -> None:
        """Commit or abort. A repeated end succeeds. Returns once the decision is visible here, or after a second.

        Raises INVALID_TXN_STATE if nothing was begun, or if it ended differently, and the errors of
        `Transactions.commit`. A request does not say which transaction it ends, and a late copy of it must not end the
        next one: so one that finds a transaction which is not coordinated here is refused with
        COORDINATOR_LOAD_IN_PROGRESS, and a client that still waits for it sends it again.
        """
        async with producer.lock:
            key, records = await self._look_at_both(producer)
            txn_id = producer.txn_id
            if txn_id != producer.coordinated:
                producer.coordinated = txn_id
                raise KafkaError(KafkaCode.COORDINATOR_LOAD_IN_PROGRESS)
            if txn_id is None:
                if commit:
                    raise KafkaError(KafkaCode.INVALID_TXN_STATE)
                return
            if producer.ended is not None and producer.ended != commit:
                raise KafkaError(KafkaCode.INVALID_TXN_STATE)
            end = Commit(txn_id, as_holder=True) if commit else Abort(txn_id, as_holder=True)
            if records is not None and records.txn_id == txn_id:
                await self._transactions.end(end, known=records, key=key)
            else:
                await self._transactions.end(end)
            producer.is_open, producer.was_lost, producer.ended = False, False, commit
            await _until_visible(txn_id, list(producer.segments.values()))


def _held_by(producer_id: int, key: KeyRecord) -> tuple[TransactionKey, ProducerSession]:
    held = key.live
    session = ProducerSession.of(held)
    if held is None or session is None or session.producer_id != producer_id:
        raise KafkaError(KafkaCode.PRODUCER_FENCED)
    return held, session


def _key_of(transactional_id: str) -> str:
    if not 0 < len(transactional_id) <= 200:
        raise KafkaError(KafkaCode.INVALID_REQUEST)
    return f"{KEY_PREFIX}{transactional_id}"


async def _until_visible(txn_id: TxnId, segments: list[Segment]) -> None:
    try:
        async with asyncio.timeout(_VISIBLE_WITHIN_S):
            for segment in segments:
                while (tracked := segment.buffer.get(txn_id)) and not tracked.released and not segment.lost:
                    await segment.changed.wait()
    except TimeoutError:
        return
