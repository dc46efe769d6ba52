"""Which faults a seed makes, how often, and how many it has made.

Each seed draws its own mix: of every fault it takes none, a little or much. So there are seeds in which only the disk
lies, and seeds in which nothing works; faults that are always there together hide each other's consequences. What is
on, and what is off and why, is in docs/simulation.md.

Some promises break only when the same rare thing meets several requests for one kind of record, one after another. Were
all requests that unreliable, nobody would come so far. So a seed may aim at one kind of record (`AIMS`, `store_aimed`),
while all others are as before. Half of these aim at what the workload is about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from random import Random

from metastore.txn import paths


@dataclass(slots=True)
class Rates:
    """Probabilities, per call unless the name says otherwise. All zero: nothing goes wrong, calls only take time."""

    # the metadata store
    store_refused: float = 0.0  # definite: it did not reach the store
    store_lost_request: float = 0.0
    store_lost_reply: float = 0.0
    store_late: float = 0.0  # the caller has given up, then it lands
    store_slow: float = 0.0  # up to seconds instead of milliseconds
    store_aimed: float = 0.0  # added to late, slow and lost replies, for the one kind of record that is aimed at
    store_outages_per_minute: float = 0.0
    cut_off_from_store_per_minute: float = 0.0  # one process alone
    silences_of_store_per_minute: float = 0.0  # one process hears nothing for a while, and is heard
    compactions_per_minute: float = 0.0
    sessions_lost_per_minute: float = 0.0
    store_full_per_minute: float = 0.0
    watch_slow: float = 0.0
    watch_broken: float = 0.0
    watch_duplicated: float = 0.0
    watch_reset: float = 0.0
    # the network between clients and services
    net_lost_request: float = 0.0
    net_lost_reply: float = 0.0
    net_slow: float = 0.0
    net_duplicated: float = 0.0
    net_late: float = 0.0  # the caller has given up, then it arrives
    # the disk
    disk_slow: float = 0.0
    disk_sync_failed: float = 0.0
    disk_bit_flipped: float = 0.0
    disk_died_within: float = 0.0  # the process dies in the system call
    disk_full_per_minute: float = 0.0
    # the object store
    bucket_slow: float = 0.0
    bucket_lost_request: float = 0.0
    bucket_lost_reply: float = 0.0
    bucket_late: float = 0.0
    bucket_repeated: float = 0.0
    bucket_failed: float = 0.0
    # processes
    kills_per_minute: float = 0.0
    power_cuts_per_minute: float = 0.0
    freezes_per_minute: float = 0.0
    clock_jumps_per_minute: float = 0.0
    # not a fault, and yet it comes at the wrong time
    layout_changes_per_minute: float = 0.0
    drains_per_minute: float = 0.0  # begun, ended, or before a stop
    # ids that were given out before
    ids_in_use: float = 0.0  # of a block that is leased, somebody else uses some


MOST = Rates(
    store_refused=0.05,
    store_lost_request=0.04,
    store_lost_reply=0.06,
    store_late=0.04,
    store_slow=0.08,
    store_aimed=0.25,
    store_outages_per_minute=2.0,
    cut_off_from_store_per_minute=3.0,
    silences_of_store_per_minute=30.0,
    compactions_per_minute=10.0,
    sessions_lost_per_minute=3.0,
    store_full_per_minute=2.0,
    watch_slow=0.08,
    watch_broken=0.05,
    watch_duplicated=0.10,
    watch_reset=0.03,
    net_lost_request=0.06,
    net_lost_reply=0.08,
    net_slow=0.10,
    net_duplicated=0.08,
    net_late=0.05,
    disk_slow=0.10,
    disk_sync_failed=0.02,
    disk_bit_flipped=0.02,
    disk_died_within=0.004,
    disk_full_per_minute=2.0,
    bucket_slow=0.08,
    bucket_lost_request=0.05,
    bucket_lost_reply=0.05,
    bucket_late=0.05,
    bucket_repeated=0.05,
    bucket_failed=0.05,
    kills_per_minute=8.0,
    power_cuts_per_minute=4.0,
    freezes_per_minute=5.0,
    clock_jumps_per_minute=6.0,
    layout_changes_per_minute=10.0,
    drains_per_minute=6.0,
    ids_in_use=0.5,
)
"""What "much" is."""

_LEVELS: Sequence[float] = (0.0, 0.0, 0.25, 1.0)

AIMS = (
    paths.HEADERS,
    ":w:",  # operations: intents, and acknowledgements
    ":a:",
    paths.PREPARED,  # with the headers that publishes ask for, and not with decisions
    paths.TRANSACTION_KEYS,
    paths.SEGMENTS,
    paths.SEGMENT_OWNERS,
    paths.SEGMENT_STATES,
    paths.SUBSCRIPTIONS,
    paths.CURSORS,
    paths.TOPICS,
    paths.POLICIES,
)
"""What keys of one kind have in common, and no others."""


class Faults:
    """Draws from `random`. `on` is false while a world is set up and once it heals."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.rates = Rates(**{rate.name: getattr(MOST, rate.name) * random.choice(_LEVELS) for rate in fields(Rates)})
        self.on = False
        self.made: Counter[str] = Counter()
        self._aim = ""

    def aim(self, random: Random, at: Sequence[str]) -> None:
        """Aim at a kind of record: one of those that the workload is about, or any."""
        self._aim = random.choice(random.choice((at, AIMS)))

    def aimed(self, keys: Iterable[str]) -> float:
        """How much likelier a request for these keys is to meet a fault."""
        return self.rates.store_aimed if self._aim and any(self._aim in key for key in keys) else 0.0

    def happens(self, name: str, likelier: float = 0.0) -> bool:
        """Whether the fault of this name happens now; counted."""
        probability: float = getattr(self.rates, name) + likelier
        if not self.on or not probability or self.random.random() >= probability:
            return False
        self.made[name] += 1
        return True

    def delay_s(self, slow: str, mean_s: float = 0.002, slow_s: float = 4.0, likelier: float = 0.0) -> float:
        """Mostly a few milliseconds; when the fault `slow` happens up to `slow_s`."""
        if self.happens(slow, likelier):
            return self.random.uniform(mean_s, slow_s)
        return self.random.expovariate(1 / mean_s)

    def pause_s(self, name: str) -> float | None:
        """Seconds to the next one of a fault that has a rate per minute; None: there will be none."""
        per_minute: float = getattr(self.rates, name)
        return self.random.expovariate(per_minute / 60) if per_minute else None
