"""The records of the metadata store as they stand there, and whether they agree with each other. For administrators."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlencode

from starlette.responses import Response

import metatxn
from metatxn.console.live import is_live
from metatxn.console.visit import Values, Visit
from metatxn.wire.coordinator import CheckedRecords, StoreFinding

PATH = "/console/cluster/store"
PER_PAGE = 30
RECORDS_PER_STEP = 200
"""Comparing them takes some milliseconds, in which the coordinator does nothing else."""
STEPS_PER_LOOK = 20
"""Of a check that somebody watches. The page itself does not wait for more than one."""
MOST_FINDINGS = 100
MOST_PREFIXES = 100
"""What somebody else has written may have any beginning."""
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


@dataclass(slots=True)
class StoreCheckSoFar:
    """How far a check has come, for as long as somebody looks at it."""

    records: int = 0
    wrong: int = 0
    findings: list[StoreFinding] = field(default_factory=list)
    sizes: dict[str, CheckedRecords] = field(default_factory=dict)
    over: bool = False
    _token: str | None = None

    async def go_on(self, visit: Visit, steps: int) -> None:
        """Examine some more records. What fails is examined again the next time."""
        for _ in range(steps):
            if self.over:
                return
            found, self._token = await visit.client.check_store(limit=RECORDS_PER_STEP).page_at(self._token)
            self.over = self._token is None
            for each in found:
                self._add(each)

    def _add(self, found: CheckedRecords) -> None:
        self.records += found.records
        self.wrong += len(found.findings)
        self.findings += found.findings[: MOST_FINDINGS - len(self.findings)]
        if found.prefix not in self.sizes and len(self.sizes) == MOST_PREFIXES:
            return
        size = self.sizes.setdefault(found.prefix, CheckedRecords(prefix=found.prefix))
        size.records += found.records
        size.bytes += found.bytes


async def check_store(visit: Visit) -> Response:
    """Compares all records with each other, a part with each look, as long as the page is seen."""
    progress = StoreCheckSoFar()
    steps = STEPS_PER_LOOK if is_live(visit.request) else 1

    async def load() -> Values:
        await progress.go_on(visit, steps)
        return {"progress": progress, "prefixes": dict(PREFIXES)}

    return await visit.live_page("check.html", load)
