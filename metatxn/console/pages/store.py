"""The records of the metadata store as they are, and whether they agree with each other. For administrators."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.responses import Response

import metatxn
from metatxn.console.live import is_live
from metatxn.console.visit import Values, Visit
from metatxn.console.watched_checks import WatchedCheck

PATH = "/console/cluster/store"
PER_PAGE = 30
STEPS_PER_LOOK = 20
"""The steps of a check that is being watched. The page itself does not wait for more than one."""
MOST_OF_EACH = 1_000
"""The characters that are shown of a record."""
MOST_OF_ONE = 100_000
"""The same for the one whose whole key was asked for."""
PREFIXES = (
    ("/txn/", "transactions"),
    ("/txn-lease/", "deadlines after a keep-alive"),
    ("/txn-prepared/", "prepared transactions"),
    ("/txn-writers/", "writers that count"),
    ("/txn-op/", "operations that are not cleaned up yet"),
    ("/txn-key/", "transaction keys"),
    ("/txn-seq/", "the next free transaction ids"),
    ("/topic/", "topics"),
    ("/segment/", "segments"),
    ("/segment-owner/", "owners of segments"),
    ("/segment-state/", "outcomes and sequences on segments"),
    ("/subscription/", "subscriptions"),
    ("/cursor/", "progress of subscriptions"),
    ("/group/", "consumer groups of Kafka's clients"),
    ("/group-offset/", "offsets of consumer groups"),
    ("/policy/", "policies"),
    ("/exclusive-producer/", "exclusive producers of topics"),
    ("/read-hold/", "revisions that readers hold"),
    ("/pulsar-schema/", "schemas of Pulsar's clients"),
    ("/quota/", "quotas"),
    ("/quota-use/", "what principals have used lately"),
    ("/cluster/", "running services, drains and the cluster version"),
    ("/idx/", "indexes"),
    ("/gc/", "how far decided transactions have been collected"),
    ("/batch/", "markers of group commits"),
)
"""The records, as `metatxn store dump` prints them."""


async def store_records(visit: Visit) -> Response:
    prefix, token = visit.query("prefix") or "/", visit.query("page") or None
    if not prefix.startswith("/"):
        action = f"Every key begins with a slash. Give /{prefix[:100]}."
        raise metatxn.InvalidArgument("prefix: it does not begin with a slash", action=action, field="prefix")
    records, next_token = await visit.client.stored_records(prefix, limit=PER_PAGE).page_at(token)
    return visit.page(
        "store.html",
        prefix=prefix,
        prefixes=PREFIXES,
        records=records,
        most_of_one=MOST_OF_ONE,
        most_of_each=MOST_OF_EACH,
        first=_url(prefix, None) if token else None,
        next=_url(prefix, next_token) if next_token else None,
    )


def _url(prefix: str, token: str | None) -> str:
    return f"{PATH}?{urlencode({'prefix': prefix, **({'page': token} if token else {})})}"


async def check_store(visit: Visit) -> Response:
    """Compare all records with each other, a part with each look, as long as the page is visible. Without the rights a
    new check asks the services, which refuse it."""
    live = is_live(visit.request)
    number, check = visit.site.watched_checks.of(visit.query("check") if live else "")
    check = check if visit.access.admin else WatchedCheck()

    async def load() -> Values:
        await check.go_on(visit.client, STEPS_PER_LOOK if live else 1, visit.site.now_ms())
        return {"check": check, "prefixes": dict(PREFIXES), "stream": f"{PATH}/check?check={number}"}

    return await visit.live_page("check.html", load)
