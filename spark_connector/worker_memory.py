"""Spark's Python workers live from task to task. Work that each of them would repeat in or after every task is done
only once."""

from __future__ import annotations

import gc
import os
import sys
from functools import lru_cache

KEPT_BYTES = 31 * 1024 * 1024
"""Below 32 MiB, above which glibc does not adapt."""


def prepare_worker() -> None:
    """Prepare a worker. In any other process this does nothing, because the memory of a driver belongs to its user."""
    if getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None) == "pyspark.daemon":
        _keep_memory(os.getpid())
        _freeze_what_is_loaded(os.getpid(), len(sys.modules))


@lru_cache(maxsize=1)
def _keep_memory(_pid: int) -> None:
    """Keep freed memory. Each Arrow batch that Spark passes arrives as `bytes`, and the memory of large ones would be
    returned to the kernel and obtained from it again, cleared page by page. Once a piece of this size has been freed,
    glibc keeps free memory up to twice that size (mallopt(3), M_MMAP_THRESHOLD). Elsewhere this has no effect."""
    bytes(KEPT_BYTES)


@lru_cache(maxsize=1)
def _freeze_what_is_loaded(_pid: int, _modules: int) -> None:
    """Freeze loaded objects. Called once, and again when more modules have been loaded.

    After every task a worker collects garbage, and examines all objects of Spark, Arrow and this package: 60 ms of CPU,
    four times in a micro-batch of two tasks. None of these objects is ever garbage.
    """
    gc.collect()
    gc.freeze()
