"""What holds for every test: its place in the suite, and that nothing fails for being slow."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.extent import QUICK, is_quick, is_quick_file

# On top of the profile that hypothesis takes by itself, which in CI is another one.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("patient"), max_examples=10)
settings.load_profile("quick" if QUICK else "patient")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if QUICK and collection_path.name.startswith("test_") and collection_path.is_file():
        return not is_quick_file(collection_path) or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files whose tests ask for the longest timeouts first, so that no worker sits idle at the end; the others stay in
    their order."""
    if QUICK:
        others = [item for item in items if not is_quick(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if is_quick(item)]
    longest: dict[str, float] = {}
    for item in items:
        marker = item.get_closest_marker("timeout")
        seconds = float(marker.args[0]) if marker else 0.0
        file = item.nodeid.partition("::")[0]
        longest[file] = max(seconds, longest.get(file, 0.0))
    items.sort(key=lambda item: -longest[item.nodeid.partition("::")[0]])
