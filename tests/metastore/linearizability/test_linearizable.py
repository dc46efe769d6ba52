"""Goal: concurrent clients see one atomic store, whatever becomes of its server, of them, and of answers on their way.

Method: many clients, in two processes, call without pause and write down what they ask and are told, while the server
is killed and started again, or frozen until somebody has waited in vain, and while the other process is killed and
started again. Each fault comes after this many answers. What timed out, and what a killed process had asked, is
unknown: it may have happened, or may at any later time, or never; all other errors say that nothing happened, and are
held to it. At the end one more client reads everything, and the whole history must have an order (see `verdict`).

There are 1,000 answers and half of the faults; in `make test-all` there are 4,000 and all of them.
`METATXN_LINEARIZABLE_ROUNDS` repeats the faults this many times. The history stays behind in the directory of the test.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.extent import usually
from tests.metastore.linearizability.deployments import DEPLOYMENTS, Deployment
from tests.metastore.linearizability.run import run
from tests.metastore.linearizability.verdict import verdict

ROUNDS = int(os.environ.get("METATXN_LINEARIZABLE_ROUNDS", "1"))
ANSWERS = usually(1_000, 4_000)


@pytest.fixture(params=sorted(DEPLOYMENTS))
async def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with DEPLOYMENTS[request.param](tmp_path) as deployment:
        yield deployment


@pytest.mark.timeout(300 * ROUNDS)
async def test_every_history_has_an_order(deployment: Deployment, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    wrong = verdict(await run(deployment, path, answers=ANSWERS, rounds=ROUNDS))
    assert not wrong, f"{path}\n" + "\n\n".join(f"{what}:\n{evidence}" for what, evidence in wrong.items())
