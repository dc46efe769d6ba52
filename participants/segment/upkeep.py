"""Background work of an owner, which is repeated until it succeeds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from metastore.errors import CheckFailed, MetastoreError
from metatxn.service.retry import until_it_succeeds
from metatxn.wire import errors
from participants.ledger.storage import LedgerError, OpenLedger, SealedLedger
from participants.segment.segment import Segment

log = structlog.get_logger()


def final_facts(sealed: SealedLedger, before: OpenLedger) -> dict[str, int | None]:
    """The fields of a ledger's record that are known once it is sealed. `before` is the ledger while it was open."""
    return {"entries": sealed.entries, "bytes": sealed.size_bytes, "last_ms": before.latest_ms}


async def until_done(segment: Segment, work: Callable[[], Awaitable[None]], again: str) -> None:
    """Await `work()` repeatedly until it ends without an error of the store or the storage, or the segment is lost, in
    which case the next opening does what is left. `again` is the log message for a repetition."""

    async def attempt() -> None:
        if segment.lost:
            return
        try:
            await work()
        except CheckFailed as lost:
            segment.deposed_by(lost)  # raises it if something else has changed, which is then read again
        except errors.MetatxnError:
            if not segment.lost:
                raise

    await until_it_succeeds(attempt, (MetastoreError, LedgerError), lambda error: _report(segment, again, error))


def _report(segment: Segment, again: str, error: Exception) -> None:
    if isinstance(error, CheckFailed):  # by other upkeep of this owner, which is nothing to look into
        log.debug(again, segment=segment.id, changed=error.current.key if error.current else None)
    else:
        log.warning(again, segment=segment.id, error=str(error))
