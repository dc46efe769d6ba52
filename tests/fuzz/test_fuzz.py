"""Goal: no bytes make a decoder fail in another way than its own, and what it accepts it writes back the same.

Method: Hypothesis makes bytes, and changes good input in a few places, the same examples in every run; input that is
nested too deep, or holds numbers that are too long, comes first.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import HOSTILE, TARGETS

EXAMPLES = 150


@st.composite
def changed(draw: st.DrawFn, good: list[bytes]) -> bytes:
    """Good input with up to three places cut, put in or overwritten."""
    data = draw(st.sampled_from(good))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 4)))
        data = data[:start] + draw(st.binary(max_size=6)) + data[end:]
    return data


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_bad_input_is_refused_and_nothing_else_happens(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=EXAMPLES, derandomize=True, database=None, deadline=None)
    @given(st.binary(max_size=2_000) | changed(list(target.good)))
    def holds(data: bytes) -> None:
        target.check(data)

    for data in (*target.good, *HOSTILE):
        target.check(data)
    holds()
