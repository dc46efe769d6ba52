"""A client that calls a store without pause, and writes down what it asked and what it was told.

    action  {"read": [key, ...]}                        answer  {"records": {key: [value, version] or null}, "revision"}
            {"range": [start, end]}                             the same, of what was found
            {"expected": {key: value or null},                  {"applied": revision}
             "writes": {key: value or null}}                    {"lost": {key: [value, version] or null}, "revision"}

Registers are written one at a time, with and without a check; nobody ever writes a value again. A list is the text of
its elements; several are appended to in one apply, which checks all that it has read, also lists that it leaves
alone. When a list is long, the next *generation* of it begins. Pairs are made to tempt a store into write skew.

An apply that lost a check is an answer (nothing happened, and this is what is there), and so it is judged. Of all
other errors only `OutcomeUnknown` leaves doubt.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from metastore.api import MetadataStore
from metastore.errors import CheckFailed, MetastoreError, OutcomeUnknown, StoreUnavailable
from metastore.keys import prefix_end
from metastore.types import (
    Absent,
    Applied,
    AtVersion,
    Batch,
    Check,
    EmptyRange,
    FirstVersion,
    RangeResult,
    Record,
    Snapshot,
)
from metastore.urls import open_store
from tests.histories.calls import Outcome, Recorder

REGISTERS = [f"/register/{number:02}" for number in range(16)]
REGISTERS_RANGE = ("/register/", "/register0")
LISTS = 6
LISTS_RANGE = ("/list/", "/list0")
LIST_LENGTH = 20
PAIRS_RANGE = ("/pair/", "/pair0")
FILLERS = [f"/filler/{number:03}" for number in range(600)]
"""Keys without a record, more than a request takes: a read with these in the middle takes several."""

Answer = TypeVar("Answer")
Seen = Mapping[str, Record | None]


async def open_patiently(url: str, **options: Any) -> MetadataStore:
    """Open the store as soon as its server answers: it may just have been started, on a machine that is busy."""
    while True:
        try:
            return await open_store(url, (), **options)
        except StoreUnavailable:
            continue


class Client:
    """Works on `store`; now and then it asks `other` something at the same time, as a client of its own."""

    def __init__(self, name: str, store: MetadataStore, other: MetadataStore, recorder: Recorder) -> None:
        self._name = name
        self._store = store
        self._other = other
        self._recorder = recorder
        self._dice = random.Random(name)
        self._known: dict[str, Record | None] = {}
        self._generations = [0] * LISTS
        self._made = 0

    async def run(self, stop: asyncio.Event) -> None:
        steps: dict[Callable[[], Awaitable[None]], int] = {
            self._look_at_registers: 4,
            self._overwrite: 3,
            self._compare_and_set: 8,
            self._append: 8,
            self._look_at_lists: 3,
            self._skew_of_absence: 2,
            self._skew_of_versions: 2,
        }
        while not stop.is_set():
            (step,) = self._dice.choices(list(steps), list(steps.values()))
            await step()

    # -- registers ----------------------------------------------------------------------------------------------

    async def _look_at_registers(self) -> None:
        if self._dice.random() < 0.2:
            await self.range(*REGISTERS_RANGE)
        else:
            await self._read(self._dice.sample(REGISTERS, self._dice.randrange(1, 4)))

    async def _overwrite(self) -> None:
        key, batch = self._dice.choice(REGISTERS), self._store.batch()
        await self._apply({}, batch.delete(key) if self._dice.random() < 0.1 else batch.put(key, self._new()))

    async def _compare_and_set(self) -> None:
        """With what is known, which may be long outdated; a client that loses knows better the next time."""
        key, batch = self._dice.choice(REGISTERS), self._store.batch()
        if key not in self._known and await self._read([key]) is None:
            return
        record = self._known[key]
        if record is None:
            batch.create(key, self._new())
        elif self._dice.random() < 0.3:
            batch.remove(record)
        else:
            batch.replace(record, self._new())
        await self._apply(self._values([key]), batch)

    # -- lists --------------------------------------------------------------------------------------------------

    async def _append(self) -> None:
        """To some of the lists that were read, if none of them has changed since."""
        keys = self._lists(self._dice.randrange(1, 4))
        seen = await self._read(keys)
        if seen is None:
            return
        appended = self._dice.sample(keys, self._dice.randrange(1, len(keys) + 1))
        batch = self._store.batch().check(*(_unchanged(key, seen[key]) for key in keys))
        for key in appended:
            batch.put(key, self._longer(seen[key]))
        await self._apply(self._values(keys), batch)

    async def _look_at_lists(self) -> None:
        if self._dice.random() < 0.2:
            generation = f"/list/{self._dice.choice(self._generations):06}/"
            await self.range(generation, prefix_end(generation))
        else:
            await self._read(self._lists(self._dice.randrange(2, LISTS + 1)))

    def _lists(self, count: int) -> list[str]:
        keys = []
        for number in self._dice.sample(range(LISTS), count):
            known = self._known.get(self._list(number))
            if known and len(known.value.split()) >= LIST_LENGTH:
                self._generations[number] += 1
            keys.append(self._list(number))
        return keys

    def _list(self, number: int) -> str:
        return f"/list/{self._generations[number]:06}/{number}"

    # -- pairs --------------------------------------------------------------------------------------------------

    async def _skew_of_absence(self) -> None:
        """Each of two makes a record of its own, if neither is there."""
        base = f"/pair/{self._name}.{self._next()}"
        left, right, old = (f"{base}/{name}" for name in ("left", "right", "old"))
        if self._dice.random() < 0.5 and not await self._make_and_remove(old):
            return
        empty = EmptyRange(f"{base}/", f"{base}0")
        await self._both(
            {left: None, right: None, old: None},
            lambda batch: batch.check(empty).put(left, self._new()),
            lambda batch: batch.check(empty).put(right, self._new()),
        )

    async def _make_and_remove(self, key: str) -> bool:
        """So that a range was not always empty. False if the store has not done it."""
        value = self._new()
        made = await self._apply({key: None}, self._store.batch().create(key, value))
        if made is None:
            return False
        record = Record(key, value, made.revision, True)
        removed = await self._apply({key: value.decode()}, self._store.batch().remove(record))
        return removed is not None

    async def _skew_of_versions(self) -> None:
        """Each of two changes one record, if the other one is as it was."""
        base = f"/pair/{self._name}.{self._next()}"
        made = {f"{base}/{side}": self._new() for side in ("left", "right")}
        batch = self._store.batch()
        for key, value in made.items():
            batch.create(key, value)
        applied = await self._apply(dict.fromkeys(made), batch)
        if applied is None:
            return
        left, right = (Record(key, value, applied.revision, True) for key, value in made.items())
        await self._both(
            {record.key: record.value.decode() for record in (left, right)},
            lambda batch: batch.check(FirstVersion(left.key)).replace(right, self._longer(right)),
            lambda batch: batch.check(AtVersion(right.key, right.version)).replace(left, self._longer(left)),
        )

    async def _both(
        self, expected: Mapping[str, str | None], one: Callable[[Batch], Batch], two: Callable[[Batch], Batch]
    ) -> None:
        """At the same time, by the same store or by two."""
        other = self._dice.choice([self._store, self._other])
        await asyncio.gather(
            self._apply(expected, one(self._store.batch())),
            self._apply(expected, two(other.batch()), other, f"{self._name}'"),
        )

    # -- calls --------------------------------------------------------------------------------------------------

    async def _read(self, keys: Sequence[str]) -> Seen | None:
        between = FILLERS if self._dice.random() < 0.1 else ()

        async def read() -> Snapshot:
            found = await self._store.get_many([*keys[:-1], *between, *keys[-1:]])
            return Snapshot({key: found.records[key] for key in keys}, found.revision)

        snapshot = await self._call({"read": keys}, read, _told_snapshot)
        if snapshot is None:
            return None
        seen: Seen = snapshot.records
        self._known |= seen
        return seen

    async def range(self, start: str, end: str) -> bool:
        """Whether the store has answered."""
        found = await self._call({"range": [start, end]}, lambda: self._store.range(start, end), _told_range)
        return found is not None

    async def _apply(
        self,
        expected: Mapping[str, str | None],
        batch: Batch,
        store: MetadataStore | None = None,
        client: str | None = None,
    ) -> Applied | None:
        """`expected` is what the checks of `batch` say, in values."""
        writes = {key: value.decode() for key, value in batch.puts.items()} | dict.fromkeys(batch.deletes)
        action = {"expected": expected, "writes": writes}
        return await self._call(action, lambda: (store or self._store).apply(batch), _told_applied, client)

    async def _call(
        self,
        action: Any,
        call: Callable[[], Awaitable[Answer]],
        tell: Callable[[Answer], Any],
        client: str | None = None,
    ) -> Answer | None:
        name = client or self._name
        number = self._recorder.invoke(name, action)
        await asyncio.sleep(0)  # calls of a store that never waits would not overlap otherwise
        answer: Answer | None = None
        try:
            answer = await call()
        except OutcomeUnknown as error:
            outcome, told = Outcome.UNKNOWN, str(error)
        except CheckFailed as lost:
            outcome, told = Outcome.OK, self._told_lost(lost)
        except MetastoreError as error:
            outcome, told = Outcome.FAILED, str(error)
        else:
            outcome, told = Outcome.OK, tell(answer)
        await asyncio.sleep(0)
        self._recorder.answer(number, name, outcome, told)
        return answer

    def _told_lost(self, lost: CheckFailed) -> Any:
        if isinstance(lost.check, EmptyRange):
            assert lost.current is not None
            key = lost.current.key
        else:
            key = lost.check.key
        self._known[key] = lost.current
        return {"lost": {key: _told(lost.current)}, "revision": lost.revision}

    # -- values -------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._made += 1
        return self._made

    def _new(self) -> bytes:
        """A value that nobody else ever writes."""
        return f"{self._name}.{self._next()}".encode()

    def _longer(self, record: Record | None) -> bytes:
        return (record.value + b" " if record else b"") + self._new()

    def _values(self, keys: Collection[str]) -> dict[str, str | None]:
        known = {key: self._known[key] for key in keys}
        return {key: record.value.decode() if record else None for key, record in known.items()}


def _unchanged(key: str, record: Record | None) -> Check:
    return AtVersion(key, record.version) if record else Absent(key)


def _told(record: Record | None) -> list[Any] | None:
    return [record.value.decode(), record.version] if record else None


def _told_snapshot(snapshot: Snapshot) -> Any:
    return {
        "records": {key: _told(record) for key, record in snapshot.records.items()},
        "revision": snapshot.revision,
    }


def _told_range(found: RangeResult) -> Any:
    return {"records": {record.key: _told(record) for record in found.records}, "revision": found.revision}


def _told_applied(applied: Applied) -> Any:
    return {"applied": applied.revision}
