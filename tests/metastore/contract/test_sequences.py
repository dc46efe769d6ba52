"""Goal: sequential records are numbered in the order in which the store took them, and no number comes twice.

Method: many callers of several clients put below one prefix at once; names, revisions and answers are compared with
each other and with the listing.
"""

from __future__ import annotations

import asyncio

import pytest

from metastore import api, keys
from metastore.api import MetadataStore
from metastore.errors import CheckFailed, InvalidBatch, StoreUnavailable
from metastore.types import Absent, Applied, Batch, Record
from tests.coordinator.stores import WrappedStore
from tests.metastore.factories import BY_COLOR, Backend

PREFIXES = ["/q/", "/q/1", "/q", "/é a/", "/q:%2F/", "/q/%", "😀"]


async def test_the_record_is_named_by_twenty_digits_and_answered_as_it_was_written(store: MetadataStore) -> None:
    first = await store.put_sequential("/q/", b"one")
    second = await store.put_sequential("/q/", b"two")
    assert [first.key, second.key] == [f"/q/{keys.number(1)}", f"/q/{keys.number(2)}"]
    assert (await store.scan("/q/")).records == [first, second]
    await store.apply(store.batch().replace(first, b"changed").remove(second))


async def test_a_number_is_not_given_again_when_its_record_is_gone(store: MetadataStore) -> None:
    for number in range(1, 4):
        record = await store.put_sequential("/q/", b"")
        assert record.key == f"/q/{keys.number(number)}"
        await store.apply(store.batch().remove(record))
    await store.put_sequential("/q/", b"")
    await store.apply(store.batch().delete_range("/q/", "/q0"))
    assert (await store.put_sequential("/q/", b"")).key == f"/q/{keys.number(5)}"


async def test_listings_hold_the_records_and_nothing_else(store: MetadataStore) -> None:
    """The counters are nowhere below the prefix, nor below one that begins or ends like it."""
    put = [await store.put_sequential(prefix, b"") for prefix in PREFIXES for _ in range(2)]
    assert len({record.key for record in put}) == len(put)
    for prefix in PREFIXES:
        expected = sorted((record for record in put if record.key.startswith(prefix)), key=lambda record: record.key)
        assert (await store.scan(prefix)).records == expected


async def test_names_grow_with_the_order_of_the_store(backend: Backend) -> None:
    clients = [await backend.open() for _ in range(3)]

    async def put(number: int) -> list[Record]:
        return [await clients[number % 3].put_sequential("/q/", str(number).encode()) for _ in range(4)]

    answers = await asyncio.gather(*(put(number) for number in range(9)))
    listing = (await clients[0].scan("/q/")).records
    assert listing == sorted((record for answer in answers for record in answer), key=lambda record: record.key)
    versions = [record.version for record in listing]
    assert versions == sorted(set(versions)), "a later name was written earlier"
    for answer in answers:
        assert answer == sorted(answer, key=lambda record: record.key)


async def test_an_indexed_record_gets_its_entries(store: MetadataStore) -> None:
    await store.put_sequential(BY_COLOR.prefix, b"red,blue")
    assert await store.query_index(BY_COLOR.name) == [f"blue/{keys.number(1)}", f"red/{keys.number(1)}"]


async def test_a_record_that_somebody_put_there_is_kept(store: MetadataStore) -> None:
    taken = f"/q/{keys.number(1)}"
    await store.apply(store.batch().put(taken, b"by hand"))
    with pytest.raises(CheckFailed) as failed:
        await store.put_sequential("/q/", b"")
    assert failed.value.check == Absent(taken)
    assert failed.value.current == await store.get(taken)
    await store.apply(store.batch().delete(taken))
    assert (await store.put_sequential("/q/", b"")).key == taken


async def test_a_counter_that_others_move_each_time_is_given_up_and_nothing_is_written(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_MOST_ROUNDS", 3)
    other = await backend.open()
    store = Overtaken(other, "/seq/%2Fq%2F")
    with pytest.raises(StoreUnavailable, match="/q/ first each time") as given_up:
        await store.put_sequential("/q/", b"")
    with pytest.raises(StoreUnavailable, match="/seq/%2Fq%2F first each time"):
        await store.lease_ids("/seq/%2Fq%2F", 10)
    assert given_up.value.definite and (await other.scan("/q/")).records == []
    assert (await other.put_sequential("/q/", b"")).key == f"/q/{keys.number(7)}", "none of their numbers is used again"


class Overtaken(WrappedStore):
    """A process that is slow: just before each of its applies, another one takes the next number of a counter."""

    def __init__(self, truth: MetadataStore, counter: str) -> None:
        super().__init__(truth)
        self._counter = counter

    async def apply(self, batch: Batch) -> Applied:
        await self.truth.lease_ids(self._counter, 1)
        return await super().apply(batch)


async def test_a_counter_that_holds_no_number_harms_nobody_else(store: MetadataStore) -> None:
    await store.apply(store.batch().put("/seq/%2Fq%2F", b"many"))
    bad, good = await asyncio.gather(
        store.put_sequential("/q/", b""), store.put_sequential("/t/", b""), return_exceptions=True
    )
    assert isinstance(bad, ValueError)
    assert isinstance(good, Record)


async def test_what_cannot_be_stored_is_refused(store: MetadataStore) -> None:
    for prefix, value in (("/\ud800", b""), ("/q/", bytes(store.max_batch_bytes))):
        with pytest.raises(InvalidBatch):
            await store.put_sequential(prefix, value)
    assert (await store.put_sequential("/q/", b"")).key == f"/q/{keys.number(1)}"
