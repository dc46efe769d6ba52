"""Cutting what needs several applies, by number and by bytes: a key may contain names of thousands of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from metastore.api import MetadataStore
from metastore.types import Batch

T = TypeVar("T")


def slices(
    store: MetadataStore, items: Sequence[T], most: int, add: Callable[[Batch, T], object]
) -> Iterator[Sequence[T]]:
    """Slices of up to `most` items that take half of what an apply may have, as `add` adds each to a batch; an item
    that takes more is alone. The other half is for what else is in the apply."""
    if len(items) <= 1:  # nothing to measure
        yield from [items] if items else []
        return
    start = size = 0
    for number, item in enumerate(items):
        batch = store.batch()
        add(batch, item)
        size += batch.size_bytes
        if number > start and (number - start == most or size > store.max_batch_bytes // 2):
            yield items[start:number]
            start, size = number, batch.size_bytes
    if start < len(items):
        yield items[start:]
