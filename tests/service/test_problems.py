"""The words of the error table: what a caller reads must be true wherever a code is used."""

from __future__ import annotations

import pytest

from metastore.txn.records import Header
from metastore.txn.states import TxnState
from metatxn.wire.ids import TxnId
from metatxn.wire.problems import KINDS, ErrorCode, ServiceError
from participants.txn.refusals import refusal


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_says_what_to_do(code: ErrorCode) -> None:
    kind = KINDS[code]
    assert kind.title and kind.action.endswith(".")


@pytest.mark.parametrize("state", [TxnState.COMMITTED, TxnState.ABORTED])
def test_nobody_is_told_to_abort_what_is_decided(state: TxnState) -> None:
    """A write behind the decision: the transaction is final, and only a new one can take the work."""
    header = Header(state=state, timeout_ms=2, created_ms=1, finalized_ms=3)
    problem = refusal(TxnId(0, 7), header).problem()
    assert problem.code is ErrorCode.TXN_CONFLICT
    assert "Abort" not in problem.action and "new one" in problem.action and "read its state" in problem.action


def test_a_refusal_of_a_part_says_nothing_of_the_whole() -> None:
    """Whoever believes that nothing was done would do all of it again."""
    refused = ServiceError(ErrorCode.TXN_CONFLICT, "the second of two messages is held by another transaction")
    assert refused.definite and refused.problem().definite
    assert not refused.partly().definite and not refused.partly().problem().definite
