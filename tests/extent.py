"""How far the suite goes: `make quick` in a minute, `make test` in minutes, `make test-all` every case of every sweep,
before a release.

What runs only in `make test-all` are more of the same: more seeds, longer storms, the same story on one more store.
Each rule has a case that always runs. `make quick` leaves out whatever starts another process (Spark, etcd, ZooKeeper,
the services themselves), what takes long, and the second kind of ledgers.
"""

from __future__ import annotations

import os
import re
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
_LEFT_OUT = re.compile(r"etcd|zookeeper|spark|s3|objects|sqlite_|plain")
_LONG = (
    *("fuzz", "simulation", "console", "gateways", "mutants", "test_citations.py", "test_project.py", "test_source.py"),
    *("histories/test_registers.py", "metastore/storms", "metastore/linearizability", "metastore/sqlite"),
    *("coordinator/linearizability", "coordinator/test_security.py", "coordinator/test_rest.py"),
    *("coordinator/test_races.py", "coordinator/test_newest.py"),
    *("service/test_gate.py", "service/test_openapi.py", "service/test_bodies.py"),
    *("service/test_audit.py", "service/test_quotas.py", "service/test_quota_rest.py"),
    *("metatxn/test_random_deliveries.py", "metatxn/test_transactions.py"),
    *("metatxn/test_compaction.py", "metatxn/test_commit_outcome.py", "metatxn/test_together.py"),
    *("metatxn/test_visibility.py", "metatxn/test_http.py"),
    *("participants/api", "participants/backup", "participants/broker", "participants/every_store"),
    *("participants/prefixes", "participants/processes", "participants/ledger/test_regions.py"),
    *("participants/segment/test_decisions.py", "participants/subscription/test_individual_acks.py"),
    *("participants/subscription/test_pending_acks.py", "participants/subscription/test_spread.py"),
    "participants/subscription/test_delayed.py",
)
"""Below `tests`."""


def usually(usual: T, whole: T) -> T:
    """`usual`, or `whole` in `make test-all`."""
    return whole if WHOLE else usual


def is_quick_file(path: Path) -> bool:
    """Its tests start no process, and do not take long."""
    name = path.relative_to(Path(__file__).parent).as_posix()
    return not name.startswith(_LONG) and not _STARTS_PROCESSES.search(path.read_text())


def is_quick(item: pytest.Item) -> bool:
    """Of those in quick files."""
    needed = [item.name, *getattr(item, "fixturenames", ())]
    return not item.get_closest_marker("timeout") and not any(map(_LEFT_OUT.search, needed))
