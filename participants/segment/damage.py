"""Ledgers of a segment that its upkeep cannot read, because they are damaged or missing. They are reported once, and
tried again ever more rarely: reading a whole ledger in every reconcile would help no one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import structlog

from participants.common.metrics import BrokerMetrics
from participants.ledger.storage import LedgerCorrupt, LedgerError, LedgerMissing, LedgerTooNew

log = structlog.get_logger()
FIRST_PAUSE_S = 2.0
"""The first pause, which doubles each time."""
LONGEST_PAUSE_S = 600.0


@dataclass(slots=True)
class _Pause:
    until_s: float
    next_s: float


class DamagedLedgers:
    """The damaged ledgers of a segment. Used only from the event loop of its process. Times are those of the loop."""

    def __init__(self, segment: str, metrics: BrokerMetrics) -> None:
        self._segment = segment
        self._metrics = metrics
        self._pauses: dict[int, _Pause] = {}

    def may_read(self, ledger: int, now_s: float) -> bool:
        pause = self._pauses.get(ledger)
        return pause is None or now_s >= pause.until_s

    def failed(self, ledger: int, error: LedgerError, now_s: float) -> None:
        """The ledger could not be read. What is not damage, such as a full disk, is reported and tried each time."""
        if not isinstance(error, LedgerCorrupt | LedgerMissing):
            log.warning("a ledger is not indexed", segment=self._segment, ledger=ledger, error=str(error))
            return
        pause = self._pauses.get(ledger)
        if pause is None:
            what = "of a later release" if isinstance(error, LedgerTooNew) else "damaged"
            log.error(
                f"a ledger is {what}: its outcomes stay in the store, and it is read again ever more rarely",
                segment=self._segment,
                ledger=ledger,
                error=str(error),
            )
            self._metrics.damaged_ledgers.inc()
            pause = self._pauses[ledger] = _Pause(0, FIRST_PAUSE_S)
        pause.until_s = now_s + pause.next_s
        pause.next_s = min(2 * pause.next_s, LONGEST_PAUSE_S)

    def read(self, ledger: int) -> None:
        """The ledger was read, or is gone."""
        if self._pauses.pop(ledger, None) is not None:
            self._metrics.damaged_ledgers.dec()

    def keep_only(self, ledgers: Collection[int]) -> None:
        """Other ledgers than these are no longer there."""
        for number in [number for number in self._pauses if number not in ledgers]:
            self.read(number)

    def close(self) -> None:
        for number in list(self._pauses):
            self.read(number)
