"""A transaction is kept alive through what passes, and no longer than it lives."""

from __future__ import annotations

from typing import cast

import pytest

import metatxn
from spark_connector.keep_alive import KeepAlive


class Refusing:
    """A transaction whose keep-alives fail, each with the next of these."""

    id = "0" * 32

    def __init__(self, *failures: metatxn.MetatxnError) -> None:
        self.failures = list(failures)

    def keep_alive(self, timeout_ms: int) -> None:
        raise self.failures.pop(0)


@pytest.mark.parametrize(
    "passing",
    [metatxn.ServiceUnreachable("nobody answers"), metatxn.OutcomeUnknown("no answer came")],
    ids=["not sent", "unknown"],
)
def test_what_passes_is_tried_again_and_a_decision_is_the_end(passing: metatxn.MetatxnError) -> None:
    over, never = metatxn.ExpiredTransaction("it was aborted"), metatxn.ExpiredTransaction("it was asked again")
    transaction = Refusing(passing, passing, over, never)
    alive = KeepAlive(cast(metatxn.Transaction, transaction), timeout_ms=1)
    with alive:
        alive._thread.join()
    assert transaction.failures == [never]
