"""The order of the suite: what takes longest begins first, so that no worker sits idle at the end."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests ask for the longest timeouts first; the others stay in their order."""
    longest: dict[str, float] = {}
    for item in items:
        marker = item.get_closest_marker("timeout")
        seconds = float(marker.args[0]) if marker else 0.0
        file = item.nodeid.partition("::")[0]
        longest[file] = max(seconds, longest.get(file, 0.0))
    items.sort(key=lambda item: -longest[item.nodeid.partition("::")[0]])
