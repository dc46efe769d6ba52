"""Goal: every promise holds in worlds in which everything fails. Method: some seeds; `make simulate` runs more."""

from __future__ import annotations

import pytest

from tests.simulation.run import run_seed


@pytest.mark.parametrize("seed", range(1, 21))
def test_seed(seed: int) -> None:
    result = run_seed(seed)
    assert not result.violations, f"replay: make simulate SEED={seed}"
    assert result.transactions > 0
