"""Goal: who is refused behind a part of a change is not told that nothing happened; everybody else is told what is so.

Method: an endpoint that applies or does not, and then fails. That the endpoints of a broker are guarded by this,
wherever the store goes away, is what `tests/participants/api/test_definite_refusals.py` shows.
"""

from __future__ import annotations

import httpx
import pytest
from fastapi import APIRouter
from prometheus_client import CollectorRegistry

from metastore.backends.memory import MemoryStore
from metastore.errors import StoreFull, StoreUnavailable
from metastore.measured import EFFECTS, MeasuredStore
from metatxn.service.audited import audited
from metatxn.service.http import create_app
from metatxn.service.strict import StrictRoute
from metatxn.wire import errors

REFUSALS = {
    "gone": errors.NotFound("no such topic"),
    "elsewhere": errors.NotOwner("it moved", owner_url="http://other"),
    "away": StoreUnavailable("refused"),
    "full": StoreFull("no space"),
    "opening": errors.StoreUnavailable("it is being opened", action="Try again; nothing happened."),
}


async def refused(kind: str, applies: bool, *, is_audited: bool = True) -> tuple[int, str, bool]:
    store = MeasuredStore(MemoryStore(()), lambda *_: None)
    router = APIRouter(route_class=StrictRoute)

    async def change() -> None:
        if applies:
            await store.apply(store.batch().put("/a", b""))
        raise REFUSALS[kind]

    router.post("/change")(audited("topic.create")(change) if is_audited else change)
    app = create_app("changes", "under test", "0", CollectorRegistry())
    app.include_router(router)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        answer = await http.post("/change")
    assert EFFECTS.get() is None
    await store.close()
    return answer.status_code, answer.json()["code"], answer.json()["definite"]


@pytest.mark.parametrize("kind", REFUSALS)
async def test_a_refusal_is_definite_only_without_an_effect(kind: str) -> None:
    status, code, definite = await refused(kind, applies=False)
    assert definite
    unknown = (504, "OUTCOME_UNKNOWN", False)
    behind = {"gone": (404, "NOT_FOUND", False), "elsewhere": (status, code, True)}.get(kind, unknown)
    assert await refused(kind, applies=True) == behind
    assert await refused(kind, applies=True, is_audited=False) == (status, code, True), "a hot path judges for itself"
