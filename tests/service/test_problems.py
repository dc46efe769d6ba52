"""The words of the error table: what a caller reads must be true wherever a code is used."""

from __future__ import annotations

import pytest

from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metatxn.wire import errors
from metatxn.wire.errors import BY_CODE, ErrorCode
from metatxn.wire.ids import TxnId
from metatxn.wire.problems import problem_of
from participants.txn.refusals import refusal


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_says_what_to_do(code: ErrorCode) -> None:
    kind = BY_CODE[code]
    assert kind.title and kind.action.endswith(".")


@pytest.mark.parametrize("state", [TxnState.COMMITTED, TxnState.ABORTED])
def test_nobody_is_told_to_abort_what_is_decided(state: TxnState) -> None:
    """A write behind the decision: the transaction is final, and only a new one can take the work."""
    header = Header(state=state, timeout_ms=2, created_ms=1, finalized_ms=3)
    problem = problem_of(refusal(TxnId(0, 7), header))
    assert problem.code is ErrorCode.TXN_CONFLICT
    assert "Abort" not in problem.action and "new transaction" in problem.action and "Read its state" in problem.action


def test_a_refusal_of_a_part_says_nothing_of_the_whole() -> None:
    """Anyone who believes that nothing was done would do all of it again."""
    refused = errors.TransactionConflict("the second of two messages is held by another transaction")
    assert refused.definite and problem_of(refused).definite
    assert not refused.not_definite().definite and not problem_of(refused.not_definite()).definite
