"""The quotas of principals."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator, BeforeValidator

from metatxn.service.audited import audited
from metatxn.service.http import UNQUOTED, Caller, problems
from metatxn.service.quotas.quotas import NOBODY, Quotas
from metatxn.service.quotas.stored import StoredQuotas
from metatxn.wire import names
from metatxn.wire.quotas import QUOTA_NAMES, QuotaChanges, QuotaInfo, QuotaPage
from metatxn.wire.text import no_control_characters

PrincipalPath = Annotated[str, UNQUOTED, AfterValidator(no_control_characters), Path(min_length=1, max_length=256)]
_PageToken = Annotated[
    str | None,
    BeforeValidator(lambda text: names.parse_page_token(text) if isinstance(text, str) else text),
    Query(),
]


def quota_routes(stored: StoredQuotas, quotas: Quotas) -> APIRouter:
    api = APIRouter(tags=["quotas"])
    _default_routes(api, stored, quotas)
    _principal_routes(api, stored, quotas)
    return api


def _default_routes(api: APIRouter, stored: StoredQuotas, quotas: Quotas) -> None:
    @api.get("/v1/quotas/default", responses=problems(403, 503))
    async def get_default_quota(caller: Caller) -> QuotaInfo:
        """Get the quota that applies where a principal's own says nothing. Without authentication all callers share
        it."""
        caller.require_admin()
        return (await stored.get(None)).model_copy(update={"use": quotas.use_of(NOBODY)})

    @api.patch("/v1/quotas/default", responses=problems(403, 409, 422, 503, 504))
    @audited("quota.change", body=QUOTA_NAMES)
    async def set_default_quota(request: QuotaChanges, caller: Caller) -> QuotaInfo:
        """Change the default. Amounts that are not named stay as they are, and null removes one."""
        caller.require_admin()
        return await stored.change(None, request.changes())


def _principal_routes(api: APIRouter, stored: StoredQuotas, quotas: Quotas) -> None:
    @api.get("/v1/quotas/principals", responses=problems(403, 422, 503))
    async def list_quotas(
        caller: Caller, limit: Annotated[int, Query(ge=1, le=1000)] = 100, page_token: _PageToken = None
    ) -> QuotaPage:
        """List the principals that have their own quota, by name."""
        caller.require_admin()
        found, more = await stored.page(page_token, limit)
        items = [info.model_copy(update={"use": quotas.use_of(info.principal or NOBODY)}) for info in found]
        return QuotaPage(items=items, next_page_token=names.page_token(str(found[-1].principal)) if more else None)

    @api.get("/v1/quotas/principals/{principal}", responses=problems(403, 422, 503))
    async def get_quota(principal: PrincipalPath, caller: Caller) -> QuotaInfo:
        """Get what a principal may use in a second, where that comes from, and what it has used lately."""
        if caller.name != principal:
            caller.require_admin()
        return (await stored.get(principal)).model_copy(update={"use": quotas.use_of(principal)})

    @api.patch("/v1/quotas/principals/{principal}", responses=problems(403, 409, 422, 503, 504))
    @audited("quota.change", body=QUOTA_NAMES)
    async def set_quota(principal: PrincipalPath, request: QuotaChanges, caller: Caller) -> QuotaInfo:
        """Change a principal's quota. Amounts that are not named stay as they are, and null removes one."""
        caller.require_admin()
        return await stored.change(principal, request.changes())
