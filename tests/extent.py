"""How far the suite goes: `make test` in minutes, `make test-all` every case of every sweep, before a release.

What runs only there are more of the same: more seeds, longer storms, the same story on one more store. Each rule has a
case that always runs.
"""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

WHOLE = os.environ.get("METATXN_TESTS") == "all"


def usually(usual: T, whole: T) -> T:
    """`usual`, or `whole` in `make test-all`."""
    return whole if WHOLE else usual
