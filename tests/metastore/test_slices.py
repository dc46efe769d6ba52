"""Goal: what is cut into slices fits into applies, and nothing is left out or done twice.

Method: records with keys of random lengths, cut for a store whose applies are small.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from metastore.backends.memory import MemoryStore
from metastore.slices import slices
from metastore.types import Batch, Record


@pytest.mark.parametrize("seed", range(20))
async def test_slices_are_bounded_by_number_and_by_bytes(seed: int) -> None:
    dice = Random(seed)
    store = MemoryStore()
    store.max_batch_bytes = 2_000
    records = [Record("k" * dice.choice((3, 100, 400)), b"", n, first=False) for n in range(dice.randrange(60))]
    cut = list(slices(store, records, 5, Batch.remove))
    assert [record for some in cut for record in some] == records
    assert all(1 <= len(some) <= 5 for some in cut)
    assert all(2 * sum(len(record.key) for record in some) <= 1_000 for some in cut)
    for some, after in pairwise(cut):
        assert len(some) == 5 or 2 * sum(len(record.key) for record in (*some, after[0])) > 1_000
    await store.close()


async def test_what_exceeds_a_slice_is_alone() -> None:
    store = MemoryStore()
    store.max_batch_bytes = 100
    records = [Record(key, b"", 1, first=False) for key in ("a", "b" * 40, "c", "d")]
    cut = list(slices(store, records, 5, Batch.remove))
    assert [[record.key[0] for record in some] for some in cut] == [["a"], ["b"], ["c", "d"]]
    await store.close()
