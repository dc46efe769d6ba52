"""The cluster version in its REST form (see `metastore.upgrade`)."""

from __future__ import annotations

from fastapi import APIRouter

from metastore import upgrade
from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.versions import RELEASES, Feature
from metatxn.service.audited import audited
from metatxn.service.openapi import problems
from metatxn.service.strict import StrictRoute
from metatxn.wire import errors
from metatxn.wire.coordinator import FinalizeRequest, UpgradeProcess, UpgradeStatus
from metatxn.wire.errors import ErrorCode

_READS = (ErrorCode.INVALID_ARGUMENT, ErrorCode.STORE_UNAVAILABLE)


def upgrade_routes(store: MetadataStore, clock: Clock) -> APIRouter:
    router = APIRouter(prefix="/admin/v2/upgrade", tags=["operations"], route_class=StrictRoute)

    @router.get("", response_model_exclude_none=True, responses=problems(*_READS))
    async def upgrade_status() -> UpgradeStatus:
        """The cluster version, the release of every process, and what stands in the way of the next version."""
        return upgrade_answer(await upgrade.read_upgrade(store))

    @router.post(
        "/finalize",
        response_model_exclude_none=True,
        responses=problems(*_READS, ErrorCode.UPGRADE_PENDING, ErrorCode.OUTCOME_UNKNOWN, ErrorCode.STORAGE_FULL),
    )
    @audited("upgrade.finalize", body=("accept_absent",))
    async def finalize(body: FinalizeRequest) -> UpgradeStatus:
        """Raise the cluster version to the one that this release speaks. Processes of earlier releases can no longer
        serve the cluster after that. If that is already done, nothing changes."""
        try:
            await upgrade.raise_version(store, clock, accept_absent=body.accept_absent)
        except upgrade.UpgradeRefused as refused:
            raise errors.UpgradePending(
                f"the cluster version cannot be raised: {refused}",
                action="Resolve what is named there, and try again.",
                obstacles=refused.obstacles,
            ) from None
        return upgrade_answer(await upgrade.read_upgrade(store))

    return router


def upgrade_answer(found: upgrade.Upgrade) -> UpgradeStatus:
    return UpgradeStatus(
        version=found.version,
        target=found.target,
        release=RELEASES.get(found.target),
        finalized_ms=found.finalized_ms,
        processes=[
            UpgradeProcess(service=each.service, url=each.url, release=each.release, speaks=each.speaks)
            for each in found.processes
        ],
        obstacles=found.obstacles,
        features=[feature.value for feature in Feature if found.version < feature.since <= found.target],
    )
