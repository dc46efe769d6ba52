"""How the coordinators of one store divide the work of their sweeps.

Each has the transactions whose number, modulo the number of announced coordinators, is its own place among them. Work
that was not done some time after it was due belongs to all of them, so a coordinator that died, hangs or counts
differently delays its share, but nothing is left undone. It is harmless if two do the same work, because every step is
checked (DESIGN §5.17). The division only saves work, so the announcements, which prove nothing, are good enough for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from metatxn.wire.ids import TxnId

Share = Callable[[TxnId], bool]
"""Whether a transaction is in this process's share of the sweeps."""


def everything() -> Share:
    """The share of the only process."""
    return lambda txn_id: True


def share_of(own: str, announced: Iterable[str]) -> Share:
    """The share of `own` among `announced`; everything, while `own` is not among them."""
    processes = sorted(announced)
    if own not in processes:
        return everything()
    place, of = processes.index(own), len(processes)
    return lambda txn_id: txn_id.sequence % of == place
