"""What becomes of a checked write: every way in which a request and its reply can be lost (DESIGN §5.11).

Method: one record, and a store that loses what a test names.
"""

from __future__ import annotations

import pytest

from coordinator.settling import Overtaken, Settling, Unanswered
from metastore.backends.memory import MemoryStore
from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.types import Absent, AtVersion, Batch, EmptyRange, FirstVersion, Record
from metatxn.service.patience import LEAST_ROUNDS, MOST_ROUNDS
from tests.coordinator.conftest import FakeClock
from tests.coordinator.stores import Fault, FaultyStore, unavailable

KEY = "/a"


@pytest.fixture
def settling(store: FaultyStore, clock: FakeClock) -> Settling:
    return Settling(store, clock, pause=clock.pause)


@pytest.fixture
async def record(truth: MemoryStore) -> Record:
    applied = await truth.apply(truth.batch().create(KEY, b"1"))
    return Record(KEY, b"1", applied.revision, True)


def replaced(store: FaultyStore, record: Record) -> Batch:
    return store.batch().replace(record, b"2")


async def overtaken(settling: Settling, batch: Batch) -> Overtaken:
    with pytest.raises(Overtaken) as caught:
        await settling.apply(batch)
    return caught.value


# -- apply


async def test_a_refused_first_send_is_certainly_not_ours(
    settling: Settling, store: FaultyStore, record: Record
) -> None:
    """And the check that failed is told."""
    await settling.apply(replaced(store, record))
    lost = await overtaken(settling, replaced(store, record))
    assert (lost.perhaps_ours, lost.check) == (False, AtVersion(KEY, record.version))


async def test_what_is_overtaken_after_a_lost_reply_is_perhaps_ours(
    settling: Settling, store: FaultyStore, record: Record
) -> None:
    store.faults.append(Fault.LOSE_REPLY)
    assert (await overtaken(settling, replaced(store, record))).perhaps_ours
    assert len(store.sent) == 1, "the records say that no copy can take effect any more"


async def test_a_refused_second_send_is_perhaps_ours(settling: Settling, store: FaultyStore, record: Record) -> None:
    """The first copy arrives when the second one is on its way already."""
    store.faults.append(Fault.DELAY)
    store.before_applies.extend([None, store.deliver])
    assert (await overtaken(settling, replaced(store, record))).perhaps_ours
    assert len(store.sent) == 2


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.DELAY])
async def test_what_never_arrived_is_sent_again(
    settling: Settling, store: FaultyStore, truth: MemoryStore, record: Record, fault: Fault
) -> None:
    """Nor is a range that had to be empty a reason not to: only the store can tell."""
    batch = replaced(store, record).check(FirstVersion(KEY), Absent("/b"), EmptyRange("/c", "/d"))
    store.faults.append(fault)
    applied = await settling.apply(batch)
    await store.deliver()
    assert await truth.get(KEY) == Record(KEY, b"2", applied.revision, False)


@pytest.mark.parametrize("check", [AtVersion("/b", 7), FirstVersion("/b"), Absent(KEY), FirstVersion(KEY)])
async def test_every_kind_of_check_is_looked_at(
    settling: Settling, store: FaultyStore, truth: MemoryStore, record: Record, check: Absent | AtVersion | FirstVersion
) -> None:
    """Once one does not hold nothing is sent again."""
    written = await truth.apply(truth.batch().replace(record, b"1"))
    batch = store.batch().check(AtVersion(KEY, written.revision), check).put("/e", b"")
    store.faults.append(Fault.LOSE_REQUEST)
    assert (await overtaken(settling, batch)).perhaps_ours
    assert len(store.sent) == 1


async def test_a_first_request_that_certainly_did_nothing_fails_at_once(
    settling: Settling, store: FaultyStore, record: Record
) -> None:
    store.faults.append(Fault.UNAVAILABLE)
    with pytest.raises(StoreUnavailable):
        await settling.apply(replaced(store, record))
    assert store.requests == 1


@pytest.mark.parametrize("then", [Fault.UNAVAILABLE, Fault.LOSE_REQUEST])
async def test_nobody_knows_when_patience_is_over(
    settling: Settling, store: FaultyStore, record: Record, clock: FakeClock, then: Fault
) -> None:
    """Whatever is said of a later copy, the first one may still be on its way."""
    began_ms = clock()
    store.faults.extend([Fault.LOSE_REQUEST, *[then] * 100])
    with pytest.raises(OutcomeUnknown):
        await settling.apply(replaced(store, record))
    assert LEAST_ROUNDS < len(store.sent) <= MOST_ROUNDS + 1
    assert 10_000 <= clock() - began_ms < 12_000


async def test_who_was_frozen_still_looks_what_became_of_it(
    settling: Settling, store: FaultyStore, record: Record, clock: FakeClock
) -> None:
    """The time is over; some rounds are left."""

    async def frozen() -> None:
        clock.now_ms += 600_000
        await unavailable()

    store.faults.append(Fault.LOSE_REQUEST)
    store.before_reads.extend([frozen] * (LEAST_ROUNDS - 1))
    await settling.apply(replaced(store, record))


async def test_a_clock_that_is_set_back_keeps_nobody_trying(
    settling: Settling, store: FaultyStore, record: Record, clock: FakeClock
) -> None:
    async def set_back() -> None:
        clock.now_ms -= 1_000_000

    store.faults.extend([Fault.LOSE_REQUEST] * 1_000)
    store.before_reads.extend([set_back] * 1_000)
    with pytest.raises(OutcomeUnknown):
        await settling.apply(replaced(store, record))
    assert len(store.sent) == MOST_ROUNDS + 1


# -- create


class Names:
    """Makes batches of two records under new names, and is told which were in use."""

    def __init__(self, store: FaultyStore) -> None:
        self._store = store
        self._next = 0
        self.taken: list[Batch] = []

    async def __call__(self) -> Batch:
        self._next += 1
        return self._store.batch().create(f"/n/{self._next}/a", b"mine").create(f"/n/{self._next}/b", b"mine")


@pytest.fixture
def names(store: FaultyStore) -> Names:
    return Names(store)


async def created(settling: Settling, names: Names) -> str:
    """The name under which something was created, and that the truth has it as it was told."""
    batch, applied = await settling.create(names, names.taken.append)
    found = (await settling.store.get_many(list(batch.puts))).records
    assert all(record and record.version == applied.revision for record in found.values())
    return next(iter(batch.puts)).split("/")[2]


async def test_what_landed_unheard_is_found(settling: Settling, store: FaultyStore, names: Names) -> None:
    store.faults.append(Fault.LOSE_REPLY)
    assert await created(settling, names) == "1"
    assert len(store.sent) == 1 and not names.taken


async def test_what_was_lost_is_followed_by_another_name(settling: Settling, store: FaultyStore, names: Names) -> None:
    """Sent once each: absence comes back."""
    store.faults.extend([Fault.LOSE_REQUEST, Fault.DELAY])
    assert await created(settling, names) == "3"
    assert [sorted(batch.puts)[0] for batch in store.sent] == ["/n/1/a", "/n/2/a", "/n/3/a"]


async def test_what_certainly_did_not_arrive_may_be_sent_again(
    settling: Settling, store: FaultyStore, names: Names
) -> None:
    """After a lost one: nothing is given up while patience lasts."""
    store.faults.extend([Fault.LOSE_REQUEST, Fault.UNAVAILABLE])
    assert await created(settling, names) == "2"


async def test_what_lands_late_is_found_too(settling: Settling, store: FaultyStore, names: Names) -> None:
    async def late() -> None:
        await store.deliver()
        await unavailable()

    store.faults.append(Fault.DELAY)
    store.before_applies.extend([None, late])
    assert await created(settling, names) == "1"


@pytest.mark.parametrize("theirs", [{"a": b"theirs"}, {"a": b"mine"}, {"a": b"mine", "b": b"theirs"}])
async def test_what_somebody_else_has_created_is_not_taken_for_ours(
    settling: Settling, store: FaultyStore, truth: MemoryStore, names: Names, theirs: dict[str, bytes]
) -> None:
    """All of it must be there as it was sent, and by one write."""

    async def somebody_else() -> None:
        for name, value in theirs.items():
            await truth.apply(truth.batch().create(f"/n/1/{name}", value))

    store.faults.append(Fault.LOSE_REQUEST)
    store.before_reads.append(somebody_else)
    assert await created(settling, names) == "2"


async def test_what_was_written_again_since_is_not_taken_for_ours(
    settling: Settling, store: FaultyStore, truth: MemoryStore, names: Names
) -> None:
    """As a transaction that has ended meanwhile: the one who began it would be told of an open one."""

    async def written_again() -> None:
        found = (await truth.get_many(["/n/1/a", "/n/1/b"])).records.values()
        batch = truth.batch()
        for record in found:
            assert record is not None
            batch.replace(record, record.value)
        await truth.apply(batch)

    store.faults.append(Fault.LOSE_REPLY)
    store.before_reads.append(written_again)
    assert await created(settling, names) == "2"


async def test_two_that_have_created_half_of_it_each_are_not_us(
    settling: Settling, store: FaultyStore, truth: MemoryStore, names: Names
) -> None:
    async def halves() -> None:
        for name in "ab":
            await truth.apply(truth.batch().create(f"/n/1/{name}", b"mine"))

    store.faults.append(Fault.LOSE_REQUEST)
    store.before_reads.append(halves)
    assert await created(settling, names) == "2"


async def test_a_name_in_use_is_told_and_not_taken(
    settling: Settling, store: FaultyStore, truth: MemoryStore, names: Names
) -> None:
    await truth.apply(truth.batch().create("/n/1/b", b"mine"))
    assert await created(settling, names) == "2"
    assert names.taken == store.sent[:1]


async def test_nothing_was_created_when_every_name_is_in_use(
    settling: Settling, store: FaultyStore, truth: MemoryStore, names: Names
) -> None:
    batch = truth.batch()
    for number in range(MOST_ROUNDS):
        batch.create(f"/n/{number + 1}/b", b"theirs")
    await truth.apply(batch)
    with pytest.raises(StoreUnavailable):
        await created(settling, names)
    assert len(names.taken) == len(store.sent) <= MOST_ROUNDS


@pytest.mark.parametrize("then", [Fault.UNAVAILABLE, Fault.LOSE_REQUEST])
async def test_what_may_have_been_created_is_named(
    settling: Settling, store: FaultyStore, names: Names, then: Fault
) -> None:
    """The last of those whose answers were lost, not one that certainly did nothing, or that nobody has sent."""
    store.faults.extend([Fault.LOSE_REQUEST, *[then] * 100])
    with pytest.raises(Unanswered) as lost:
        await created(settling, names)
    assert lost.value.batch == (store.sent[0] if then is Fault.UNAVAILABLE else store.sent[-1])


async def test_without_names_nothing_happened(settling: Settling, store: FaultyStore) -> None:
    async def no_names() -> Batch:
        raise StoreUnavailable("no block of ids")

    with pytest.raises(StoreUnavailable, match="no block"):
        await settling.create(no_names, lambda _: None)
    assert not store.sent
