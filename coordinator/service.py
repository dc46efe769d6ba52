"""The coordinator as a process part: HTTP, the sweeps, and its announcement in the store.

A coordinator stores nothing itself. Any number of them may serve one store, and a client may talk to a different one
with every request. One that is killed leaves nothing to recover.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any

import structlog
from fastapi import FastAPI

from coordinator import gc_sweep, key_sweep, survey
from coordinator.api.quota_routes import quota_routes
from coordinator.api.routes import (
    hanging_routes,
    listing_routes,
    store_routes,
    token_routes,
    transaction_key_routes,
    transaction_routes,
)
from coordinator.console import PATH, ConsoleRoute, MakeConsole
from coordinator.gc_sweep import GcSweep
from coordinator.key_sweep import KeySweep
from coordinator.listings import Listings
from coordinator.local import LocalCommits
from coordinator.metrics import CoordinatorMetrics
from coordinator.presence import Presence
from coordinator.store_checks import StoreChecks
from coordinator.stored_records import StoredRecords
from coordinator.survey import Survey
from coordinator.timeout_sweep import DEFAULT_INTERVAL_MS, DEFAULT_MAX_CLOCK_SKEW_MS, TimeoutSweep
from coordinator.transactions import Transactions
from coordinator.upgrades import upgrade_routes
from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.incarnation import IncarnationGuard
from metastore.measured import MeasuredStore
from metastore.membership import Membership
from metastore.txn.id_blocks import BLOCK_SIZE
from metatxn.service.direct import add_routes
from metatxn.service.exposure import Exposure
from metatxn.service.http import create_app
from metatxn.service.known_cluster import KnownCluster
from metatxn.service.lifecycle import Lifecycle, tell
from metatxn.service.operations import add_operations
from metatxn.service.patience import PATIENCE_MS
from metatxn.service.process_metrics import LoopLag, add_process_metrics
from metatxn.service.quotas.quotas import Quotas, count_refusals
from metatxn.service.quotas.stored import StoredQuotas
from metatxn.service.request_metrics import RequestMetrics
from metatxn.service.server import HttpServer
from metatxn.service.store_metrics import StoreMetrics
from metatxn.service.throughput import Throughput
from metatxn.wire.listeners import Listeners

DEFAULT_PORT = 8470
STOP_GRACE_S = PATIENCE_MS / 1000 + 5
"""A request whose reply was lost may query the store for this long about the outcome, and then wait for one more
answer."""

_DESCRIPTION = """Transactions over many streams, decided by one compare-and-set in a metadata store.

Every error is `application/problem+json` with `code`, `retriable`, `definite` and `action`. Every request may be
repeated, except begin without `version`, and connect without `session`."""

log = structlog.get_logger()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class CoordinatorService:
    """Serve the coordinator's API for `store`, which stays the caller's to close.

    `coordinator_id` is the high part of the ids of transactions begun here; by default it is the lowest that no other
    coordinator has (see `presence`). It need not be unique: ids come in blocks from one record per coordinator id in
    the store. `port` 0 takes a free one. Without `exposure` only this machine may connect, and another `host` raises
    `InvalidExposure`. With `console` pages for people are served at `/console`.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        advertise_url: str | None = None,
        listeners: Mapping[str, str] | None = None,
        exposure: Exposure | None = None,
        timeout_sweep_interval_ms: int = DEFAULT_INTERVAL_MS,
        max_clock_skew_ms: int = DEFAULT_MAX_CLOCK_SKEW_MS,
        gc_interval_ms: int = gc_sweep.DEFAULT_INTERVAL_MS,
        gc_retention_ms: int = gc_sweep.DEFAULT_RETENTION_MS,
        key_retention_ms: int = key_sweep.DEFAULT_RETENTION_MS,
        survey_interval_ms: int = survey.DEFAULT_INTERVAL_MS,
        coordinator_id: int | None = None,
        id_block_size: int = BLOCK_SIZE,
        clock: Clock = _now_ms,
        console: MakeConsole | None = None,
    ) -> None:
        self._exposure = exposure or Exposure()
        self._exposure.check(host)
        self._clock = clock
        self.metrics = CoordinatorMetrics()
        add_process_metrics(self.metrics.registry, version("metatxn"))
        self._store = store = MeasuredStore(store, StoreMetrics(self.metrics.registry).observe)
        self.transactions = Transactions(
            store, clock, coordinator_id or 0, metrics=self.metrics, id_block_size=id_block_size
        )
        store.group_listeners.append(self.metrics.group_commit_size.observe)
        self.listings = Listings(store, clock, self.metrics)
        self.process_id = secrets.token_hex(8)
        self.presence = Presence(store, self.process_id, coordinator_id, self.transactions.serve_as, listeners)
        self.membership = Membership(store, "coordinator", version("metatxn"))
        self.guard = IncarnationGuard(store, clock, seen=lambda: self.presence.revision)
        self.metrics.show_resyncs(lambda: self.presence.resyncs)
        self.timeout_sweep = TimeoutSweep(
            self.transactions,
            interval_ms=timeout_sweep_interval_ms,
            max_clock_skew_ms=max_clock_skew_ms,
            share=self.presence.share,
        )
        self.gc_sweep = GcSweep(
            store,
            clock,
            self.metrics,
            interval_ms=gc_interval_ms,
            retention_ms=gc_retention_ms,
            share=self.presence.share,
        )
        self.key_sweep = KeySweep(store, clock, self.guard.version, retention_ms=key_retention_ms)
        self.throughput = Throughput(self.metrics.counts, clock)
        self.survey = Survey(store, clock, self.metrics, self.listings.ages, interval_ms=survey_interval_ms)
        self.quotas = Quotas(store, refused=count_refusals(self.metrics.registry))
        self._known = KnownCluster(store, self.guard)
        self._running = AsyncExitStack()
        self._console = ConsoleRoute(console) if console is not None else None
        self.app = self._create_app()
        self.app.state.listeners = Listeners(advertise_url, listeners or {})
        lag = LoopLag(self.metrics.registry)
        tls = self._exposure.tls
        self._server = HttpServer(self.app, host, port, advertise_url, tls, grace_s=STOP_GRACE_S, lag=lag)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def commits(self) -> LocalCommits:
        """Commits by a broker in the same process."""
        return LocalCommits(self.transactions)

    @property
    def console_url(self) -> str | None:
        """Where people find the pages, if there are any."""
        return self.url + PATH if self._console is not None else None

    async def start(self) -> None:
        """Bind, announce, serve, sweep. Raises `OSError` if the port is in use, and the store's errors."""
        self._server.bind()
        try:
            await self.membership.announce(self.process_id, self.url)
            await self.guard.start()
            await self.presence.start(self.url)
            await self._running.enter_async_context(self.quotas.running())
            await self._running.enter_async_context(self._known.running())
            if self._console is not None:
                self._console.open(self.url)
            await self._server.start()
        except (Exception, asyncio.CancelledError):
            await self.stop()
            raise
        self.timeout_sweep.start()
        self.gc_sweep.start()
        self.key_sweep.start()
        self.survey.start()
        self.throughput.start()
        self._tell(Lifecycle.SERVICE_READY, url=self.url, coordinator_id=self.presence.coordinator_id)

    async def stop(self) -> None:
        """Withdraw the announcement, then finish the requests and the sweep in progress. The release stays announced
        until nothing more is written. Idempotent."""
        self._tell(Lifecycle.SERVICE_STOPPING)
        self.throughput.stop()
        await self.presence.stop()
        await self._running.aclose()
        await self.guard.stop()
        if self._console is not None:
            await self._console.close()
        await self._server.stop()
        await self.timeout_sweep.stop()
        await self.gc_sweep.stop()
        await self.key_sweep.stop()
        await self.survey.stop()
        await self.membership.withdraw()
        self._tell(Lifecycle.SERVICE_STOPPED)

    def _tell(self, event: Lifecycle, **members: Any) -> None:
        tell(event, service="coordinator", id=self.process_id, version=self.app.version, **members)

    def _create_app(self) -> FastAPI:
        registry = self.metrics.registry
        requests = RequestMetrics(registry)
        open_below = (PATH,) if self._console is not None else ()
        app = create_app(
            "metatxn coordinator",
            _DESCRIPTION,
            version("metatxn"),
            registry,
            self._exposure,
            requests,
            open_below,
            self.quotas,
        )
        add_operations(
            app,
            self._store,
            "coordinator",
            waiting_for=lambda: self.presence.waiting_for,
            behind=self.presence.behind,
            about=lambda: {
                "open_transactions": self.survey.open_transactions,
                "gc_backlog": self.gc_sweep.kept,
            },
            throughput=self.throughput.answer,
            known=self._known,
        )
        add_routes(app, transaction_routes(self.transactions), first=True)
        stored = StoredRecords(self._store)
        add_routes(app, listing_routes(self.transactions, self.listings, stored))
        add_routes(app, transaction_key_routes(self.transactions, self.listings))
        add_routes(app, hanging_routes(self.listings))
        add_routes(app, quota_routes(StoredQuotas(self._store, self.guard.version), self.quotas))
        add_routes(app, store_routes(stored, StoreChecks(self._store)))
        add_routes(app, token_routes(self._exposure.authenticator))
        if self._console is not None:
            app.router.routes.append(self._console)
        add_routes(app, upgrade_routes(self._store, self._clock))
        return app
