"""Kafka's producers: their ids, their sequences, and the transaction that each has open.

    transactional.id   a transaction key `kafka:<id>`; its session names the producer id that holds it
    InitProducerId     connect: the predecessor is fenced, and its transaction aborted, in one apply
    AddPartitionsToTxn begin, unless a transaction is open
    EndTxn             commit or abort

Every producer id is new and random, so its epoch is always 0. The key's record tells everything else, so any process
can go on for any producer; what is remembered here only saves a read.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

from coordinator.transactions import Transactions
from metastore.api import MetadataStore
from metastore.txn.key_records import read_key
from metatxn.wire.coordinator import MAX_TIMEOUT_MS, BeginRequest, ConnectRequest
from metatxn.wire.ids import TxnId
from metatxn_gateways.kafka.codes import KafkaCode, KafkaError
from participants.segment.segment import Segment

REMEMBERED_PRODUCERS = 10_000
EPOCH = 0
NEVER_TRANSACTIONAL = -1
_VISIBLE_WITHIN_S = 1.0


@dataclass(slots=True)
class TransactionalProducer:
    """`epoch` is that of the key. `txn_id` is the transaction that was begun last, which `ended` says is over:
    committed (True) or aborted (False)."""

    id: int
    key: str
    epoch: int
    timeout_ms: int
    txn_id: TxnId | None = None
    ended: bool | None = None
    segments: dict[str, Segment] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class Sequences:
    """Of one producer in one partition. `following` is the sequence of its next batch, or None before the first."""

    following: int | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Producers:
    def __init__(self, store: MetadataStore, transactions: Transactions) -> None:
        self._store = store
        self._transactions = transactions
        self._transactional: OrderedDict[int, TransactionalProducer] = OrderedDict()
        self._sequences: OrderedDict[tuple[str, int], Sequences] = OrderedDict()

    def sequences(self, segment: Segment, producer_id: int) -> Sequences:
        """One that is in use may be forgotten only when 10,000 others were used since."""
        key = (segment.id, producer_id)
        found = self._sequences.setdefault(key, Sequences())
        self._sequences.move_to_end(key)
        if len(self._sequences) > REMEMBERED_PRODUCERS:
            self._sequences.popitem(last=False)
        return found

    async def connect(self, transactional_id: str | None, timeout_ms: int) -> int:
        """A new producer id. Raises INVALID_TRANSACTION_TIMEOUT and the errors of `TransactionKeys.connect`."""
        producer_id = secrets.randbits(63)
        if transactional_id is None:
            return producer_id
        if not 1 <= timeout_ms <= MAX_TIMEOUT_MS:
            raise KafkaError(KafkaCode.INVALID_TRANSACTION_TIMEOUT)
        key = _key_of(transactional_id)
        request = ConnectRequest(epoch=-1, session=f"kafka/{producer_id}/{timeout_ms}")
        connected = await self._transactions.keys.connect(key, request)
        self._remember(TransactionalProducer(producer_id, key, connected.epoch, timeout_ms))
        return producer_id

    async def transactional(self, transactional_id: str, producer_id: int, epoch: int) -> TransactionalProducer:
        """The producer that holds the transactional id, or that did so when it was last asked for. Raises
        PRODUCER_FENCED for any other one."""
        key = _key_of(transactional_id)
        known = self._transactional.get(producer_id)
        if known is None:
            held = (await read_key(self._store, None, key)).live
            session = (held.session or "").split("/") if held is not None else []
            if held is None or len(session) != 3 or session[:2] != ["kafka", str(producer_id)]:
                raise KafkaError(KafkaCode.PRODUCER_FENCED)
            txn_id = TxnId.parse(held.txn_id) if held.txn_id is not None else None
            known = self._transactional.get(producer_id)  # another request of it may have been faster
            if known is None:
                known = self._remember(TransactionalProducer(producer_id, key, held.epoch, int(session[2]), txn_id))
        if known.key != key or epoch != EPOCH:
            raise KafkaError(KafkaCode.PRODUCER_FENCED)
        return known

    async def add(self, producer: TransactionalProducer, segments: list[Segment]) -> None:
        """Begin a transaction, unless one is open. Raises the errors of `Transactions.begin`."""
        async with producer.lock:
            if producer.txn_id is None or producer.ended is not None:
                request = BeginRequest(
                    timeout_ms=producer.timeout_ms, transaction_key=producer.key, epoch=producer.epoch
                )
                begun = await self._transactions.begin(request)
                assert begun.header.txn_id is not None, "only a version can be committed before"
                producer.txn_id, producer.ended = TxnId.parse(begun.header.txn_id), None
                producer.segments.clear()
                producer.groups.clear()
            producer.segments.update((segment.id, segment) for segment in segments)

    async def end(self, producer: TransactionalProducer, *, commit: bool) -> None:
        """Commit or abort. A repeated end succeeds. Returns once the decision is visible here, or after a second.

        Raises INVALID_TXN_STATE if nothing was begun, or if it ended differently, and the errors of
        `Transactions.commit`. A commit is never confirmed because nothing is left: that could be a timeout.
        """
        async with producer.lock:
            if producer.txn_id is None:
                if commit:
                    raise KafkaError(KafkaCode.INVALID_TXN_STATE)
                return
            if producer.ended is not None and producer.ended != commit:
                raise KafkaError(KafkaCode.INVALID_TXN_STATE)
            if commit:
                await self._transactions.commit(producer.txn_id)
            else:
                await self._transactions.abort(producer.txn_id)
            producer.ended = commit
            await _until_visible(producer.txn_id, list(producer.segments.values()))

    def _remember(self, producer: TransactionalProducer) -> TransactionalProducer:
        self._transactional[producer.id] = producer
        if len(self._transactional) > REMEMBERED_PRODUCERS:
            self._transactional.popitem(last=False)
        return producer


def _key_of(transactional_id: str) -> str:
    if not 0 < len(transactional_id) <= 200:
        raise KafkaError(KafkaCode.INVALID_REQUEST)
    return f"kafka:{transactional_id}"


async def _until_visible(txn_id: TxnId, segments: list[Segment]) -> None:
    try:
        async with asyncio.timeout(_VISIBLE_WITHIN_S):
            for segment in segments:
                while (tracked := segment.buffer.get(txn_id)) and not tracked.released and not segment.lost:
                    await segment.changed.wait()
    except TimeoutError:
        return
