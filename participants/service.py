"""The broker as a service: its storage, its segments, its HTTP server, and its entry in the cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.errors import MetastoreError
from metastore.incarnation import IncarnationGuard
from metastore.measured import MeasuredStore
from metastore.membership import Membership
from metastore.types import Revision
from metastore.versions import Feature
from metatxn.service.direct import add_routes
from metatxn.service.exposure import Exposure
from metatxn.service.http import create_app
from metatxn.service.known_cluster import KnownCluster
from metatxn.service.lifecycle import Lifecycle, tell
from metatxn.service.operations import add_operations
from metatxn.service.process_metrics import LoopLag, add_process_metrics
from metatxn.service.quotas.quotas import Quotas, count_refusals
from metatxn.service.request_metrics import RequestMetrics
from metatxn.service.server import HttpServer
from metatxn.service.store_metrics import StoreMetrics
from metatxn.service.throughput import Throughput
from metatxn.service.tracing import exemplar
from metatxn.wire import errors
from metatxn.wire.access import end_of_token
from metatxn.wire.listeners import Listeners
from metatxn.wire.models import DiskSpace
from participants.api.routes import router
from participants.broker.broker import Broker, Committer
from participants.broker.providers import Providers
from participants.common.metrics import BrokerMetrics
from participants.ledger.append_queue import LedgerMetrics
from participants.ledger.bucket import Bucket
from participants.ledger.local import LocalStorage
from participants.ledger.object_storage import ObjectStorage
from participants.ledger.storage import LedgerStorage
from participants.ledger.watermark import DEFAULT_PERCENT
from participants.restored.seen_store import StoreMemory
from participants.segment.rolling import DEFAULT_MAX_LEDGER_BYTES
from participants.topic.layout import LayoutUpkeep
from participants.topic.subscription_metrics import SubscriptionMetrics

DRAIN_TIMEOUT_MS = 20_000
"""The time of a drain. With the rest of a stop, it is less than the 30 s that Kubernetes gives a container by
default."""
DESCRIPTION = "Scalable topics that materialize the decisions of transactions they find in the metadata store."


MakeCommitter = Callable[[MetadataStore, Clock, CollectorRegistry], Committer]


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class BrokerService:
    """A broker. `start` returns once every owned segment serves or has failed once; `/readyz` shows which ones do not
    serve.

    Its ledgers are either local files in `data_dir` or objects below the URL `storage` (see `Bucket.open`). It shows
    `peer_token` to other brokers when it does not act for a caller. `transaction_buffers` and `pending_ack_stores` are
    the names of providers by namespace (see `participants.broker.providers`); raises `ValueError` for one that is not
    installed. `commits` makes what commits transactions in this process, for commits that come with entries;
    without it, these are left to a coordinator. Without `exposure` only this machine may connect, and another `host`
    raises `InvalidExposure`.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        data_dir: Path | str | None = None,
        storage: str | None = None,
        host: str = "127.0.0.1",
        port: int = 8471,
        advertise_url: str | None = None,
        listeners: Mapping[str, str] | None = None,
        exposure: Exposure | None = None,
        reconcile_interval_ms: int = 5_000,
        max_ledger_bytes: int = DEFAULT_MAX_LEDGER_BYTES,
        disk_watermark: int = DEFAULT_PERCENT,
        drain_timeout_ms: int = DRAIN_TIMEOUT_MS,
        peer_token: str | None = None,
        transaction_buffers: Mapping[str, str] | None = None,
        pending_ack_stores: Mapping[str, str] | None = None,
        commits: MakeCommitter | None = None,
        clock: Clock = wall_clock_ms,
    ) -> None:
        assert (data_dir is None) != (storage is None), "local files or an object store"
        self._data_dir = Path(data_dir) if data_dir is not None else None
        self._storage_url = storage
        self._clock = clock
        self._exposure = exposure or Exposure()
        self._exposure.check(host)
        self.metrics = BrokerMetrics()
        self._store = store = MeasuredStore(store, StoreMetrics(self.metrics.registry).observe)
        store.group_listeners.append(self.metrics.group_commit_size.observe)
        add_process_metrics(self.metrics.registry, version("metatxn"))
        SubscriptionMetrics(self.metrics.registry, lambda: self.broker)
        self.broker: Broker | None = None
        self.quotas = Quotas(store, refused=count_refusals(self.metrics.registry))
        self._guard = IncarnationGuard(store, clock, seen=self._seen_revision, on_refusal=self._refuse)
        self._known = KnownCluster(store, self._guard)
        self._running = AsyncExitStack()
        self._throughput = Throughput(self._counts, clock, self._look_at_segments)
        self.app = self._create_app()
        self._listeners = dict(listeners or {})
        self.app.state.listeners = Listeners(advertise_url, self._listeners)
        lag = LoopLag(self.metrics.registry)
        self._server = HttpServer(self.app, host, port, advertise_url, self._exposure.tls, lag=lag)
        self._storage: LedgerStorage | None = None
        self._reconcile_interval_ms = reconcile_interval_ms
        self._max_ledger_bytes = max_ledger_bytes
        self._disk_watermark = disk_watermark
        self._drain_timeout_s = drain_timeout_ms / 1000
        self._peer_token = peer_token
        self._committer = None if commits is None else commits(self._store, clock, self.metrics.registry)
        self._providers = Providers.load(transaction_buffers or {}, pending_ack_stores or {})
        self._membership = Membership(store, "broker", version("metatxn"))
        self._memory: StoreMemory | None = None

    @property
    def url(self) -> str:
        return self._server.url

    async def start(self) -> None:
        """Start the broker. Raises `OSError` if the port is in use, `LedgerError` if the data directory cannot be used,
        and the store's errors."""
        try:
            await self._start()
        except (Exception, asyncio.CancelledError):
            await self.stop()
            raise

    async def _start(self) -> None:
        metrics = LedgerMetrics(self.metrics.append_seconds.observe, self.metrics.fsync_seconds.observe, exemplar)
        self._storage = await self._open_storage(metrics)
        self._server.bind()
        self.broker = Broker(
            self._store,
            self._storage,
            self.url,
            clock=self._clock,
            metrics=self.metrics,
            reconcile_interval_ms=self._reconcile_interval_ms,
            max_ledger_bytes=self._max_ledger_bytes,
            disk_watermark=self._disk_watermark,
            peer_token=self._peer_token,
            principal=self._own_principal(),
            providers=self._providers,
            listeners=self._listeners,
            cluster_version=self._guard.version,
            committer=self._committer,
        )
        self._route_to(self.broker, LayoutUpkeep(self.broker))
        await self._membership.announce(self.broker.id, self.url)
        await self._guard.start()
        self._memory = StoreMemory(self._storage, self._store, self._guard)
        await self._memory.start()
        await self.broker.start()
        await self._running.enter_async_context(self.quotas.running())
        await self._running.enter_async_context(self._known.running())
        await self._server.start()
        await self.broker.open_all()
        await self.broker.announcement.start()
        self._throughput.start()
        self._tell(Lifecycle.SERVICE_READY, url=self.url, storage=self._storage.storage_id)

    def _counts(self) -> dict[str, int]:
        return {**self.metrics.traffic.counts(), **(self._committer.counts() if self._committer is not None else {})}

    def _look_at_segments(self) -> None:
        if self.broker is not None:
            self.broker.look_at_traffic()

    def _own_principal(self) -> str | None:
        """The principal of this broker itself. Without a valid token it is an unnamed principal."""
        if self._exposure.authenticator is None:
            return None
        try:
            header = f"Bearer {self._peer_token or ''}".encode()
            return self._exposure.authenticator.principal([(b"authorization", header)]).name
        except errors.MetatxnError:
            return f"broker {self.url}"

    def _create_app(self) -> FastAPI:
        registry = self.metrics.registry
        requests = RequestMetrics(registry)
        app = create_app(
            "metatxn broker",
            DESCRIPTION,
            version("metatxn"),
            registry,
            self._exposure,
            requests,
            quotas=self.quotas,
        )
        add_operations(
            app,
            self._store,
            "broker",
            waiting_for=self._waiting_for,
            about=self._about,
            warnings=self._warnings,
            throughput=self._throughput.answer,
            known=self._known,
        )
        return app

    def _route_to(self, broker: Broker, layout: LayoutUpkeep) -> None:
        add_routes(self.app, router(broker, layout), first=True)

    async def _open_storage(self, metrics: LedgerMetrics) -> LedgerStorage:
        if self._storage_url is not None:
            return await ObjectStorage.open(Bucket.open(self._storage_url), metrics=metrics)
        assert self._data_dir is not None
        return await asyncio.to_thread(LocalStorage.open, self._data_dir, metrics=metrics)

    async def before_stop(self) -> None:
        """Let other brokers of the storage take the segments one by one, while everything is still served. What they
        do not take in `drain_timeout_ms` is released together by `stop`. Brokers of release 0.2.0 would not take
        them."""
        if self.broker is None or not self.broker.version.allows(Feature.DRAIN):
            return
        with suppress(TimeoutError, MetastoreError):
            async with asyncio.timeout(self._drain_timeout_s):
                await self.broker.hand_over()

    async def stop(self) -> None:
        """Finish the requests in progress, close the segments, and release the storage."""
        self._tell(Lifecycle.SERVICE_STOPPING)
        self._throughput.stop()
        if self.broker is not None:
            await self.broker.announcement.stop()
        await self._server.stop()
        await self._running.aclose()
        await self._guard.stop()
        if self.broker is not None:
            await self.broker.stop()
        if self._memory is not None:
            await self._memory.stop()
        await self._membership.withdraw()
        if self._storage is not None:
            await self._storage.close()
        self._tell(Lifecycle.SERVICE_STOPPED)

    def _tell(self, event: Lifecycle, **members: Any) -> None:
        broker = self.broker.id if self.broker is not None else None
        tell(event, service="broker", id=broker, version=self.app.version, **members)

    def _seen_revision(self) -> Revision:
        return self.broker.mirror_revision if self.broker is not None else 0

    def _refuse(self, why: str) -> None:
        if self.broker is not None:
            self.broker.lose_all(why)

    def _warnings(self) -> dict[str, str]:
        refusal = self.broker.watermark.refusal if self.broker is not None else None
        return {"storage": refusal} if refusal is not None else {}

    def _about(self) -> dict[str, Any]:
        if self.broker is None:
            return {"segments": 0, "draining": False}
        space = self.broker.watermark.space
        disk = DiskSpace(used_bytes=space.used_bytes, capacity_bytes=space.capacity_bytes) if space else None
        ends_s = end_of_token(self._peer_token)
        return {
            "segments": len(self.broker.serving_now()),
            "draining": self.broker.announcement.draining,
            "disk": disk,
            "peer_token_ends_ms": None if ends_s is None else int(ends_s * 1000),
        }

    def _waiting_for(self) -> dict[str, str]:
        return self.broker.not_ready if self.broker is not None else {"broker": "it is starting"}
