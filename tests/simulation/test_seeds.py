"""Goal: every promise holds in worlds in which everything fails.

Method: three hundred seeds; `make simulate` runs more. The workload `log` has plain producers only, no transactions.
"""

from __future__ import annotations

import pytest

from tests.simulation.run import run_seed


@pytest.mark.parametrize("seed", range(1, 301))
def test_seed(seed: int) -> None:
    result = run_seed(seed)
    assert not result.violations, f"replay: make simulate SEED={seed}"
    assert result.transactions > 0 or result.workload == "log"
