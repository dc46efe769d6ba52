"""Transactions that have been open for long, and what each one costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.responses import Response

import metatxn
from metatxn.console.live import is_live
from metatxn.console.pages.ending import needs_force
from metatxn.console.pages.transactions import AGES
from metatxn.console.visit import Values, Visit
from metatxn.hanging_costs import HangingCost
from metatxn.wire.coordinator import HangingTransaction

PER_PAGE = 25
EXAMINED_PER_PAGE = 75
"""The transactions of which it is asked whether they hold something, for a page of those that do."""
SHOWN_PLACES = 4
ANSWER_WITHIN_S = 0.2
"""How long the page waits for what each of them costs; what is missing then follows."""
WORDS = (("1m", "a minute"), ("10m", "10 minutes"), ("1h", "an hour"), ("1d", "a day"))
SHOWS = (("holding", "those that hold something"), ("all", "all of them"))


@dataclass(frozen=True, slots=True)
class HangingRow:
    cost: HangingCost
    needs_force: bool

    @property
    def more(self) -> bool:
        return len(self.cost.places) > SHOWN_PLACES or bool(self.cost.txn.more_touched)


async def hanging(visit: Visit) -> Response:
    token = visit.query("page") or None
    age, show = visit.query("age") or "1m", visit.query("show") or "holding"
    if age not in AGES:
        raise metatxn.InvalidArgument(f"age: {age!r} is not one of {', '.join(AGES)}", field="age")
    if show not in dict(SHOWS):
        raise metatxn.InvalidArgument(f"show: {show!r} is not one of {', '.join(dict(SHOWS))}", field="show")
    holding, follows = show == "holding", token is None and not is_live(visit.request)

    async def load() -> Values:
        limit = EXAMINED_PER_PAGE if holding else PER_PAGE
        found, next_token = await visit.client.hanging(AGES[age], holding=holding, limit=limit).page_at(token)
        return {
            "items": await _rows(visit, found, ANSWER_WITHIN_S if follows else None),
            "shown_places": SHOWN_PLACES,
            "age": age,
            "ages": WORDS,
            "show": show,
            "shows": SHOWS,
            "all": _url(age, "all", None),
            "turned": token is not None,
            "first": _url(age, show, None) if token else None,
            "next": _url(age, show, next_token) if next_token else None,
        }

    return await visit.live_page("hanging.html", load)


async def _rows(visit: Visit, found: Iterable[HangingTransaction], within_s: float | None) -> list[HangingRow]:
    return [
        HangingRow(cost, needs_force(visit, cost.txn)) for cost in await visit.client.hanging_costs(found, within_s)
    ]


def _url(age: str, show: str, token: str | None) -> str:
    return f"/console/hanging?{urlencode({'age': age, 'show': show} | ({'page': token} if token else {}))}"
