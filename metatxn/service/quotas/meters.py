"""What a principal uses of this process, and what it may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metastore.txn.records.quotas import PrincipalUse
from metatxn.service.quotas.buckets import TokenBucket
from metatxn.service.quotas.division import Use

WEIGHT = 0.5
"""The weight of the last second in what was used lately; the rest is what was used before."""
IDLE_RATE = 0.01
"""An amount that is used less than this per second is no longer in use."""


class Meter:
    """One amount of a principal. `used` is counted since the last `advance`. `fair` is the part that this process has
    if all that use it want more: no refusal names a longer time than with this one."""

    __slots__ = ("_was_limited", "bucket", "fair", "limit", "limited", "part", "rate", "used")

    def __init__(self, limit: int, now_s: float) -> None:
        self.limit = limit
        self.part = self.fair = float(limit)
        self.bucket = TokenBucket(limit, now_s)
        self.used = 0.0
        self.rate = 0.0
        self.limited = False
        self._was_limited = False

    def take(self, amount: float) -> None:
        self.used += amount
        self.bucket.take(amount)

    def divide(self, part: float, fair: float, now_s: float) -> None:
        self.part, self.fair = part, fair
        self.bucket.set_rate(part, now_s)

    def wait_s(self, now_s: float) -> float:
        """The wait: 0 if a request may pass, or else the seconds until then. A request that passes may leave a debt."""
        return self.bucket.missing(1, now_s) / max(self.part, self.fair)

    def advance(self, seconds: float, now_s: float) -> None:
        """This much time has passed since the last call. A meter in debt wants more, also if it does not ask
        meanwhile."""
        self.rate += (self.used / seconds - self.rate) * WEIGHT
        self._was_limited = self.limited or self.bucket.missing(1, now_s) > 0
        self.used, self.limited = 0.0, False

    @property
    def use(self) -> Use:
        """The use as it is told to others: what was used lately, and whether more was wanted in the last second."""
        return Use(self.rate, self._was_limited)

    @property
    def idle(self) -> bool:
        """Whether nothing is lost if it is forgotten: there is no debt."""
        return self.rate < IDLE_RATE and not (self.used or self.limited or self._was_limited)


@dataclass(slots=True)
class Meters:
    """The limited amounts of a principal, by their names. `divided` is the state of the others for which the buckets
    have their rates."""

    by_name: dict[str, Meter]
    divided: int = -1

    @property
    def idle(self) -> bool:
        return all(meter.idle for meter in self.by_name.values())

    def told(self) -> PrincipalUse:
        uses = {name: meter.use for name, meter in self.by_name.items()}
        return PrincipalUse(
            rates={name: round(use.rate, 2) for name, use in uses.items()},
            limited=tuple(name for name, use in uses.items() if use.limited),
        )


def uses_of(told: Mapping[str, PrincipalUse], principal: str, name: str) -> Use | None:
    """What a process says about an amount of a principal, or None."""
    use = told.get(principal)
    if use is None or (name not in use.rates and name not in use.limited):
        return None
    return Use(use.rates.get(name, 0.0), name in use.limited)
