"""Goal: any number of coordinators answer like one, whatever becomes of them and of their store (issue 4, item 2).

Method: ten clients send every call to a random one of three processes on one etcd, and write down what they ask and are
told: begin, read, keep alive, remember writers, prepare, commit (with all writers, some, or none) and abort, single and
in batches, connect to keys, look at them and delete them. Meanwhile each process is killed and replaced by a blank one,
etcd is killed and started again, and some clients give up their calls half-way. In the end every coordinator lists
everything, and the whole history must have an order in which one coordinator alone would have answered the same (see
`verdict`; scenarios K86-K88, X112).

There are 1,500 answers and half of the faults, and 3,000 and all of them in `make test-all`.
`METATXN_LINEARIZABLE_ROUNDS` repeats the faults this many times. The history stays behind in the directory of the test.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.coordinator.linearizability.run import on_etcd, run
from tests.coordinator.linearizability.verdict import faults
from tests.extent import usually

ROUNDS = int(os.environ.get("METATXN_LINEARIZABLE_ROUNDS", "1"))
ANSWERS = usually(800, 3_000)


@pytest.mark.timeout(300 * ROUNDS)
async def test_three_coordinators_answer_like_one(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    async with on_etcd(tmp_path) as deployment:
        rounds = replace(deployment, faults=[*deployment.faults] * ROUNDS)
        wrong = list(faults(await run(rounds, path, answers=ANSWERS)))
    assert not wrong, f"{path}\n" + "\n\n".join(f"{what}:\n{evidence}" for what, evidence in wrong)
