"""One promise, one file: each takes a `History` and yields what contradicts the promise, in words.

No checker knows how a service works; `laws` alone knows the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.simulation.checkers import (
    aborted_reads,
    atomic_visibility,
    bounded,
    browsing,
    by_key,
    closed,
    consumption,
    cycles,
    early_deliveries,
    early_reads,
    efforts,
    ends,
    exclusive,
    fencing,
    freed,
    holds,
    horizons,
    kept,
    laws,
    leftovers,
    lost_writes,
    marks,
    numbers,
    order,
    own_transactions,
    refusals,
    repeated_writes,
    retries,
    snapshots,
    stays,
    transformed,
)
from tests.simulation.history import History

CHECKERS: dict[str, Callable[[History], Iterable[str]]] = {
    "one decision": laws.check,
    "a begin answers its own transaction": own_transactions.check,
    "no aborted read": aborted_reads.check,
    "no early read": early_reads.check,
    "no cycle of reads": cycles.check,
    "nothing after the decision": closed.check,
    "atomic visibility": atomic_visibility.check,
    "no lost write": lost_writes.check,
    "no repeated write": repeated_writes.check,
    "a retry is told where the first one lies": retries.check,
    "snapshot sums": snapshots.check,
    "order": order.check,
    "who follows a topic misses nothing": browsing.check,
    "ends are idempotent": ends.check,
    "no request tries forever": efforts.check,
    "no client stays with who cannot serve": stays.check,
    "acknowledged exactly when there is an output": consumption.check,
    "order per key, at one consumer": by_key.check,
    "no delivery before its time": early_deliveries.check,
    "acknowledged up to the highest mark": marks.check,
    "refused only for what was so": refusals.check,
    "fencing": fencing.check,
    "one exclusive producer at a time": exclusive.check,
    "no number is given out twice": numbers.check,
    "horizons never go back": horizons.check,
    "nothing is left": leftovers.check,
    "the store is bounded": bounded.check,
    "never drops what the policy keeps": kept.check,
    "keeps what a reader holds": holds.check,
    "frees what the policy frees": freed.check,
    "Kafka's clients have one output for each input": transformed.check,
}


def judge(history: History) -> list[str]:
    return [f"{promise}: {violation}" for promise, check in CHECKERS.items() for violation in check(history)]
