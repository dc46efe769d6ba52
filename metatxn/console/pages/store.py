"""The records of the metadata store as they stand there. For administrators."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.responses import Response

import metatxn
from metatxn.console.visit import Visit

PATH = "/console/cluster/store"
PER_PAGE = 30
PREFIXES = (
    ("/txn/", "transactions"),
    ("/txn-lease/", "deadlines after a keep-alive"),
    ("/txn-prepared/", "what is prepared"),
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
    ("/exclusive-producer/", "who alone may publish"),
    ("/quota/", "quotas"),
    ("/quota-use/", "what principals have used lately"),
    ("/cluster/", "running services, drains and the cluster version"),
    ("/idx/", "indexes"),
    ("/gc/", "how far decided transactions were forgotten"),
    ("/batch/", "markers of group commits"),
)
"""What is where, as `metatxn store dump` prints it."""


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
        first=_url(prefix, None) if token else None,
        next=_url(prefix, next_token) if next_token else None,
    )


def _url(prefix: str, token: str | None) -> str:
    return f"{PATH}?{urlencode({'prefix': prefix, **({'page': token} if token else {})})}"
