"""Spark's Python workers live from task to task. What each of them would do again and again, behind every task or in
it, is done once."""

from __future__ import annotations

import gc
import os
import sys
from functools import lru_cache

KEPT_BYTES = 31 * 1024 * 1024
"""Below 32 MiB, where glibc stops learning."""


def prepare_worker() -> None:
    """Does nothing in any other process: a driver's memory is its user's."""
    if getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None) == "pyspark.daemon":
        _keep_memory(os.getpid())
        _freeze_what_is_loaded(os.getpid(), len(sys.modules))


@lru_cache(maxsize=1)
def _keep_memory(_pid: int) -> None:
    """Each Arrow batch that Spark hands over arrives as `bytes`, and large ones would go back to the kernel and come
    from it anew, cleared page by page. Once a piece of this size has been freed, glibc keeps free memory up to twice
    that (mallopt(3), M_MMAP_THRESHOLD). Elsewhere this has no effect."""
    bytes(KEPT_BYTES)


@lru_cache(maxsize=1)
def _freeze_what_is_loaded(_pid: int, _modules: int) -> None:
    """Once, and again when more has been loaded.

    Behind every task a worker collects garbage, and looks for it in all that Spark, Arrow and this package are made of:
    60 ms of CPU, four times in a micro-batch of two tasks. None of that is ever garbage.
    """
    gc.collect()
    gc.freeze()
