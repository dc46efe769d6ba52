"""The administration of transactions: list and describe those of Kafka's producers, and the producers of a partition.

Ongoing          the key holds a transaction, prepared or not
CompleteCommit,  the last one ended so, and its header is still there
CompleteAbort
Empty            there was none since the producer began, or its header was collected
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.txn import paths
from metastore.txn.key_records import KeyRecord, list_keys, read_key
from metastore.txn.records.transactions import Header, TransactionKey
from metastore.txn.states import TxnState
from metatxn.service.security.principal import Principal
from metatxn.wire.ids import TxnId
from metatxn.wire.names import topic_of_segment
from metatxn_gateways.kafka.cluster import KafkaCluster
from metatxn_gateways.kafka.codes import REFUSALS, KafkaCode, KafkaError, code_of, error_code
from metatxn_gateways.kafka.partitions import Partitions, kafka_name, require_right
from metatxn_gateways.kafka.producers import EPOCH, KEY_PREFIX, ProducerSession
from metatxn_gateways.kafka.schemas import CallRequest, CallResponse
from metatxn_gateways.kafka.sequences import epoch_and_sequence
from participants.segment.segment import Segment

_NO_TIME = timedelta(0)
_NEVER = datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)
"""A duration of -1 ms, as Kafka says it."""
_AT_ONCE = 1_000
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")


@dataclass(frozen=True, slots=True)
class _Found:
    transactional_id: str
    session: ProducerSession
    state: str
    txn_id: TxnId | None
    header: Header | None


class TransactionAdmin:
    def __init__(self, store: MetadataStore, clock: Clock, partitions: Partitions, cluster: KafkaCluster) -> None:
        self._store = store
        self._clock = clock
        self._partitions = partitions
        self._cluster = cluster

    async def list_transactions(self, request: CallRequest, response: CallResponse) -> Any:
        """List the transactions that this broker coordinates; clients ask all brokers. An administrator sees
        everyone's."""
        code, states = KafkaCode.NONE, []
        unknown = tuple(each for each in request.state_filters if each not in STATES)
        try:
            async for key in self._keys(request.caller):
                found = await self._found(key)
                if found is None or not self._cluster.coordinates(found.transactional_id):
                    continue
                if self._is_wanted(found, request):
                    fields = {"producer_id": found.session.producer_id, "transaction_state": found.state}
                    states.append(response.make("TransactionState", transactional_id=found.transactional_id, **fields))
        except REFUSALS as error:
            code, states = code_of(error, KafkaCode.COORDINATOR_NOT_AVAILABLE), []
        return response.make(
            "ListTransactionsResponse",
            throttle_time=_NO_TIME,
            error_code=error_code(code),
            unknown_state_filters=unknown,
            transaction_states=tuple(states),
        )

    def _is_wanted(self, found: _Found, request: CallRequest) -> bool:
        if request.state_filters and found.state not in request.state_filters:
            return False
        if request.producer_id_filters and found.session.producer_id not in request.producer_id_filters:
            return False
        longer_than_ms = -1 if request.duration_filter is None else request.duration_filter
        if longer_than_ms < 0:
            return True
        begun_ms = found.header.created_ms if found.header is not None and found.state == "Ongoing" else None
        return begun_ms is not None and self._clock() - begun_ms > longer_than_ms

    async def describe_transactions(self, request: CallRequest, response: CallResponse) -> Any:
        states = [await self._described(request.caller, response, each) for each in request.transactional_ids]
        return response.make("DescribeTransactionsResponse", throttle_time=_NO_TIME, transaction_states=tuple(states))

    async def _described(self, caller: Principal, response: CallResponse, name: str) -> Any:
        code, found, topics = KafkaCode.NONE, None, {}
        try:
            key = await self._key(caller, f"{KEY_PREFIX}{name}")
            found = await self._found(key) if key is not None else None
            if found is None:
                raise KafkaError(KafkaCode.TRANSACTIONAL_ID_NOT_FOUND)
            topics = await self._topics_of(found)
        except REFUSALS as error:
            code = code_of(error, KafkaCode.COORDINATOR_NOT_AVAILABLE)
        header = found.header if found is not None and found.state == "Ongoing" else None
        return response.make(
            "TransactionState",
            error_code=error_code(code),
            transactional_id=name,
            transaction_state=found.state if found is not None else "",
            transaction_timeout=timedelta(milliseconds=found.session.timeout_ms if found is not None else 0),
            transaction_start_time=_NEVER if header is None else datetime.fromtimestamp(header.created_ms / 1000, UTC),
            producer_id=found.session.producer_id if found is not None else -1,
            producer_epoch=EPOCH if found is not None else -1,
            topics=tuple(
                response.make("TopicData", topic=topic, partitions=tuple(sorted(partitions)))
                for topic, partitions in sorted(topics.items())
            ),
        )

    async def _topics_of(self, found: _Found) -> dict[str, set[int]]:
        """The partitions on which the open transaction has operations, in topics that still exist."""
        topics: dict[str, set[int]] = {}
        if found.state != "Ongoing" or found.txn_id is None:
            return topics
        prefix = paths.ops_of_transaction(found.txn_id)
        for record in (await self._store.scan(prefix)).records:
            segment = paths.participant_of_op(record.key)[0]
            name = kafka_name(topic_of_segment(segment))
            try:
                listed = (await self._partitions.topic(name)).segments
            except REFUSALS as error:
                if code_of(error) is not KafkaCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                continue
            if segment in listed:
                topics.setdefault(name, set()).add(listed.index(segment))
        return topics

    # -- keys --------------------------------------------------------------------------------------------------

    async def _keys(self, caller: Principal) -> AsyncIterator[KeyRecord]:
        after, more = "", True
        owner = None if caller.superuser else caller.name
        while more:
            page, more = await list_keys(self._store, owner, after=after, limit=_AT_ONCE)
            for key in page:
                if key.key.startswith(KEY_PREFIX):
                    yield key
            if page:
                assert page[-1].record is not None
                after = page[-1].record.key.removeprefix(paths.TRANSACTION_KEYS)

    async def _key(self, caller: Principal, name: str) -> KeyRecord | None:
        """The caller's own key, or for an administrator anyone's."""
        own = await read_key(self._store, caller.name, name)
        if own.live is not None or not caller.superuser:
            return own
        async for each in self._keys(caller):
            if each.key == name and each.live is not None:
                return each
        return None

    async def _found(self, key: KeyRecord) -> _Found | None:
        """The transaction of a key, or None if no producer of Kafka's holds it."""
        held: TransactionKey | None = key.live
        session = ProducerSession.of(held)
        if held is None or session is None:
            return None
        last = held.txn_id or held.last_txn_id
        txn_id = None if last is None else TxnId.parse(last)
        record = None if txn_id is None else await self._store.get(paths.header(txn_id))
        header = Header.decode(record.value) if record is not None else None
        return _Found(key.key.removeprefix(KEY_PREFIX), session, _state_of(header), txn_id, header)

    # -- producers of a partition ------------------------------------------------------------------------------

    async def describe_producers(self, request: CallRequest, response: CallResponse) -> Any:
        topics = []
        for topic in request.topics:
            partitions = [
                await self._producers_of(request.caller, response, topic.name, each) for each in topic.partition_indexes
            ]
            topics.append(response.make("TopicResponse", name=topic.name, partitions=tuple(partitions)))
        return response.make("DescribeProducersResponse", throttle_time=_NO_TIME, topics=tuple(topics))

    async def _producers_of(self, caller: Principal, response: CallResponse, topic: str, partition: int) -> Any:
        code, active = KafkaCode.NONE, []
        try:
            require_right(caller, "consume", topic)
            active = await _active(response, await self._partitions.segment(topic, partition))
        except REFUSALS as error:
            code = code_of(error)
        return response.make(
            "PartitionResponse",
            partition_index=partition,
            error_code=error_code(code),
            error_message=None,
            active_producers=tuple(active),
        )


async def _active(response: CallResponse, segment: Segment) -> list[Any]:
    """The producers whose sequences are remembered, each with its open transaction."""
    last: dict[int, int] = {}
    begun: dict[int, int] = {}
    for scope, sequence, remembered in segment.dedup:
        kind, _, number = (scope.producer or "").partition("/")
        if kind != "kafka" or not number.isdigit():
            continue
        producer = int(number)
        last[producer] = max(last.get(producer, -1), sequence + remembered.count - 1)
        tracked = segment.buffer.get(scope.txn_id) if scope.txn_id is not None else None
        if tracked is not None and tracked.first_frame is not None and tracked.decision is None:
            first = await segment.offsets.first_of(tracked.first_frame)
            if first is not None:  # otherwise it was decided meanwhile
                begun[producer] = first
    return [
        response.make(
            "ProducerState",
            producer_id=producer,
            producer_epoch=epoch_and_sequence(sequence)[0],
            last_sequence=epoch_and_sequence(sequence)[1],
            last_timestamp=-1,
            coordinator_epoch=segment.ownership.generation,
            current_txn_start_offset=begun.get(producer, -1),
        )
        for producer, sequence in sorted(last.items())
    ]


def _state_of(header: Header | None) -> str:
    if header is None:
        return "Empty"
    if not header.state.final:
        return "Ongoing"
    return "CompleteCommit" if header.state is TxnState.COMMITTED else "CompleteAbort"
