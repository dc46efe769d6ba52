"""Goal: applies that travel together behave as if each had travelled alone.

Method: many applies are submitted in one turn of the event loop, so that every backend that groups puts them into as
few requests as it can; then each answer is compared with what the store holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from metastore.api import MetadataStore
from metastore.errors import CheckFailed, InvalidBatch
from metastore.types import Absent, Applied, AtVersion, Batch, EmptyRange


async def together(store: MetadataStore, batches: Iterable[Batch]) -> list[Applied | BaseException]:
    return await asyncio.gather(*(store.apply(batch) for batch in batches), return_exceptions=True)


async def test_hundreds_of_independent_applies(store: MetadataStore) -> None:
    answers = await together(store, (store.batch().create(f"/k/{n:03d}", str(n).encode()) for n in range(400)))
    found = await store.scan("/k/")
    assert [record.value for record in found.records] == [str(n).encode() for n in range(400)]
    assert [Applied(record.version) for record in found.records] == answers
    assert all(record.first for record in found.records)


async def test_one_that_loses_does_not_touch_its_neighbours(store: MetadataStore) -> None:
    await store.apply(store.batch().put("/taken", b""))
    batches = [store.batch().create(f"/k/{n:02d}", b"") for n in range(50)]
    batches[17].check(Absent("/taken"))
    batches[31].check(AtVersion("/none", 1))
    answers = await together(store, batches)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, CheckFailed)] == [17, 31]
    assert {r.key for r in (await store.scan("/k/")).records} == {f"/k/{n:02d}" for n in range(50) if n not in (17, 31)}


async def test_a_refusal_is_of_a_revision_at_which_its_record_was_there(store: MetadataStore) -> None:
    """A neighbour behind it may write that very record: anyone who goes on from that revision must hear of it."""
    await store.apply(store.batch().put("/a", b"1"))
    batches = [store.batch().check(Absent("/a")).put("/b", b""), store.batch().put("/a", b"2")]
    refused, applied = await together(store, batches)
    assert isinstance(refused, CheckFailed) and refused.current is not None and isinstance(applied, Applied)
    assert refused.current.version <= refused.revision < applied.revision


async def test_a_poisoned_one_fails_alone(store: MetadataStore) -> None:
    batches = [store.batch().create(f"/k/{n:02d}", b"") for n in range(50)]
    batches[20].put("/large", bytes(store.max_batch_bytes))
    batches[40].put("/\udfff", b"")
    answers = await together(store, batches)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, InvalidBatch)] == [20, 40]
    assert len((await store.scan("/k/")).records) == 48


async def test_applies_that_touch_one_key_take_effect_in_the_order_of_the_calls(store: MetadataStore) -> None:
    batches = []
    for number in range(60):
        batches.append(store.batch().put("/same", str(number).encode()).put(f"/own/{number:02d}", b""))
    answers = await together(store, batches)
    revisions = [answer.revision for answer in answers if isinstance(answer, Applied)]
    assert len(revisions) == 60
    assert revisions == sorted(set(revisions)), "who writes one key cannot share a revision"
    record = await store.get("/same")
    assert record is not None and (record.value, record.version, record.first) == (b"59", revisions[-1], False)


async def test_put_delete_put_of_one_key_in_a_row(store: MetadataStore) -> None:
    await together(
        store,
        [store.batch().put("/a", b"1"), store.batch().delete("/a"), store.batch().create("/a", b"2")],
    )
    record = await store.get("/a")
    assert record is not None and record.value == b"2" and record.first


async def test_a_check_sees_the_write_called_before_it(store: MetadataStore) -> None:
    answers = await together(
        store,
        [
            store.batch().put("/a", b""),
            store.batch().check(Absent("/a")).put("/wrong", b""),
            store.batch().check(EmptyRange("/", "0")).put("/wrong", b""),
            store.batch().delete_range("/", "/b"),
            store.batch().check(EmptyRange("/", "0")).put("/right", b""),
        ],
    )
    assert [type(answer) for answer in answers] == [Applied, CheckFailed, CheckFailed, Applied, Applied]
    assert [record.key for record in (await store.scan("/")).records] == ["/right"]


async def test_one_of_many_wins_a_compare_and_set(store: MetadataStore) -> None:
    await store.apply(store.batch().put("/a", b"old"))
    record = await store.get("/a")
    assert record is not None
    answers = await together(store, (store.batch().replace(record, str(n).encode()) for n in range(100)))
    assert [n for n, answer in enumerate(answers) if isinstance(answer, Applied)] == [0]
    winner = await store.get("/a")
    assert {answer.current for answer in answers if isinstance(answer, CheckFailed)} == {winner}


@pytest.mark.parametrize("round_number", range(5))
async def test_no_write_skew_between_keys(store: MetadataStore, round_number: int) -> None:
    answers = await together(
        store,
        [
            store.batch().check(Absent("/left")).put("/right", b""),
            store.batch().check(Absent("/right")).put("/left", b""),
        ],
    )
    assert [type(answer) for answer in answers] == [Applied, CheckFailed]
    assert [record.key for record in (await store.scan("/")).records] == ["/right"]


async def test_no_write_skew_over_a_range(store: MetadataStore) -> None:
    answers = await together(
        store,
        (store.batch().check(EmptyRange("/room/", "/room0")).put(f"/room/{n}", b"") for n in range(20)),
    )
    assert sum(isinstance(answer, Applied) for answer in answers) == 1
    assert len((await store.scan("/room/")).records) == 1


async def test_no_write_skew_over_a_range_delete(store: MetadataStore) -> None:
    """One deletes the range if the flag is absent, the other sets the flag if the range has a record."""
    await store.apply(store.batch().put("/room/1", b""))
    record = await store.get("/room/1")
    assert record is not None
    answers = await together(
        store,
        [
            store.batch().check(Absent("/flag")).delete_range("/room/", "/room0"),
            store.batch().check(AtVersion("/room/1", record.version)).put("/flag", b""),
        ],
    )
    assert [type(answer) for answer in answers] == [Applied, CheckFailed]


async def test_a_chain_of_counters_loses_no_step(store: MetadataStore) -> None:
    async def increment(times: int) -> None:
        done = 0
        while done < times:
            record = await store.get("/counter")
            batch = store.batch()
            if record is None:
                batch.create("/counter", b"1")
            else:
                batch.replace(record, str(int(record.value) + 1).encode())
            try:
                await store.apply(batch)
                done += 1
            except CheckFailed:
                continue

    await asyncio.gather(*(increment(10) for _ in range(8)))
    record = await store.get("/counter")
    assert record is not None and record.value == b"80"


async def test_a_cancelled_caller_does_not_disturb_the_group(store: MetadataStore) -> None:
    tasks = [asyncio.create_task(store.apply(store.batch().put(f"/k/{n:02d}", b""))) for n in range(30)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    stored = {record.key for record in (await store.scan("/k/")).records}
    assert {f"/k/{n:02d}" for n, answer in enumerate(answers) if isinstance(answer, Applied)} <= stored
    assert all(isinstance(answer, Applied) for n, answer in enumerate(answers) if n % 3)
