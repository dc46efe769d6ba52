"""How far the suite goes: `make quick` in a minute, `make test` in minutes, `make test-all` every case of every sweep,
before a release.

What runs only in `make test-all` are more of the same: more seeds, longer storms, the same story on one more store.
Each rule has a case that always runs. `make quick` leaves out whatever starts another process (Spark, etcd, ZooKeeper,
the services themselves) and what asks for a long timeout.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

WHOLE = os.environ.get("METATXN_TESTS") == "all"
QUICK = os.environ.get("METATXN_TESTS") == "quick"
_STARTS_PROCESSES = re.compile(
    r"^(?:from|import) (?:subprocess|pyspark|examples|tests\.(?:servers|installed|chaos|spark_connector|runbooks))\b"
    r"|^from tests\.\w+(?:\.\w+)*\.?(?:processes|command_line|dev_server|deployments|backups|matrix\S*) import",
    re.MULTILINE,
)
_OF_A_SERVER = re.compile(r"etcd|zookeeper|spark|s3")


def usually(usual: T, whole: T) -> T:
    """`usual`, or `whole` in `make test-all`."""
    return whole if WHOLE else usual


def is_quick(item: pytest.Item) -> bool:
    """It starts no process, and nothing says that it may take long."""
    fixtures = getattr(item, "fixturenames", ())
    return not (
        item.get_closest_marker("timeout")
        or _starts_processes(item.path)
        or any(map(_OF_A_SERVER.search, [item.name, *fixtures]))
    )


@cache
def _starts_processes(path: Path) -> bool:
    return bool(_STARTS_PROCESSES.search(path.read_text()))
