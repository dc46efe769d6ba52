"""The edge to the operating system's randomness: ids, tokens and jitter come from the seed.

Production code draws with `random`, `secrets` and `uuid`, and so do the libraries it uses. All of them end at
`os.urandom` or at the generator of the module `random`, so these two are replaced, and nothing in between.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def no_threads() -> Iterator[None]:
    """Anyone who starts a thread is told that it would run when it likes."""
    with mock.patch.object(threading.Thread, "start", side_effect=AssertionError("a thread in a simulation")):
        yield


@contextmanager
def seeded_entropy(seed: str) -> Iterator[None]:
    source = random.Random(seed)
    state, urandom = random.getstate(), os.urandom
    random.seed(f"{seed}/module")
    os.urandom = random._urandom = source.randbytes  # type: ignore[attr-defined]
    try:
        yield
    finally:
        os.urandom = random._urandom = urandom  # type: ignore[attr-defined]
        random.setstate(state)
