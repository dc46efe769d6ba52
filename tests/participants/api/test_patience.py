"""No request tries forever (issue 17, A4).

Goal: whatever rivals do, a request of an operator or a producer ends, says truthfully that nothing happened, and has
cost the store some dozens of applies; and it ends at once when nobody waits for its answer any more. Method: before
each of its applies a rival writes the records that the apply replaces, as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from httpx import Response

from metastore.txn import paths
from metastore.types import Applied, AtVersion, Batch
from metatxn.service import patience
from metatxn.service.departure import ASKED
from tests.participants.api.test_definite_refusals import CASES, TOPIC, Case, _filled, _judged, _prepared
from tests.participants.broker.process import BrokerProcess
from tests.participants.segment.world import World

_HELD = f"{TOPIC}/read-holds/h{{n}}"
FIRST = {
    "keep the topic": CASES["claim the topic"],
    "give the topic back": CASES["claim the topic"],
    "claim the topic again": CASES["claim the topic"],
    "keep holding reads": CASES["hold reads"],
    "let go of reads": CASES["hold reads"],
    "change policy of namespace": Case("PATCH", "/v1/policies/namespaces/public/default", {"retention_bytes": 9_000}),
    "change policy of cluster": Case("PATCH", "/v1/policies/cluster", {"retention_bytes": 9_000}),
}
"""What is sent before, where a request needs it to replace a record."""

NOT_HERE = ("create topic", "create with dead letters", "split", "seal")
"""The first ones replace nothing. And once a segment takes no more messages, its seal is repeated, with growing pauses,
until it is stored."""

RIVALRIES = {
    **{name: case for name, case in CASES.items() if name not in NOT_HERE},
    "keep the topic": Case("POST", f"{TOPIC}/exclusive-producer/keep-alive", {"epoch": "{epoch}"}),
    "give the topic back": Case("DELETE", f"{TOPIC}/exclusive-producer?epoch={{epoch}}"),
    "claim the topic again": Case("POST", f"{TOPIC}/exclusive-producer", {"session": "another", "fence": True}),
    "keep holding reads": Case("POST", f"{_HELD}/keep-alive", {"hold_ms": 60_000}),
    "let go of reads": Case("DELETE", _HELD),
}


@contextmanager
def rivals(world: World, left: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Batch]]:
    """While they are there: the applies of requests that were overtaken. `left` says whether their client has."""
    overtaken: list[Batch] = []
    apply = world.store.apply

    async def later(batch: Batch) -> Applied:
        inner = world.store.inner
        if ASKED.get(None) is not None:
            checked = [check.key for check in batch.checks if isinstance(check, AtVersion)]
            replaced = [key for key in checked if not key.startswith((paths.SEGMENT_OWNERS, paths.HEADERS))]
            overtaken.extend([batch] if replaced else [])
            for key in replaced:
                record = await inner.get(key)
                assert record is not None
                await inner.apply(inner.batch().replace(record, record.value))
        return await apply(batch)

    async def caller_left() -> bool:
        return left

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "apply", later)
        patched.setattr(patience, "caller_left", caller_left)
        yield overtaken


async def sent(process: BrokerProcess, case: Case, names: Mapping[str, str]) -> Response:
    return await process.http.request(case.method, _filled(case.path, names), json=_filled(case.body, names))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("what", RIVALRIES)
async def test_a_request_that_is_always_overtaken_ends(
    process: BrokerProcess, world: World, what: str, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_FIRST_PAUSE_S", 0)
    names = dict(await _prepared(process, world, 1, what))
    if what in FIRST:
        answer = await sent(process, FIRST[what], names)
        assert answer.status_code in (200, 201), answer.text
        names["epoch"] = str(answer.json().get("epoch"))
    before = await _judged(world)
    with rivals(world, left, monkeypatch) as overtaken:
        answer = await sent(process, RIVALRIES[what], names)
    if what == "seek by force":
        assert answer.status_code == 504, "transactions were aborted for it"
    else:
        assert answer.status_code == 503 and answer.json()["definite"], answer.text
        assert await _judged(world) == before
    assert len(overtaken) == (1 if left else patience.MOST_ROUNDS)
    answer = await sent(process, RIVALRIES[what], names)
    assert answer.status_code < 300, answer.text
