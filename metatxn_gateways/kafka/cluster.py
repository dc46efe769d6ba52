"""The brokers that Kafka's clients can connect to, who leads a partition, and who coordinates a group or a transaction.

    /cluster/broker/<id>     its `kafka` is the address of a listener, and makes the broker a *node*
    /segment-owner/<id>      the owner leads the partition, once the segment's record shows that it has opened it
    hash of (node, name)     the node with the highest one coordinates the group or the transaction of this name

All brokers see the same records, so they give the same answers soon. Nothing depends on that: the owner's generation
guards what is written to a partition, and the records of a group and of a transaction key guard the rest (DESIGN §5.21,
§5.22).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import urlsplit

import structlog

from metastore.errors import MetastoreError
from metastore.keys import unescape
from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord
from metastore.txn.records.segments import OwnerRecord, SegmentRecord
from metastore.types import Event
from metastore.watches import Mirror
from metatxn.wire.names import topic_of_segment
from participants.broker.broker import Broker
from participants.broker.placement import wanted
from participants.common.signal import Signal

REMEMBERED_OPENINGS = 100_000
GONE_FOR_S = 600.0
"""How long a broker that has gone is still listed. librdkafka waits forever for a coordinator that is no longer listed
(its issue 5511), and asks for another one if it cannot connect."""
_SEEN_WITHIN_S = 5.0
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KafkaNode:
    """A broker as Kafka's clients know it. Its number follows from its address, so it is the same after a restart."""

    id: int
    address: str
    host: str
    port: int


def node_at(address: str) -> KafkaNode:
    """The node at an address. Raises `ValueError` unless it is `host:port`."""
    parts = urlsplit(f"//{address}")
    if not parts.hostname or not parts.port or parts.path or parts.query or parts.fragment or parts.username:
        raise ValueError(f"{address!r} is not HOST:PORT")
    number = int.from_bytes(sha256(address.encode()).digest()[:4]) >> 1
    return KafkaNode(number, address, parts.hostname, parts.port)


@dataclass(frozen=True, slots=True)
class Leader:
    node: KafkaNode
    epoch: int


class KafkaCluster:
    """The cluster as Kafka's clients see it. `own` is the address of this broker's listener, known once it listens."""

    def __init__(self, broker: Broker, own: Callable[[], str]) -> None:
        self._broker = broker
        self._own = own
        self._announced = Mirror(broker.store, paths.BROKERS, self._announcement)
        self._owners = Mirror(broker.store, paths.SEGMENT_OWNERS, self._owner)
        self._nodes: dict[str, KafkaNode] = {}
        self._draining: set[str] = set()
        self._gone: dict[KafkaNode, float] = {}
        self._changed = Signal()
        self._opened: OrderedDict[str, int] = OrderedDict()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the records inside this block. Raises the store's errors."""
        async with AsyncExitStack() as stack:
            for mirror in (self._announced, self._owners):
                await stack.enter_async_context(mirror.running())
            yield

    async def until_announced(self) -> None:
        """Wait until the watch shows this broker's listener, or for a few seconds."""
        try:
            async with asyncio.timeout(_SEEN_WITHIN_S):
                while not any(each.address == self._own() for each in self._nodes.values()):
                    await self._changed.wait()
        except TimeoutError:
            log.warning("the watch does not show this Kafka listener", address=self._own())

    @property
    def own(self) -> KafkaNode:
        return node_at(self._own())

    @property
    def nodes(self) -> list[KafkaNode]:
        """This broker, which is here even if its announcement is not; the others; and those that have gone lately."""
        now_s = asyncio.get_running_loop().time()
        self._gone = {node: since_s for node, since_s in self._gone.items() if now_s - since_s < GONE_FOR_S}
        return list(dict.fromkeys((self.own, *self._nodes.values(), *self._gone)))

    def refuse_rival(self) -> None:
        """Raises `OSError` if another broker has the number of this one, which is as likely as one in 2^31."""
        for each in self._nodes.values():
            if each.id == self.own.id and each != self.own:
                raise OSError(f"{self.own.address} has the same number as {each.address}: take another port")

    # -- coordinators ------------------------------------------------------------------------------------------

    def coordinator(self, name: str) -> KafkaNode | None:
        """The coordinator: one that is not draining, if there is any. None while no broker is announced."""
        staying = [node for broker, node in self._nodes.items() if broker not in self._draining]
        nodes = {each.address: each for each in staying or self._nodes.values()}
        chosen = wanted(name, nodes)
        return nodes[chosen] if chosen is not None else None

    def coordinates(self, name: str) -> bool:
        """Whether this broker coordinates it."""
        chosen = self.coordinator(name)
        return chosen is not None and chosen.address == self._own()

    # -- leaders -----------------------------------------------------------------------------------------------

    async def leaders(self, segment_ids: list[str]) -> dict[str, Leader]:
        """The leaders of the partitions that are served now, as far as that is known. While the store is away, the
        owner of one is assumed to serve it."""
        own = self.own
        found: dict[str, Leader] = {}
        unsure: list[str] = []
        for segment_id in segment_ids:
            if (segment := self._broker.serving(segment_id)) is not None:
                found[segment_id] = Leader(own, segment.ownership.generation)
            elif (leader := self._owner_elsewhere(segment_id)) is not None:
                found[segment_id] = leader
                if self._opened.get(segment_id, -1) < leader.epoch:
                    unsure.append(segment_id)
        for segment_id in await self._being_opened(unsure, found):
            del found[segment_id]
        return found

    def _owner_elsewhere(self, segment_id: str) -> Leader | None:
        record = self._owners.records.get(paths.segment_owner(segment_id))
        owner = OwnerRecord.decode(record.value) if record is not None else None
        if owner is None or owner.deleted or owner.broker == self._broker.id:
            return None
        node = self._nodes.get(owner.broker)
        return Leader(node, owner.generation) if node is not None else None

    async def _being_opened(self, segment_ids: list[str], owned: dict[str, Leader]) -> list[str]:
        """The segments that their owners have not opened yet. A ledger that is listed at the owner's generation, or
        after it, shows that it was opened."""
        if not segment_ids:
            return []
        try:
            stored = await self._broker.store.get_each(map(paths.segment, segment_ids))
        except MetastoreError:
            return []
        late = []
        for segment_id in segment_ids:
            record = stored[paths.segment(segment_id)]
            if record is None or not _is_open(SegmentRecord.decode(record.value), owned[segment_id].epoch):
                late.append(segment_id)
            else:
                self._remember(segment_id, owned[segment_id].epoch)
        return late

    def _remember(self, segment_id: str, generation: int) -> None:
        self._opened[segment_id] = generation
        self._opened.move_to_end(segment_id)
        if len(self._opened) > REMEMBERED_OPENINGS:
            self._opened.popitem(last=False)

    # -- what is seen ------------------------------------------------------------------------------------------

    def _announcement(self, event: Event) -> None:
        broker = unescape(event.key.removeprefix(paths.BROKERS))
        if (before := self._nodes.pop(broker, None)) is not None:
            self._gone[before] = asyncio.get_running_loop().time()
        self._draining.discard(broker)
        record = BrokerRecord.decode(event.record.value) if event.record is not None else None
        if record is not None and record.kafka is not None:
            self._draining |= {broker} if record.draining else set()
            try:
                self._nodes[broker] = node_at(record.kafka)
            except ValueError as error:
                log.warning("a broker is announced with an address that is none", broker=broker, why=str(error))
        self._changed.notify()

    def _owner(self, event: Event) -> None:
        """Note a change of an owner: a segment that is new, or was deleted elsewhere, changes its topic, which is
        cached."""
        segment_id = unescape(event.key.removeprefix(paths.SEGMENT_OWNERS))
        name = topic_of_segment(segment_id)
        known = self._broker.known_topic(name)
        if known is None or known.format != "kafka":
            return
        gone = event.record is None or OwnerRecord.decode(event.record.value).deleted
        if gone or segment_id not in known.segments:
            self._broker.forget_topic(name)


def _is_open(record: SegmentRecord, generation: int) -> bool:
    """Whether this generation has opened it: the ledger of an opening has the number of its generation."""
    return any(ledger.id >= generation for ledger in (*record.ledgers, *record.trimmed))
