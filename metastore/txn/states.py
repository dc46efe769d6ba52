"""The state machine of a transaction, as a table.

    (absent) ──begin──▶ OPEN ──commit──▶ COMMITTED
                          └────abort───▶ ABORTED

There are only these transitions (PIP-471). COMMITTED and ABORTED are final. `prepared` is a record beside the header
and not a state; expiry by timeout and by fencing are reasons of ABORTED, not states.
"""

from __future__ import annotations

from enum import StrEnum


class TxnState(StrEnum):
    OPEN = "OPEN"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"

    @property
    def final(self) -> bool:
        return not _TRANSITIONS[self]


class ExpiredBy(StrEnum):
    """Why a transaction was aborted without a request of its user, who then gets EXPIRED_TRANSACTION."""

    TIMEOUT = "timeout"
    FENCING = "fencing"


_TRANSITIONS: dict[TxnState, frozenset[TxnState]] = {
    TxnState.OPEN: frozenset({TxnState.COMMITTED, TxnState.ABORTED}),
    TxnState.COMMITTED: frozenset(),
    TxnState.ABORTED: frozenset(),
}


def may_become(state: TxnState, target: TxnState) -> bool:
    return target in _TRANSITIONS[state]
