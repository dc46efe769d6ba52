"""One broker process: the segments it owns, opened, kept open, and reconciled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack

import structlog

from metastore.api import MetadataStore
from metastore.errors import MetastoreError
from metastore.keys import prefix_end, unescape
from metastore.txn import paths
from metastore.txn.ids import TxnId
from metastore.txn.records import Header
from participants.broker.layout import Layout
from participants.broker.topics import Topics
from participants.ledger.storage import LedgerStorage
from participants.metrics import BrokerMetrics
from participants.records import OwnerRecord, SegmentRecord, TopicRecord
from participants.segment.recovery import SegmentDeleted, Surroundings, open_segment
from participants.segment.segment import Clock, Segment
from participants.signal import Signal
from participants.txn.header_mirror import HeaderMirror
from service.problems import ErrorCode, ServiceError
from service.retry import until_it_succeeds

log = structlog.get_logger()
_PAGE = 500
_OPEN_AT_ONCE = 16


class Broker:
    """Serves the segments whose ledgers lie in its storage. Nobody else can: local files have one owner.

    Each owned segment has a task that opens it, waits until it is lost (deposed, or its ledger failed), and opens
    it again, for ever; `segment` answers the one that serves now.
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
    ) -> None:
        self.store = store
        self.topics = Topics(store)
        self.url = url
        self.storage = storage
        self.id = storage.storage_id
        self.clock = clock
        self._mirror = HeaderMirror(store)
        self._around = Surroundings(self.id, url, storage, store, self._mirror, clock, metrics)
        self._metrics = metrics
        self.layout = Layout(self)
        self._reconcile_interval_s = reconcile_interval_ms / 1000
        self._segments: dict[str, Segment] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._why_not: dict[str, str] = {}
        self._deleted: set[str] = set()
        self._opening = asyncio.Semaphore(_OPEN_AT_ONCE)
        self._topic_cache: dict[str, TopicRecord] = {}
        self._opened = Signal()
        self._exit = AsyncExitStack()
        self._reconciler: asyncio.Task[None] | None = None
        self._resyncs_counted = 0

    # -- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Mirror the headers, then begin to open every segment of this storage; `ready` tells when all are."""
        await self._exit.enter_async_context(self._mirror.running())
        async for segment_id, record in self._stored_segments():
            if record.storage == self.id and record.state == "deleted":
                self._deleted.add(segment_id)
            elif record.storage == self.id:
                self._keep(segment_id)
        self._reconciler = asyncio.create_task(self._reconcile_forever(), name="reconcile")

    async def stop(self) -> None:
        tasks = [*self._keepers.values(), *([self._reconciler] if self._reconciler else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(segment.close() for segment in self._segments.values()))
        self._segments.clear()
        self._keepers.clear()
        self._opened.notify()
        await self._exit.aclose()

    @property
    def not_ready(self) -> dict[str, str]:
        """Owned segments that do not serve yet, and why."""
        return {
            segment_id: self._why_not.get(segment_id, "it is being opened")
            for segment_id in self._keepers
            if (segment := self._segments.get(segment_id)) is None or segment.lost
        }

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
        """The segment, served here now. Raises NOT_FOUND, NOT_OWNER (with the owner's URL), or STORE_UNAVAILABLE
        while it is being opened; a segment that has an owner here never costs a store read."""
        segment = self._segments.get(segment_id)
        if segment is not None and not segment.lost:
            return segment
        if segment_id in self._keepers:
            raise _unavailable(segment_id, self._why_not.get(segment_id, "it is being opened"))
        raise await self._not_here(segment_id)

    async def _not_here(self, segment_id: str) -> ServiceError:
        """Why a segment that this broker does not keep is not served."""
        owner_key, segment_key = paths.segment_owner(segment_id), paths.segment(segment_id)
        records = (await self.store.get_many([owner_key, segment_key])).records
        stored, owner = records[segment_key], records[owner_key]
        record = SegmentRecord.decode(stored.value) if stored else None
        if record is None or record.state == "deleted":
            return ServiceError(ErrorCode.NOT_FOUND, f"segment {segment_id} does not exist", segment=segment_id)
        storage = record.storage
        if storage == self.id:
            # Ours, and we never heard of it: whoever created the topic was not answered.
            self._keep(segment_id)
            return _unavailable(segment_id, "it is being opened")
        url = OwnerRecord.decode(owner.value).url if owner else None
        if url is None or url == self.url:
            return _unavailable(segment_id, f"its data lies in storage {storage}, which no broker has open")
        return ServiceError(
            ErrorCode.NOT_OWNER, f"segment {segment_id} is owned by {url}", segment=segment_id, owner_url=url
        )

    async def open_all(self, segment_ids: Iterable[str] = ()) -> None:
        """Own new segments; returns once they and those that are being opened serve, or have failed once."""
        for segment_id in segment_ids:
            self._keep(segment_id)
        await self.until_opened(list(self._keepers))

    async def until_opened(self, segment_ids: Iterable[str]) -> None:
        """Own these, if not yet; returns once they serve, or have failed once, or are gone."""
        wanted = list(segment_ids)
        for segment_id in wanted:
            self._keep(segment_id)
        while any(
            segment_id not in self._segments and segment_id not in self._why_not and segment_id in self._keepers
            for segment_id in wanted
        ):
            await self._opened.wait()

    async def drop(self, segment_id: str) -> None:
        """Let go of a segment for good: it was deleted."""
        keeper = self._keepers.pop(segment_id, None)
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        segment = self._segments.pop(segment_id, None)
        if segment is not None:
            await segment.close()
        self._why_not.pop(segment_id, None)
        self._opened.notify()

    @property
    def served(self) -> dict[str, Segment]:
        """The segments that serve here now."""
        return {segment_id: segment for segment_id, segment in self._segments.items() if not segment.lost}

    def _keep(self, segment_id: str) -> None:
        if segment_id not in self._keepers:
            self._keepers[segment_id] = asyncio.create_task(self._keep_open(segment_id), name=f"keep {segment_id}")

    async def _keep_open(self, segment_id: str) -> None:
        async def open_once() -> None:
            async with self._opening:
                try:
                    segment = await open_segment(segment_id, self._around)
                except SegmentDeleted:
                    del self._keepers[segment_id]
                    self._deleted.add(segment_id)
                    self._opened.notify()
                    return
                await self.topic(segment.record.topic)  # known from now on, so that publishes need no store
                self._segments[segment_id] = segment
            self._why_not.pop(segment_id, None)
            self._opened.notify()

        def failed(error: BaseException | None) -> None:
            self._why_not[segment_id] = str(error) or repr(error)
            self._opened.notify()
            log.error("segment cannot be opened", segment=segment_id, error=str(error))

        while True:
            # Whatever it is, a bug included: one segment that cannot be opened now is tried again, and told.
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
            self.layout.deletion.finish_all,
            Exception,
            lambda error: log.warning("finish deletions again", error=str(error)),
        )
        while True:
            await asyncio.sleep(self._reconcile_interval_s)
            await self.reconcile()

    async def reconcile(self) -> None:
        """Once over every segment: find the decisions that no watch has told."""
        self._metrics.watch_resyncs.inc(self._mirror.resyncs - self._resyncs_counted)
        self._resyncs_counted = self._mirror.resyncs
        for segment in list(self._segments.values()):
            try:
                await segment.reconcile()
            except MetastoreError as error:
                log.warning("reconcile failed, it is done again later", segment=segment.id, error=str(error))
        await self.layout.reconcile(self._deleted)

    async def header(self, txn_id: TxnId) -> Header | None:
        """A transaction's header as it once was, or as it is: of use for what never changes in it."""
        record = self._mirror.seen(txn_id) or (await self._mirror.read([txn_id]))[txn_id]
        return None if record is None else Header.decode(record.value)

    # -- topics ------------------------------------------------------------------------------------------------

    async def topic(self, name: str) -> TopicRecord:
        """The topic's layout, cached: refreshed by `forget_topic` when a segment turns out to be sealed."""
        cached = self._topic_cache.get(name)
        if cached is None:
            cached = self._topic_cache[name] = (await self.topics.get(name)).topic
        return cached

    def remember_topic(self, topic: TopicRecord) -> None:
        self._topic_cache[topic.name] = topic

    def forget_topic(self, name: str) -> None:
        self._topic_cache.pop(name, None)


def _unavailable(segment_id: str, reason: str) -> ServiceError:
    return ServiceError(
        ErrorCode.STORE_UNAVAILABLE,
        f"segment {segment_id} is not available: {reason}",
        action="Try again in a moment; nothing happened.",
        segment=segment_id,
    )
