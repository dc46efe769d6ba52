"""In which order the workers of a suite get its files, and which files one of them gets together."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[1]
SHARED_SPARK = "tests/spark_connector with one Spark"
"""All files whose tests share a Spark session and a `metatxn dev`: each worker would start, and warm up, its own."""
SHARED_BROWSER = "tests/console with one browser"
"""The files whose tests share a browser and the clusters that it visits, for the same reason."""
SHARED_FRAME = "tests/console with one browser, what all pages have in common"
"""The files among them whose tests visit all pages, which take as long as all others together."""
SHARED_SOURCE = "tests with one parsed source"
_STORIES = re.compile(r"^tests/participants/every_store/.*\[(?P<pair>\w+-\w+)[-\]]")
"""What runs on services that are started once for each pair of a store and a storage."""
_OF_ALL_PAGES = {"test_frame", "test_signed_in", "test_usable"}
_FIRST = (
    SHARED_SPARK,
    "tests/chaos/test_chaos.py",
    "tests/participants/processes/test_brokers.py",
    "tests/simulation/test_seeds.py",
    "tests/participants/prefixes/test_prefixes.py",
    "tests/participants/restored/test_recovery.py",
    "tests/spark_connector/test_failure_matrix.py",
    "tests/test_demo.py",
    "tests/metatxn/test_installed.py",
    "tests/spark_connector/test_example.py",
)
"""What takes longest, so that no worker sits idle at the end. Only one of the first six starts a Spark: Spark gives up
a Python process that has not connected within ten seconds, and several Sparks that start at once take longer."""


@cache
def work_of(file: str) -> str:
    """What a worker does as a whole: a file, by its path below the root, or several."""
    source = (ROOT / file).read_text()
    if re.search(r"\bspark: SparkSession", source):
        return SHARED_SPARK
    if re.search(r"\btree_of\b", source):
        return SHARED_SOURCE
    if re.search(r"\b(?:visitor|stranger): Visitor", source):
        return SHARED_FRAME if Path(file).stem in _OF_ALL_PAGES else SHARED_BROWSER
    return file


def place_of(nodeid: str) -> int:
    """What is not among the longest stays in its order."""
    work = work_of(nodeid.partition("::")[0])
    return _FIRST.index(work) if work in _FIRST else len(_FIRST)


class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist is not typed
    """`--dist loadfile`, but for the files that belong together."""

    def _split_scope(self, nodeid: str) -> str:
        if story := _STORIES.match(nodeid):
            return f"stories on {story['pair']}"
        return work_of(super()._split_scope(nodeid))
