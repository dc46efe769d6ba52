"""One broker process: the segments that it owns, opened, kept open, and reconciled.

In a storage of its own (local files) it owns every segment, because no other broker can. In a storage that many brokers
share (an object store) it owns its share of them (see `placement`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Protocol, TypeVar

import structlog

from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.errors import CheckFailed, MetastoreError
from metastore.keys import prefix_end, unescape
from metastore.txn import paths
from metastore.txn.forgetting import was_deleted
from metastore.txn.laws.remedies import RECOVER
from metastore.txn.records.segments import OwnerRecord, SegmentRecord
from metastore.txn.records.topics import TopicRecord
from metastore.txn.records.transactions import Header
from metastore.types import Revision
from metastore.versions import ClusterVersion, Feature
from metatxn.service.lifecycle import Lifecycle, tell
from metatxn.service.retry import until_it_succeeds
from metatxn.service.security.principal import ANYONE, Principal
from metatxn.transport.api import Transport
from metatxn.transport.pool import HttpTransport
from metatxn.wire import errors
from metatxn.wire.coordinator import TransactionHeader
from metatxn.wire.ids import TxnId
from metatxn.wire.names import topic_of_segment
from participants.broker.announcement import Announcement
from participants.broker.peers import Peer, RemoteSegment
from participants.broker.placement import SETTLE_MS, Placement
from participants.broker.providers import Providers
from participants.common.metrics import BrokerMetrics
from participants.common.signal import Signal
from participants.ledger.directories import segment_directory, segment_of
from participants.ledger.storage import LedgerError, LedgerStorage
from participants.ledger.watermark import DEFAULT_PERCENT, Watermark
from participants.messages.exclusive_producers import ExclusiveProducers
from participants.messages.policies import Policies
from participants.messages.read_holds import ReadHolds
from participants.messages.removed import RemovedSegment, removed_segment
from participants.messages.schema_versions import SchemaVersions
from participants.messages.topics import Topics, segment_not_found
from participants.segment.reconciling import reconcile_segments
from participants.segment.recovery import OwnedElsewhere, SegmentContext, SegmentDeleted, open_segment
from participants.segment.rolling import DEFAULT_MAX_LEDGER_BYTES
from participants.segment.segment import Segment
from participants.subscription.reconciling import reconcile_subscriptions
from participants.subscription.segment_subscriptions import SegmentSubscriptions, subscriptions_of
from participants.txn.header_mirror import HeaderMirror
from participants.txn.shared_materializing import SharedMaterializing

T = TypeVar("T")
log = structlog.get_logger()
_PAGE = 500
_OPEN_AT_ONCE = 16
_TENDED_PER_TURN = 25
MEASURE_S = 1.0
"""The time between two measurements of the disk. What is published meanwhile is counted."""
NOT_IN_STORE = f"its ledgers are here, and the store does not know the segment: was it restored? {RECOVER}"
TAKEN_WITHIN_S = 10.0
"""How long the creator of a segment waits for another broker to take it."""


class Committer(Protocol):
    """Commits transactions as a coordinator does, in the process of this broker. `counts` returns counters, by the
    names of a sample of the throughput, of what no coordinator counts."""

    @property
    def counts(self) -> Callable[[], Mapping[str, int]]: ...

    async def commit(
        self, txn_id: TxnId, writers: Iterable[str] | None = None, *, caller: Principal = ANYONE
    ) -> TransactionHeader: ...


class Upkeep(Protocol):
    """The changes of topics that involve the segments of a broker, see `participants.topic.layout`."""

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks that run in the background."""

    def claimed(self, segment_id: str) -> None:
        """The store shows that a segment which is served here is claimed for a merge."""

    async def finish_deletions(self) -> None:
        """At the start, finish the deletions that an earlier broker has begun. Raises the store's errors and
        STORE_UNAVAILABLE."""

    async def reconcile(self, deleted: set[str]) -> None:
        """Continue what others have begun on the segments served here, and delete the bytes of those that are
        `deleted`, from which the finished ones are removed."""


class Broker:
    """Serves segments whose ledgers are in its storage.

    Each owned segment has a task that opens it, waits until it is lost (because the broker was deposed, or its ledger
    failed), and opens it again, forever. `segment` returns the segment that currently serves.
    """

    def __init__(
        self,
        store: MetadataStore,
        storage: LedgerStorage,
        url: str,
        *,
        clock: Clock,
        metrics: BrokerMetrics,
        reconcile_interval_ms: int,
        settle_ms: int = SETTLE_MS,
        max_ledger_bytes: int = DEFAULT_MAX_LEDGER_BYTES,
        disk_watermark: int = DEFAULT_PERCENT,
        peer_token: str | None = None,
        principal: str | None = None,
        providers: Providers | None = None,
        listeners: Mapping[str, str] | None = None,
        cluster_version: ClusterVersion | None = None,
        committer: Committer | None = None,
    ) -> None:
        """Without a `committer`, commits that come with entries are left to those who sent them."""
        self.store = store
        self.committer = committer
        self.listeners = dict(listeners or {})
        """The broker's addresses for clients elsewhere, by the names of the listeners that they use."""
        self.version = cluster_version or ClusterVersion()
        self.topics = Topics(store, self.version)
        self.policies = Policies(store, self.topics, self.version)
        self.exclusive_producers = ExclusiveProducers(store, self.version, clock)
        self.read_holds = ReadHolds(store, self.version, clock)
        self.schemas = SchemaVersions(store, self.topics, self.policies, self.version)
        self.url = url
        self.storage = storage
        self.id = storage.storage_id if storage.exclusive else uuid.uuid4().hex
        self.clock = clock
        self._mirror = HeaderMirror(store)
        self._materializing = SharedMaterializing(store)
        self.announcement = Announcement(store, self.id, url, storage, clock, self.listeners)
        self._placement = None if storage.exclusive else self._new_placement(settle_ms)
        self._providers = providers or Providers()
        self.watermark = Watermark(disk_watermark)
        self.metrics = self._metrics = metrics
        self._context = self._new_context(max_ledger_bytes)
        self._upkeep: Upkeep | None = None
        self._reconcile_interval_s = reconcile_interval_ms / 1000
        self._segments: dict[str, Segment] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[str] = set()
        """The segments that are being given up."""
        self._why_not: dict[str, str] = {}
        self._deleted: set[str] = set()
        self._ended_before: set[str] = set()
        """The deleted segments of this storage that were not completely gone at the last reconcile."""
        self._unknown: list[str] = []
        self._opening = asyncio.Semaphore(_OPEN_AT_ONCE)
        self._topic_cache: dict[str, TopicRecord] = {}
        self._times_forgotten = 0
        self._opened = Signal()
        self.peers: Transport | None = None
        """The transport to other brokers. It is created when it is first needed, because that is slow."""
        self.authorization = f"Bearer {peer_token}" if peer_token else None
        """The token that this broker shows to others when it does not act for a caller, or None."""
        self.principal = principal
        """The principal of that token: the owner of its own transactions, or None without authentication."""
        self._exit = AsyncExitStack()
        self._background: list[asyncio.Task[None]] = []
        self._resyncs_counted = 0

    def _new_context(self, max_ledger_bytes: int) -> SegmentContext:
        return SegmentContext(
            self.id,
            self.url,
            self.storage,
            self.store,
            self._mirror,
            self._materializing,
            self.clock,
            self._metrics,
            self._subscriptions_on,
            max_ledger_bytes,
            self._providers.transaction_buffer,
            self.watermark,
            listeners=self.listeners,
            version=self.version,
        )

    def _new_placement(self, settle_ms: int) -> Placement:
        return Placement(
            self.store,
            self.id,
            self.storage.storage_id,
            kept=lambda: self._keepers,
            take=self._keep,
            give_up=self._give_up,
            deposed=self._deposed,
            owned=self._owned,
            seen=self._seen,
            settle_ms=settle_ms,
        )

    def attach(self, upkeep: Upkeep) -> None:
        """Attach the upkeep. Must be called before `start`."""
        self._upkeep = upkeep

    @property
    def upkeep(self) -> Upkeep:
        assert self._upkeep is not None, "it is attached before the broker starts"
        return self._upkeep

    def _subscriptions_on(self, segment: Segment) -> SegmentSubscriptions:
        pending_acks = self._providers.pending_ack_store
        return SegmentSubscriptions(segment, self.store, self._mirror, self._metrics, pending_acks, self.version)

    # -- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Mirror the headers, and then begin to open the segments of this storage that this broker owns. `not_ready`
        tells which ones do not serve yet."""
        await self._exit.enter_async_context(self._mirror.running())
        # Listed first, because a segment is in the store before it is in its storage.
        unknown = set(await self.storage.directories())
        async for segment_id, record in self._stored_segments():
            unknown.discard(segment_directory(segment_id))
            if record.storage == self.storage.storage_id and record.state == "deleted":
                self._deleted.add(segment_id)
            elif record.storage == self.storage.storage_id and self.storage.exclusive:
                self._keep(segment_id)
        left = [directory for directory in sorted(unknown) if not await self._is_left_over(directory)]
        self._unknown = [segment_of(directory) or directory for directory in left]
        if self._placement is not None:
            await self._exit.enter_async_context(self._placement.running())
        await self.measure()
        self._background = [
            asyncio.create_task(self._reconcile_forever(), name="reconcile"),
            asyncio.create_task(self._measure_forever(), name="measure the disk"),
        ]

    async def _is_left_over(self, directory: str) -> bool:
        """Whether the directory is empty or belongs to a segment that was deleted or removed."""
        if not await self.storage.numbers(directory):
            return True
        segment_id = segment_of(directory)
        if segment_id is None:
            return False
        return await self.removed(segment_id) is not None or await was_deleted(self.store, segment_id)

    async def stop(self) -> None:
        """Close the segments. Ownership of those that others could serve is given up, so that they need not wait for it
        to expire."""
        upkeep = self._upkeep.tasks if self._upkeep is not None else []
        tasks = [*self._keepers.values(), *upkeep, *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        segments = list(self._segments.values())
        self._segments.clear()
        self._keepers.clear()
        self._opened.notify()
        await asyncio.gather(*(segment.close() for segment in segments))
        await self._materializing.close()
        if not self.storage.exclusive:
            await asyncio.gather(*map(self._release, segments), return_exceptions=True)
        if self.peers is not None:
            await self.peers.close()
        await self._exit.aclose()

    async def hand_over(self) -> None:
        """Drain this broker before it stops. Returns once no segment is here that another broker could take. Raises the
        store's errors."""
        if self._placement is None:
            return
        await self.announcement.drain()
        while (self._keepers and self.can_leave) or self._placement.moving:
            changes = [*self.changes(), self._placement.changed.next()]
            await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)

    @property
    def not_ready(self) -> dict[str, str]:
        """The owned segments that do not serve yet, and why; what keeps this broker from owning any; and segments that
        have ledgers here but no record in the store."""
        missing = dict.fromkeys(self._unknown, NOT_IN_STORE)
        if self._placement is not None and not self._placement.announced:
            missing["announcement"] = "the watch does not show that this broker is announced"
        return missing | {
            segment_id: self.why_not(segment_id) for segment_id in self._keepers if self.serving(segment_id) is None
        }

    def why_not(self, segment_id: str) -> str:
        """Why a segment that is kept here does not serve yet."""
        return self._why_not.get(segment_id, "it is being opened")

    def lose_all(self, why: str) -> None:
        """Stop serving all segments, because the store is not in the state that this broker remembers."""
        for segment in self._segments.values():
            segment.lose(why)

    def look_at_traffic(self) -> None:
        """Look at the traffic. Called `MINUTE_IN_LOOKS` times a minute, so that each segment knows what went through it
        lately."""
        for segment in self._segments.values():
            segment.traffic.look()

    @property
    def mirror_revision(self) -> Revision:
        return self._mirror.revision

    async def decisions_told(self) -> None:
        """See `HeaderMirror.told`."""
        await self._mirror.told()

    @property
    def mirror_resyncs(self) -> int:
        return self._mirror.resyncs

    async def _stored_segments(self) -> AsyncIterator[tuple[str, SegmentRecord]]:
        start = paths.SEGMENTS
        while True:
            found = await self.store.range(start, prefix_end(paths.SEGMENTS), limit=_PAGE)
            for record in found.records:
                yield unescape(record.key.removeprefix(paths.SEGMENTS)), SegmentRecord.decode(record.value)
            if not found.more:
                return
            start = found.records[-1].key + "\0"

    # -- segments ----------------------------------------------------------------------------------------------

    async def segment(self, segment_id: str) -> Segment:
        """The segment, if it is served here now. Raises NOT_FOUND, NOT_OWNER (with the owner's URL), or
        STORE_UNAVAILABLE while it is being opened. For a segment that is owned here this needs no read of the store."""
        if (segment := self.serving(segment_id)) is not None:
            return segment
        if segment_id in self._keepers:
            raise _unavailable(segment_id, self.why_not(segment_id))
        raise await self._not_here(segment_id)

    def serving(self, segment_id: str) -> Segment | None:
        """The segment, if it is served here now."""
        segment = self._segments.get(segment_id)
        return segment if segment is not None and not segment.lost else None

    async def removed(self, segment_id: str) -> RemovedSegment | None:
        """What is known of a segment that was removed from its topic; None if that never existed, or still does."""
        stored = await self.topics.get_or_tombstone(topic_of_segment(segment_id))
        return await removed_segment(self.store, stored.topic, segment_id) if stored is not None else None

    def finish_later(self, segment_id: str) -> None:
        """Have the next reconcile delete what is left of this segment, which is deleted or removed."""
        self._deleted.add(segment_id)

    def finished(self, segment_id: str) -> None:
        """Nothing is left of this segment that this broker could delete."""
        self._deleted.discard(segment_id)

    async def anywhere(self, segment_id: str, authorization: str | None = None) -> Segment | RemoteSegment:
        """The segment, wherever it is served. `authorization` is that of the caller. Raises as `segment`."""
        try:
            return await self.segment(segment_id)
        except errors.NotOwner as error:
            url = error.owner_url
        stored = await self.store.get(paths.segment(segment_id))
        if stored is None:
            return await self.segment(segment_id)  # it was deleted meanwhile, and this raises the error
        batches = self.version.allows(Feature.BATCHES)
        return RemoteSegment(segment_id, SegmentRecord.decode(stored.value), self.peer(url, authorization), batches)

    def peer(self, url: str, authorization: str | None = None) -> Peer:
        """The broker at `url`. Any number of requests can wait for it at the same time."""
        self.peers = self.peers or HttpTransport()
        return Peer(url, self.peers, authorization, self.announcement.proof)

    async def _not_here(self, segment_id: str) -> errors.MetatxnError:
        """The error for a segment that this broker does not keep."""
        if self._placement is not None and (known := self._placement.owner(segment_id)) and known.broker != self.id:
            return _not_owner(segment_id, known)
        owner_key, segment_key = paths.segment_owner(segment_id), paths.segment(segment_id)
        records = (await self.store.get_many([owner_key, segment_key])).records
        stored, owner = records[segment_key], records[owner_key]
        record = SegmentRecord.decode(stored.value) if stored else None
        if record is None or record.state == "deleted":
            return segment_not_found(segment_id)
        owned_by = OwnerRecord.decode(owner.value) if owner else None
        if record.storage != self.storage.storage_id:
            if owned_by is None or owned_by.url in ("", self.url):
                where = f"its data lies in storage {record.storage}, which no broker has open"
                return _unavailable(segment_id, where)
        elif self._placement is None:
            # This broker should own it, and was not told: the creator of the topic got no answer.
            self._keep(segment_id)
            return _unavailable(segment_id, "it is being opened")
        elif owned_by is None or self._placement.may_take(owned_by):
            return _unavailable(segment_id, "no running broker owns it, but one is about to take it")
        return _not_owner(segment_id, owned_by)

    async def open_all(self, segment_ids: Iterable[str] = ()) -> None:
        """Own these new segments. Returns once they and those that are being opened serve, or have failed once."""
        for segment_id in segment_ids:
            self._keep(segment_id)
        await self.until_opened(list(self._keepers))

    async def until_opened(self, segment_ids: Iterable[str]) -> None:
        """Own these segments, if no broker does yet. Returns once they serve, have failed once, or are gone. It waits
        at most `TAKEN_WITHIN_S` for segments that other brokers take, and raises nothing: anyone who asks has already
        done something that cannot be undone."""
        wanted = list(segment_ids)
        if self._placement is not None:
            await self._until_owned(wanted, self._placement)
        else:
            for segment_id in wanted:
                self._keep(segment_id)
        while any(
            segment_id not in self._segments and segment_id not in self._why_not and segment_id in self._keepers
            for segment_id in wanted
        ):
            await self._opened.wait()

    async def _until_owned(self, segment_ids: list[str], placement: Placement) -> None:
        def awaited(among: list[str]) -> list[str]:
            return [each for each in among if each not in self._keepers and placement.is_awaited(each)]

        with suppress(TimeoutError):
            async with asyncio.timeout(TAKEN_WITHIN_S):
                waiting = segment_ids
                while waiting := await self._existing(awaited(waiting), placement):
                    if awaited(waiting) == waiting:
                        await placement.changed.wait()

    async def _existing(self, segment_ids: list[str], placement: Placement) -> list[str]:
        """These segments without those of which nothing is left, as far as the store answers. What the watch does not
        show may also be too new."""
        unseen = [paths.segment(each) for each in segment_ids if not placement.sees(each)]
        try:
            found = await self.store.get_each(unseen) if unseen else {}
        except MetastoreError:
            return segment_ids
        gone = {key for key, record in found.items() if record is None}
        return [each for each in segment_ids if paths.segment(each) not in gone]

    async def drop(self, segment_id: str) -> None:
        """Stop keeping a segment, because it was deleted."""
        keeper = self._keepers.pop(segment_id, None)
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        segment = self._segments.pop(segment_id, None)
        if segment is not None:
            await segment.close()
        await self.storage.let_go(segment_id)  # the keeper may have been about to close it
        self._why_not.pop(segment_id, None)
        self._opened.notify()

    async def _give_up(self, segment_id: str) -> None:
        """Give up a segment to another broker. Nothing acknowledged is lost, and open transactions continue there."""
        segment = self._segments.get(segment_id)
        if segment is None or segment.lost:
            return  # it is still being opened; it can move later
        self._leaving.add(segment_id)
        await segment.publisher.drain()
        segment.leave("it moves to another broker")
        await self.drop(segment_id)
        await until_it_succeeds(
            lambda: self._release(segment),
            MetastoreError,
            lambda error: log.warning("give up again", segment=segment_id, error=str(error)),
        )
        self._leaving.discard(segment_id)
        if self.announcement.draining and not self._keepers and not self._leaving:
            tell(Lifecycle.BROKER_DRAINED, broker=self.id)

    async def _release(self, segment: Segment) -> None:
        """Clear the owner's record, unless another broker has taken it. Raises the store's errors."""
        generation, check = segment.ownership.generation, segment.ownership.check
        released = OwnerRecord(broker="", url="", generation=generation).encode()
        with suppress(CheckFailed):
            await self.store.apply(self.store.batch().check(check).put(check.key, released))
            tell(Lifecycle.SEGMENT_HANDED_OVER, segment=segment.id, generation=generation)

    def _deposed(self, segment_id: str, owner: OwnerRecord) -> None:
        segment = self._segments.get(segment_id)
        if segment is not None and owner.generation > segment.ownership.generation:
            segment.lose(f"{owner.url or 'no broker'} owns it now")

    def _owned(self, segment_id: str) -> None:
        """A segment was taken. If it is new, another broker has changed the layout of the topic; or it is the child of
        a split in progress here, which is not shown before all children serve (`_learn_topic`)."""
        name = topic_of_segment(segment_id)
        if self._knows(name, segment_id):
            return
        known = self._topic_cache.get(name)
        here = [self._segments.get(each) for each in known.segments] if known is not None else []
        if not any(each is not None and each.is_ending for each in here):
            self.forget_topic(name)

    def _seen(self, segment_id: str, record: SegmentRecord) -> None:
        if record.merge is not None and segment_id in self.served:
            self.upkeep.claimed(segment_id)

    def changes(self) -> list[asyncio.Future[None]]:
        """Futures that complete when segments were opened, were released, or have moved to other brokers; see
        `Signal`."""
        return [self._opened.next(), *([self._placement.moved.next()] if self._placement is not None else [])]

    @property
    def kept(self) -> frozenset[str]:
        """The segments that this broker serves, opens, or waits to open."""
        return frozenset(self._keepers)

    @property
    def can_leave(self) -> bool:
        """Whether another broker could take the segments that are here."""
        return self._placement is not None and self._placement.can_leave

    @property
    def served(self) -> dict[str, Segment]:
        """The segments that currently serve here."""
        return {segment.id: segment for segment in self.serving_now()}

    def serving_now(self) -> list[Segment]:
        """The same, without their names."""
        return [segment for segment in self._segments.values() if segment.lost is None]

    def _keep(self, segment_id: str) -> None:
        if segment_id not in self._keepers:
            self._keepers[segment_id] = asyncio.create_task(self._keep_open(segment_id), name=f"keep {segment_id}")

    async def _keep_open(self, segment_id: str) -> None:
        async def open_once() -> None:
            async with self._opening:
                began = asyncio.get_running_loop().time()
                try:
                    segment = await open_segment(segment_id, self._context)
                except (SegmentDeleted, OwnedElsewhere) as gone:
                    await self.storage.let_go(segment_id)
                    del self._keepers[segment_id]
                    if isinstance(gone, SegmentDeleted):
                        self._deleted.add(segment_id)
                    self._opened.notify()
                    return
                try:
                    await self._learn_topic(segment_id, segment.record)
                except BaseException:
                    await segment.close()  # nothing else knows it, so nothing else would close it
                    raise
                self._segments[segment_id] = segment
                self.metrics.segments_opened.inc()
                _tell_of(segment, asyncio.get_running_loop().time() - began)
            self._why_not.pop(segment_id, None)
            self._opened.notify()

        def failed(error: Exception) -> None:
            self._why_not[segment_id] = str(error) or repr(error)
            self._opened.notify()
            log.error("segment cannot be opened", segment=segment_id, error=str(error))

        while True:
            # Whatever the error is, even a bug: the segment is tried again, and the error is reported.
            await until_it_succeeds(open_once, Exception, failed)
            if segment_id not in self._keepers:
                return
            segment = self._segments[segment_id]
            while not segment.lost:
                await segment.changed.wait()
            await segment.close()
            del self._segments[segment_id]

    async def _reconcile_forever(self) -> None:
        await until_it_succeeds(
            self.upkeep.finish_deletions,
            Exception,
            lambda error: log.warning("finish deletions again", error=str(error)),
        )
        while True:
            await asyncio.sleep(self._reconcile_interval_s)
            await self.reconcile()

    async def _measure_forever(self) -> None:
        while True:
            await asyncio.sleep(MEASURE_S)
            await self.measure()

    async def measure(self) -> None:
        """Measure how full the disk is."""
        refused = self.watermark.refusal
        try:
            space = await self.storage.space()
        except LedgerError as error:
            log.warning("the disk cannot be measured", error=str(error))
            return
        self.watermark.measured(space)
        if space is not None:
            self.metrics.storage_used.set(space.used_bytes)
            self.metrics.storage_capacity.set(space.capacity_bytes)
        refusal = self.watermark.refusal
        self.metrics.storage_refuses.set(refusal is not None)
        if (refusal is None) != (refused is None):
            log.warning(
                "messages are taken again" if refusal is None else "messages are refused", why=refusal or refused
            )

    async def reconcile(self) -> None:
        """Reconcile every segment once, to find the decisions that no watch event has reported."""
        self._metrics.watch_resyncs.inc(self._mirror.resyncs - self._resyncs_counted)
        self._resyncs_counted = self._mirror.resyncs
        try:
            await reconcile_segments(self.serving_now(), self.store, self._mirror, self.metrics)
            subscriptions = map(subscriptions_of, self.serving_now())
            await reconcile_subscriptions(subscriptions, self.store, self._mirror, self.metrics)
        except MetastoreError as error:
            log.warning("reconcile failed and will be repeated", error=str(error))
        for number, segment in enumerate(self.serving_now(), 1):
            segment.tend()
            if number % _TENDED_PER_TURN == 0:
                await asyncio.sleep(0)
        if self._placement is not None:
            # Who deletes a segment also deletes what is left of it, unless it stops in between.
            ended = set(self._placement.ended)
            self._deleted |= ended & self._ended_before
            self._ended_before = ended
        await self.upkeep.reconcile(self._deleted)

    async def header(self, txn_id: TxnId) -> Header | None:
        """A transaction's header, which may be out of date: use only what never changes in it."""
        record = self._mirror.seen(txn_id) or (await self._mirror.read([txn_id]))[txn_id]
        return None if record is None else Header.decode(record.value)

    # -- topics ------------------------------------------------------------------------------------------------

    async def topic(self, name: str) -> TopicRecord:
        """The topic's layout and schema, from a cache. `forget_topic` refreshes it when a segment turns out to be
        sealed; see also `in_layout`. Raises NOT_FOUND."""
        cached = self._topic_cache.get(name)
        if cached is None:
            before = self._times_forgotten
            cached = (await self.topics.get(name)).topic
            if before == self._times_forgotten:  # otherwise it may be older than the change for which it was forgotten
                self._topic_cache.setdefault(name, cached)
        return cached

    def known_topic(self, name: str) -> TopicRecord | None:
        """The topic as it is in the cache, if it is there."""
        return self._topic_cache.get(name)

    async def in_layout(self, name: str, look: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `look`, which begins with `topic`. NOT_FOUND is only believed of the layout that is in
        the store, because another broker may have removed segments, or deleted the topic and created it again."""
        while True:
            used = self._topic_cache.get(name)
            try:
                return await look()
            except errors.NotFound:
                self.forget_topic(name)
                stored = await self.topic(name)
                if used is not None and used.segments == stored.segments:
                    raise

    def topic_seen(self, topic: TopicRecord) -> None:
        """A read of the store shows this topic. If its schema is not the one that is known here, another broker has
        changed it; then it is read again when it is next needed."""
        cached = self._topic_cache.get(topic.name)
        if cached is not None and cached.arrow_schema != topic.arrow_schema:
            self.forget_topic(topic.name)

    def forget_topic(self, name: str) -> None:
        self._topic_cache.pop(name, None)
        self._times_forgotten += 1

    async def _learn_topic(self, segment_id: str, record: SegmentRecord) -> None:
        """Remember the topic of this segment, so that publishes need no store. It must be the one that has this
        segment, not a deleted one of the same name. The first child of a split in progress here waits until all
        children serve; then `LayoutUpkeep` has the topic read again. Raises NOT_FOUND."""
        parents = [self._segments[parent] for parent in record.parents if parent in self._segments]
        if any(parent.record.state == "active" and not parent.lost for parent in parents):
            return
        await self.topic(record.topic)
        if not self._knows(record.topic, segment_id):
            self.forget_topic(record.topic)
            await self.topic(record.topic)

    def _knows(self, name: str, segment_id: str) -> bool:
        topic = self._topic_cache.get(name)
        return topic is not None and segment_id in topic.segments


def _tell_of(segment: Segment, seconds: float) -> None:
    former, generation = segment.ownership.former, segment.ownership.generation
    event = Lifecycle.SEGMENT_ACQUIRED if former is None else Lifecycle.SEGMENT_TAKEN_OVER
    tell(event, segment=segment.id, generation=generation, former=former, seconds=round(seconds, 3))


def _not_owner(segment_id: str, owner: OwnerRecord) -> errors.MetatxnError:
    refusal = errors.NotOwner(f"segment {segment_id} is owned by {owner.url}", segment=segment_id, owner_url=owner.url)
    return refusal.reached_at(owner.listeners)


def _unavailable(segment_id: str, reason: str) -> errors.MetatxnError:
    return errors.StoreUnavailable(
        f"segment {segment_id} is not available: {reason}",
        action="Try again in a moment; nothing happened.",
        segment=segment_id,
    )
