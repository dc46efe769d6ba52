"""How the coordinators of one store divide the work of their sweeps.

Each has the transactions whose number, divided by how many coordinators are announced, leaves its own place among them.
What nobody has done some time after it was due is everybody's, so a coordinator that died, hangs or counts differently
delays its share and leaves nothing behind. Two that do the same work are harmless: every step is checked (DESIGN
§5.17). This only saves work, so the announcements, which prove nothing, are good enough for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from metatxn.wire.ids import TxnId

Share = Callable[[TxnId], bool]
"""Whether a transaction is this process's to sweep."""


def everything() -> Share:
    """The share of a process that is alone."""
    return lambda txn_id: True


def share_of(own: str, announced: Iterable[str]) -> Share:
    """The share of `own` among `announced`; everything, while it is not among them."""
    processes = sorted(announced)
    if own not in processes:
        return everything()
    place, of = processes.index(own), len(processes)
    return lambda txn_id: txn_id.sequence % of == place
