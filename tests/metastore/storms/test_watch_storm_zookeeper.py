"""Goal: no storm makes a watch lose, repeat or invent anything, or hide a gap (see `watch_storm`).

Method: a few seconds and a death of the server, a minute and ten of them in `make test-all`; a cache fed by the watch
equals a full scan at the end, and every delivered item is held against what writers were told. Each kind of server has
a file of its own, so that they rage side by side.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.metastore.storms.places import SERVED
from tests.metastore.storms.watch_storm import survive


@pytest.mark.timeout(900)
async def test_a_watch_in_a_storm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await survive(SERVED["zookeeper"], tmp_path, monkeypatch)
