"""Endpoints that both services have: liveness, readiness, and the members of the cluster."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, Query
from fastapi.responses import JSONResponse, Response
from pydantic import AfterValidator

from metastore.api import MetadataStore
from metastore.errors import MetastoreError
from metastore.incarnation import version_of
from metastore.keys import prefix_end, unescape
from metastore.txn import paths
from metastore.types import Record
from metatxn.service import audit_pages
from metatxn.service.audit_pages import AuditFilter
from metatxn.service.http import Caller
from metatxn.service.known_cluster import WITHIN_SECONDS, KnownCluster
from metatxn.service.listeners import UsedListener
from metatxn.service.openapi import problems
from metatxn.wire.access import AccessInfo
from metatxn.wire.errors import ErrorCode
from metatxn.wire.listeners import address_for
from metatxn.wire.models import (
    STORE,
    AuditOutcome,
    AuditPage,
    BrokerProcess,
    Cluster,
    Health,
    KnownServices,
    Liveness,
    Process,
    ServiceStatus,
    StoreStatus,
    ThroughputAnswer,
)
from metatxn.wire.names import short_page_token

_Limit = Annotated[int, Query(ge=1, le=1000)]
_PageToken = Annotated[Annotated[str, AfterValidator(short_page_token)] | None, Query()]
_Text = Annotated[str | None, Query(min_length=1, max_length=256)]
T = TypeVar("T")
_NOT_READY = Health(ready=False, waiting_for={STORE: "no answer within 3 s"})


async def _nothing() -> dict[str, str]:
    return {}


def add_operations(
    app: FastAPI,
    store: MetadataStore,
    service: Literal["coordinator", "broker"],
    *,
    waiting_for: Callable[[], dict[str, str]],
    behind: Callable[[], Awaitable[dict[str, str]]] = _nothing,
    warnings: Callable[[], dict[str, str]] = dict,
    about: Callable[[], dict[str, Any]] = dict,
    throughput: Callable[[], ThroughputAnswer],
    known: KnownCluster,
) -> None:
    """`waiting_for` names what is not recovered yet, and why; it is empty if this process is ready. `behind` does the
    same, but reads the store, and is called only once the store answers. `warnings` names what is out of order in a
    process that is ready. `about` returns the fields of `ServiceStatus` that only this service has. `throughput`
    returns what it has done lately, and `known` what it knows without the store."""
    began = time.monotonic()
    look = partial(_look, store, known, waiting_for, behind)

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", tags=["operations"])
    async def healthz() -> Liveness:
        """The process is running. This says nothing about the store: see `/readyz`."""
        return Liveness()

    @app.get(
        "/readyz",
        tags=["operations"],
        response_model=Health,
        responses={
            503: {
                "model": Health,
                "description": "Something is missing",
                "content": {"application/json": {"example": _NOT_READY.model_dump()}},
            }
        },
    )
    async def readyz() -> Response:
        """200 if the store answers and everything that this process owns is recovered, or else 503."""
        missing, _ = await look()
        health = Health(ready=not missing, waiting_for=missing, warnings=warnings() or None)
        return JSONResponse(health.model_dump(exclude_none=True), status_code=503 if missing else 200)

    @app.get("/v1/status", tags=["operations"])
    async def status(listener: UsedListener) -> ServiceStatus:
        """Show this service, and what it sees of the metadata store. The answer is 200 even if it is not ready."""
        missing, found = await look()
        full = None
        if found is not None:
            size_bytes, full = await asyncio.gather(_told_soon(store.size_bytes), _told_soon(store.why_full))
            found = found.model_copy(update={"size_bytes": size_bytes})
        return ServiceStatus(
            service=service,
            version=app.version,
            now_ms=time.time_ns() // 1_000_000,
            up_ms=int((time.monotonic() - began) * 1000),
            ready=not missing,
            waiting_for=missing,
            warnings=warnings() | ({} if full is None else {STORE: full}),
            store=found,
            store_answered_ms=known.answered_ms,
            last_known=_last_known(known, listener) if found is None else None,
            **about(),
        )

    _add_cluster(app, store)
    _add_own(app, throughput)


async def _look(
    store: MetadataStore,
    known: KnownCluster,
    waiting_for: Callable[[], dict[str, str]],
    behind: Callable[[], Awaitable[dict[str, str]]],
) -> tuple[dict[str, str], StoreStatus | None]:
    """What is missing, and what the store shows if it answers."""
    missing, found = dict(waiting_for()), None
    asked = time.perf_counter()
    try:
        async with asyncio.timeout(known.patience_s):
            revision = await store.current_revision()
            read_ms = round((time.perf_counter() - asked) * 1000, 3)
            found = StoreStatus(kind=store.kind, revision=revision, read_ms=read_ms)
            missing |= await behind()
    except (MetastoreError, TimeoutError) as error:
        missing[STORE] = str(error) or known.silence
    return missing, found


def _last_known(known: KnownCluster, listener: str | None) -> KnownServices:
    return KnownServices(
        coordinators=_processes(known.announced(paths.COORDINATORS), paths.COORDINATORS, Process, listener),
        brokers=_processes(known.announced(paths.BROKERS), paths.BROKERS, BrokerProcess, listener),
    )


async def _told_soon(ask: Callable[[], Awaitable[T | None]]) -> T | None:
    """The answer, or None if it does not come soon."""
    try:
        async with asyncio.timeout(WITHIN_SECONDS):
            return await ask()
    except (MetastoreError, TimeoutError):
        return None


def _add_cluster(app: FastAPI, store: MetadataStore) -> None:
    async def announced(prefix: str) -> Iterable[Record]:
        return (await store.range(prefix, prefix_end(prefix))).records

    @app.get(
        "/v1/cluster",
        tags=["operations"],
        responses=problems(ErrorCode.STORE_UNAVAILABLE),
        response_model_exclude_none=True,
    )
    async def cluster(listener: UsedListener) -> Cluster:
        """List every coordinator and broker, so that a client needs to know only one URL."""
        return Cluster(
            coordinators=_processes(await announced(paths.COORDINATORS), paths.COORDINATORS, Process, listener),
            brokers=_processes(await announced(paths.BROKERS), paths.BROKERS, BrokerProcess, listener),
            revision=await store.current_revision(),
            version=await version_of(store),
        )


def _add_own(app: FastAPI, throughput: Callable[[], ThroughputAnswer]) -> None:
    @app.get("/v1/throughput", tags=["operations"], response_model_exclude_none=True)
    async def get_throughput() -> ThroughputAnswer:
        """What this service has done in the last quarter of an hour."""
        return throughput()

    @app.get(
        "/admin/v2/audit-log",
        tags=["operations"],
        response_model=AuditPage,
        responses=problems(ErrorCode.INVALID_ARGUMENT, ErrorCode.NOT_FOUND),
    )
    async def audit_log(
        principal: _Text = None,
        verb: _Text = None,
        text: _Text = None,
        outcome: AuditOutcome | None = None,
        limit: _Limit = 100,
        page_token: _PageToken = None,
    ) -> Response:
        """Who changed what at this service, or tried to, latest first. `NOT_FOUND` if the service was started
        without a file for its audit log. Files that were moved away are not read."""
        wanted = AuditFilter(principal=principal, verb=verb, text=text, outcome=outcome)
        page = await asyncio.to_thread(audit_pages.latest_lines, limit, page_token, wanted)
        return JSONResponse(page.model_dump(mode="json", exclude_none=True) | {"next_page_token": page.next_page_token})

    @app.get("/v1/access", tags=["operations"])
    async def access(caller: Caller) -> AccessInfo:
        """Tell the caller who it is, and what it may do."""
        return caller.access()


P = TypeVar("P", bound=Process)


def _processes(records: Iterable[Record], prefix: str, kind: type[P], listener: str | None) -> list[P]:
    """What each process has announced, as far as it is shown, with its address for clients of this listener."""
    processes = []
    for record in records:
        announced: dict[str, Any] = json.loads(record.value)
        url = address_for(listener, announced["url"], announced.get("listeners"))
        about = announced | {"id": unescape(record.key.removeprefix(prefix)), "url": url}
        processes.append(kind.model_validate(about))
    return processes
