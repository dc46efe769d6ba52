"""What the caller may do, as the services say: from the token file, or from the claims of a signed token. For
administrators also who else may do what, and who changed what."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import get_args
from urllib.parse import urlencode

from starlette.responses import Response

import metatxn
from metatxn.console.formats import sentence
from metatxn.console.visit import Values, Visit
from metatxn.health import processes_of
from metatxn.wire.access import Right
from metatxn.wire.models import AuditEntry, AuditOutcome
from metatxn.wire.names import topic_name

RIGHTS: tuple[tuple[Right, str], ...] = (
    ("produce", "publish messages"),
    ("consume", "read messages, and see its segments and subscriptions"),
    ("admin", "create and delete it, and change its segments, its schema and its policy"),
)
MOST_PATTERNS = 200
PATH = "/console/access"
PER_PAGE = 50
FILTERS = ("principal", "verb", "text", "outcome")
MOST_SERVICES = 100


async def access(visit: Visit) -> Response:
    topic = visit.query("topic")
    try:
        name = topic_name(topic) if topic else ""
    except ValueError as error:
        raise metatxn.InvalidArgument(f"topic: {error}", field="topic") from None
    given = sorted(visit.access.topics.items())
    return visit.page(
        "access.html",
        given=given[:MOST_PATTERNS],
        more=max(0, len(given) - MOST_PATTERNS),
        rights=RIGHTS,
        topic=topic,
        name=name,
        allowed=[right for right, _ in RIGHTS if name and visit.access.may(right, name)],
    )


async def token_list(visit: Visit) -> Response:
    """Who may do what. For administrators."""
    token = visit.query("page") or None
    found, next_token = await visit.client.accepted_tokens(limit=PER_PAGE).page_at(token)
    return visit.page("tokens.html", tokens=found, **_pages(f"{PATH}/tokens", {}, token, next_token))


async def audit_lines(visit: Visit) -> Response:
    """The audit log of one service, as far as it is asked for. For administrators."""
    wanted, token = visit.query("service"), visit.query("page") or None
    asked = {name: visit.query(name) for name in FILTERS}
    given = {name: value for name, value in asked.items() if value}
    services = processes_of(await visit.client.cluster())[:MOST_SERVICES]
    chosen = next((each for _, each in services if wanted in (each.id, "")), None)
    if chosen is None:
        raise metatxn.NotFound(f"no service has the id {wanted[:100]!r} now", action="Choose one that is running.")
    found: list[AuditEntry] = []
    next_token, silence = None, ""
    try:
        lines = visit.client.audit_log(chosen.url, limit=PER_PAGE, **given)  # type: ignore[arg-type]  # checked there
        found, next_token = await lines.page_at(token)
    except metatxn.NotFound as error:
        silence = f"{sentence(str(error))} {error.action}"
    return visit.page(
        "audit.html",
        services=services,
        chosen=chosen,
        entries=[(_ms(each.timestamp), each) for each in found],
        silence=silence,
        turned=token is not None,
        asked=asked,
        outcomes=get_args(AuditOutcome),
        same=urlencode(given),
        command=_command(chosen.url, given),
        **_pages(f"{PATH}/audit", {"service": chosen.id, **given}, token, next_token),
    )


def _command(url: str, asked: dict[str, str]) -> str:
    options = (word for name, value in asked.items() for word in (f"--{name}", value))
    return shlex.join(["metatxn", "--url", url, "audit-log", *options])


def _pages(path: str, query: dict[str, str], token: str | None, next_token: str | None) -> Values:
    return {
        "first": f"{path}?{urlencode(query)}" if token else None,
        "next": f"{path}?{urlencode({**query, 'page': next_token})}" if next_token else None,
    }


def _ms(timestamp: str) -> int | None:
    try:
        return int(datetime.fromisoformat(timestamp).timestamp() * 1000)
    except ValueError:
        return None
