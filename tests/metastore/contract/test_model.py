"""Goal: whatever is asked of it, in whatever order, a store answers as the model does.

Method: hypothesis writes histories over few keys with hostile names and sends them to two clients of one state and to
`model.py`. Compared are all answers: which check failed and what it met, records, order, limits, index entries and
numbers. After every write the whole store is listed, and a watch has to arrive there. Versions are opaque: one write of
the model is one revision of the store. Applies that one client sends together must answer as if called one after the
other; those of two clients, as in some order.

A failure prints the shortest history found. The histories are the same in every run that has imported the same modules:
hypothesis takes constants from them, so a run of all tests writes other histories than one of this file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from copy import deepcopy
from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from metastore.api import MetadataStore, sequence_counter
from metastore.errors import CheckFailed
from metastore.types import (
    Absent,
    AtVersion,
    Batch,
    Changes,
    EmptyRange,
    FirstVersion,
    RangeResult,
    Record,
    Resync,
    Revision,
)
from tests.extent import usually
from tests.metastore.contract.model import Lost, Model
from tests.metastore.factories import BY_COLOR, FACTORIES, ITEMS, Factory

HISTORIES = settings(
    max_examples=usually(6, 25),
    stateful_step_count=40,
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)

# Names that nest, that begin like one another, and whose characters mean something to somebody.
PLAIN = [
    "/a",
    "/a/b",
    "/a/b/c",
    "/a/b1",
    "/a b",
    "/a:b",
    "/a%2Fb",
    "/a%",
    "/f/é",
    "/f/日本/😀",
    "/f",
    "j",
    "k/\uffff/x",
]
INDEXED = [ITEMS + name for name in ("1", "10", "a:b", "%2F", "x y", "é")]
SEQUENCES = ["/q/", "/q/1", "/q:é %", ITEMS]
NAMED = [f"{prefix}{number:020}" for prefix in SEQUENCES for number in (1, 2)]
COUNTERS = ["/id/1", "/id/10"]
FIRST, LAST = "", "\U0010ffff"
BOUNDS = [FIRST, "/", "/a", "/a/", "/a/b", "/a/b/", "/a/b0", "/a0", "/f/", "/f/日", "/f0", "/i", "/idx/", "/idx0"]
BOUNDS += ["/item/", "/item/1", "/item0", "/q/", "/q/1", "/q0", "/seq/", "/seq0", "0", "j", "k", "k/\uffff/", LAST]
ENTRIES = ["", "blue/", "blue/1", "blue0", "red/", "red/a:b", "red/é", "red0", "s"]

keys = st.sampled_from(PLAIN + INDEXED + NAMED)
bare_keys = st.sampled_from([key for key in PLAIN + NAMED if not key.startswith(ITEMS)])
values = st.sampled_from([b"", b"red", b"blue", b"red,blue", b"green,red"])
bounds = st.sampled_from(BOUNDS)
# Half of the ranges are short, and begin and end at keys.
POINTS = sorted({*PLAIN, *INDEXED, *NAMED, *BOUNDS})
SPANS = [(POINTS[place], end) for place in range(len(POINTS)) for end in POINTS[place + 1 : place + 4]]
ranges = st.sampled_from(SPANS) | st.tuples(bounds, bounds)
places = st.integers(0, 30)  # among the keys that were seen, so that most of these steps meet a record
ages = st.sampled_from([0, 0, 0, 1, 2])  # 0: as it was seen last
creations = st.tuples(st.just("create"), keys, values)
writes = st.one_of(
    creations,
    st.tuples(st.just("replace"), places, ages, values),
    st.tuples(st.just("remove"), places, ages),
    st.tuples(st.just("put"), bare_keys, values),
    st.tuples(st.just("delete"), bare_keys),
    st.tuples(st.just("delete range"), ranges),
    st.tuples(st.just("delete range at"), places),
)
checks = st.one_of(
    st.tuples(st.just("absent"), keys),
    st.tuples(st.just("at version"), places, ages),
    st.tuples(st.just("first version"), places),
    st.tuples(st.just("first version of"), keys),
    st.tuples(st.just("empty range"), ranges),
)
batches = st.builds(list.__add__, st.lists(checks, max_size=2), st.lists(writes, max_size=3))
clients = st.integers(0, 1)
limits = st.integers(0, 4)

Step = tuple[Any, ...]
Run = Callable[[Coroutine[Any, Any, Any]], Any]
Seen = tuple[Record, Record]
Answer = tuple[object, Revision | None]


class Histories(RuleBasedStateMachine):
    def __init__(self, run: Run, factory: Factory, request: pytest.FixtureRequest) -> None:
        super().__init__()
        self._run = run
        self._exact = factory.keeps_every_change
        self._context = factory.start(request)
        self._stores: list[MetadataStore] = []
        self._model = Model(factory.keeps_entries)
        # Every state in which a record was found, oldest first: as the store showed it, and as the model does.
        self._seen: dict[str, list[Seen]] = {}
        self._revisions: dict[int, Revision] = {}
        self._watched: dict[str, Record] = {}
        self._run(self._open())

    async def _open(self) -> None:
        backend = await self._context.__aenter__()
        self._stores = [await backend.open(), await backend.open()]
        self._last = self._told = await self._stores[0].current_revision()
        self._watch = self._stores[1].watch("/", self._told + 1)

    def teardown(self) -> None:
        self._run(self._close())

    async def _close(self) -> None:
        await self._watch.close()
        await self._context.__aexit__(None, None, None)

    # -- writing -----------------------------------------------------------------------------------------------

    @initialize(steps=st.lists(creations, min_size=3, max_size=8))
    def fill(self, steps: list[Step]) -> None:
        self._run(self._together([0], [steps]))

    @rule(client=clients, steps=batches)
    def apply(self, client: int, steps: list[Step]) -> None:
        self._run(self._together([client], [steps]))

    @rule(client=clients, several=st.lists(batches, min_size=2, max_size=6))
    def apply_together(self, client: int, several: list[list[Step]]) -> None:
        self._run(self._together([client] * len(several), several))

    @rule(several=st.lists(batches, min_size=2, max_size=3))
    def race(self, several: list[list[Step]]) -> None:
        self._run(self._together([number % 2 for number in range(len(several))], several))

    @rule(client=clients, prefix=st.sampled_from(SEQUENCES), several=st.lists(values, min_size=1, max_size=4))
    def put_sequential(self, client: int, prefix: str, several: list[bytes]) -> None:
        self._run(self._put_sequential(client, prefix, several))

    @rule(client=clients, key=st.sampled_from(COUNTERS), count=st.integers(1, 3))
    def lease_ids(self, client: int, key: str, count: int) -> None:
        self._run(self._lease_ids(client, key, count))

    # -- reading -----------------------------------------------------------------------------------------------

    @rule(client=clients, span=ranges, limit=limits, reverse=st.booleans(), keys_only=st.booleans())
    def range(self, client: int, span: tuple[str, str], limit: int, reverse: bool, keys_only: bool) -> None:
        store = self._stores[client]
        start, end = span
        found = self._run(store.range(start, end, limit=limit, reverse=reverse, keys_only=keys_only))
        expected = self._model.range(start, end, reverse)
        assert found.more == (0 < limit < len(expected))
        assert found.revision >= self._last
        if keys_only:
            expected = [Record(record.key, b"", record.version, record.first) for record in expected]
        self._assert_same(found.records, expected[: limit or None])

    @rule(client=clients, wanted=st.lists(keys, max_size=4))
    def get_many(self, client: int, wanted: list[str]) -> None:
        snapshot = self._run(self._stores[client].get_many(wanted))
        assert snapshot.revision >= self._last
        assert snapshot.records.keys() == set(wanted)
        self._assert_same([snapshot.records[key] for key in wanted], [self._model.records.get(key) for key in wanted])

    @rule(
        client=clients,
        start=st.sampled_from(ENTRIES),
        end=st.none() | st.sampled_from(ENTRIES),
        limit=limits,
        reverse=st.booleans(),
    )
    def query_index(self, client: int, start: str, end: str | None, limit: int, reverse: bool) -> None:
        query = self._stores[client].query_index(BY_COLOR.name, start, end, limit=limit, reverse=reverse)
        expected = [entry for entry in self._model.entries() if start <= entry and (end is None or entry < end)]
        assert self._run(query) == expected[:: -1 if reverse else 1][: limit or None]

    # -- how -----------------------------------------------------------------------------------------------------

    async def _together(self, clients: Sequence[int], several: Sequence[list[Step]]) -> None:
        """Send batches in one turn of the loop and find an order in which the model answers alike."""
        pairs = [self._build(self._stores[client], steps) for client, steps in zip(clients, several, strict=True)]
        sent = (self._apply(self._stores[client], real) for client, (real, _) in zip(clients, pairs, strict=True))
        answers = await asyncio.gather(*sent)
        listing = await self._list(1 - clients[0])
        # Of one client, those that touch take effect in the order of the calls; of the others no order shows.
        calls = range(len(pairs))
        orders = [tuple(calls)] if len(set(clients)) == 1 else permutations(calls)
        plains = [plain for _, plain in pairs]
        explained = next(filter(None, (self._explain(order, plains, answers, listing) for order in orders)), None)
        assert explained, f"in no allowed order the model answers {answers} and then holds {listing.records}"
        self._model, revisions = explained
        assert all(revision > self._last for revision in revisions.values())
        self._revisions |= revisions
        self._last = max([self._last, *revisions.values()])
        await self._compare(listing)

    def _explain(
        self, order: Sequence[int], batches: Sequence[Batch], answers: Sequence[Answer], listing: RangeResult
    ) -> tuple[Model, dict[int, Revision]] | None:
        """The model after these applies, and the revisions of its writes, if in this order it comes to the same."""
        model = deepcopy(self._model)
        revisions = {}
        for number in order:
            before = model.writes
            told, revision = answers[number]
            if _plain_answer(model.apply(batches[number])) != told:
                return None
            if model.writes > before:
                assert revision is not None
                revisions[model.writes] = revision
        expected = model.range(FIRST, LAST)
        if _plain(listing.records) != _plain(expected):
            return None
        known = self._revisions | revisions
        pairs = zip(listing.records, expected, strict=True)
        alike = all(known.get(record.version, real.version) == real.version for real, record in pairs)
        return (model, revisions) if alike else None

    async def _apply(self, store: MetadataStore, batch: Batch) -> Answer:
        try:
            applied = await store.apply(batch)
        except CheckFailed as failed:
            return _plain_answer(Lost(batch.checks.index(failed.check), failed.current)), None
        return _plain_answer(None), applied.revision

    async def _list(self, client: int) -> RangeResult:
        return await self._stores[client].range(FIRST, LAST)

    async def _lease_ids(self, client: int, key: str, count: int) -> None:
        assert await self._stores[client].lease_ids(key, count) == self._model.lease_ids(key, count)
        await self._compare(await self._list(1 - client))

    async def _put_sequential(self, client: int, prefix: str, several: list[bytes]) -> None:
        puts = (self._stores[client].put_sequential(prefix, value) for value in several)
        answers = await asyncio.gather(*puts, return_exceptions=True)
        counter = sequence_counter(prefix)
        given = sorted((answer for answer in answers if isinstance(answer, Record)), key=lambda record: record.key)
        for record in given:
            assert self._model.put_sequential(prefix, counter, record.value) == record.key
            self._revisions[self._model.writes] = record.version
            self._last = max(self._last, record.version)
        for value, answer in zip(several, answers, strict=True):
            if isinstance(answer, Record):
                assert answer.value == value
                continue
            lost = self._model.put_sequential(prefix, counter, value)
            assert isinstance(answer, CheckFailed) and isinstance(lost, Lost) and lost.current
            assert answer.check == Absent(lost.current.key)
            self._assert_same([answer.current], [lost.current])
        await self._compare(await self._list(1 - client))

    def _build(self, store: MetadataStore, steps: list[Step]) -> tuple[Batch, Batch]:
        """The batch for the store and the one for the model; steps that a batch must not hold are left out."""
        real, plain = store.batch(), Batch()
        for step in steps:
            match step:
                case ("create", key, value) if _free(plain, key):
                    real.create(key, value)
                    plain.create(key, value)
                case ("replace", place, age, value) if (seen := self._recall(place, age)) and _free(plain, seen[0].key):
                    real.replace(seen[0], value)
                    plain.replace(seen[1], value)
                case ("remove", place, age) if (seen := self._recall(place, age)) and _free(plain, seen[0].key):
                    real.remove(seen[0])
                    plain.remove(seen[1])
                case ("put", key, value) if _free(plain, key):
                    real.put(key, value)
                    plain.put(key, value)
                case ("delete", key) if _free(plain, key):
                    real.delete(key)
                    plain.delete(key)
                case ("delete range", (start, end)) if _may_delete(plain, start, end):
                    real.delete_range(start, end)
                    plain.delete_range(start, end)
                case ("delete range at", place) if (seen := self._recall(place, 0)) and _may_delete(
                    plain, seen[0].key, seen[0].key + "0"
                ):
                    real.delete_range(seen[0].key, seen[0].key + "0")
                    plain.delete_range(seen[0].key, seen[0].key + "0")
                case ("absent", key):
                    real.check(Absent(key))
                    plain.check(Absent(key))
                case ("first version", place) if seen := self._recall(place, 0):
                    real.check(FirstVersion(seen[0].key))
                    plain.check(FirstVersion(seen[0].key))
                case ("first version of", key):
                    real.check(FirstVersion(key))
                    plain.check(FirstVersion(key))
                case ("at version", place, age) if seen := self._recall(place, age):
                    real.check(AtVersion(seen[0].key, seen[0].version))
                    plain.check(AtVersion(seen[1].key, seen[1].version))
                case ("empty range", (start, end)):
                    real.check(EmptyRange(start, end))
                    plain.check(EmptyRange(start, end))
        return real, plain

    def _recall(self, place: int, age: int) -> Seen | None:
        """One of the records that batches may write, as it was seen some states ago, perhaps before it was deleted."""
        known = list(self._seen.values())[place % len(self._seen)] if self._seen else []
        return known[-1 - age] if age < len(known) else None

    async def _compare(self, found: RangeResult) -> None:
        """The whole store with the whole model; what was seen is remembered for later checks."""
        self._last = max(self._last, found.revision)
        expected = self._model.range(FIRST, LAST)
        self._assert_same(found.records, expected)
        for pair in zip(found.records, expected, strict=True):
            if not pair[0].key.startswith(("/id/", "/idx/", "/seq/")):
                known = self._seen.setdefault(pair[0].key, [])
                if not known or known[-1] != pair:
                    known.append(pair)
        await self._follow({record.key: record for record in found.records if record.key.startswith("/")})

    def _assert_same(self, found: Sequence[Record | None], expected: Sequence[Record | None]) -> None:
        assert _plain(found) == _plain(expected)
        for real, model in zip(found, expected, strict=True):
            if real and model:
                revision = self._revisions.setdefault(model.version, real.version)
                assert real.version == revision, f"{real} was written by another apply: {revision}"

    async def _follow(self, listing: dict[str, Record]) -> None:
        """Take what the watch tells until it has told everything."""
        async with asyncio.timeout(60):
            while self._watched != listing:
                item = await anext(self._watch)
                assert item.revision > self._told
                self._told = item.revision
                if isinstance(item, Resync):
                    assert not self._exact, item
                    self._watched = dict(listing)
                else:
                    self._replay(item)

    def _replay(self, changes: Changes) -> None:
        for key, record in ((event.key, event.record) for event in changes.events):
            if record is None:
                del self._watched[key]
                continue
            known = self._watched.get(key)
            assert known is None or known.version < record.version
            assert not self._exact or (record.version == changes.revision and record.first == (known is None))
            self._watched[key] = record


def _plain(records: Sequence[Record | None]) -> list[tuple[str, bytes, bool] | None]:
    return [(record.key, record.value, record.first) if record else None for record in records]


def _plain_answer(lost: Lost | None) -> object:
    return (lost.place, *_plain([lost.current])) if lost else "applied"


def _free(batch: Batch, key: str) -> bool:
    """Not yet written by this batch."""
    return key not in batch.written() and not any(start <= key < end for start, end in batch.range_deletes)


def _may_delete(batch: Batch, start: str, end: str) -> bool:
    """Not what indexes and counters own (`/id/`, `/idx/`, `/item/`, `/seq/`), nor what this batch writes."""
    owned = (start < "/item0" and end > "/i") or (start < "/seq0" and end > "/seq/")
    return not owned and not any(start <= key < end for key in batch.puts)


@pytest.mark.timeout(900)  # hypothesis looks for a shorter history for up to five minutes
@pytest.mark.parametrize("name", sorted(FACTORIES))
def test_a_store_answers_as_the_model_does(request: pytest.FixtureRequest, name: str) -> None:
    with asyncio.Runner() as runner:

        class OfBackend(Histories):
            def __init__(self) -> None:
                super().__init__(runner.run, FACTORIES[name], request)

        run_state_machine_as_test(OfBackend, settings=HISTORIES)
