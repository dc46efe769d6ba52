"""Goal: a backup has exactly what was there at its revision, whatever happens while it is taken.

Method: a cluster of one segment, on local files and on objects. What happens meanwhile happens between the steps of the
backup. A backup is judged by what readers see once it is restored into an empty cluster. DESIGN §13.
"""

from __future__ import annotations

from functools import partial

import pytest

from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metatxn.wire.errors import InvalidArgument
from metatxn.wire.position import Position
from participants.backup import taking
from participants.backup.taking import BackupOvertaken
from participants.segment.trimming import trim
from tests.participants.backup.cases import BackupCase
from tests.participants.segment.test_hidden import rolled, tended
from tests.participants.segment.test_rewriting import mostly_hidden
from tests.participants.segment.world import (
    SEGMENT,
    committed,
    entry,
    materialized,
    publish,
    sending,
    snapshot,
    uncommitted,
)


async def test_readers_see_what_was_committed_up_to_the_revision(case: BackupCase) -> None:
    world, segment = case.world, await case.begin()
    committed_before, aborted, opened = [await world.begin() for _ in range(3)]
    await publish(segment, "plain")
    await publish(segment, "committed", committed_before)
    await publish(segment, "aborted", aborted)
    await publish(segment, "open", opened)
    await world.commit(committed_before)
    await world.abort(aborted)
    await materialized(segment, committed_before, aborted)

    async def meanwhile() -> None:
        later, never = [await world.begin() for _ in range(2)]
        await publish(segment, "late", later)
        await publish(segment, "never", never)
        await world.commit(opened)
        await world.commit(later)
        await materialized(segment, opened, later)

    manifest = await case.take(after=meanwhile)
    assert await case.problems(manifest) == []
    done = await case.restore(manifest)
    assert (done.left_out, done.aborted) == (2, 1)
    restored = await case.served()
    assert await committed(restored) == ["plain", "committed"]
    assert sorted(await uncommitted(restored)) == ["aborted", "committed", "open", "plain"]
    assert await case.laws() == []
    assert restored.ownership.generation > segment.ownership.generation


async def test_a_transaction_that_stays_open_can_be_committed_later(case: BackupCase) -> None:
    """With what it had written by then; what a new writer of it has written since was after the backup."""
    world, segment = case.world, await case.begin()
    opened = await world.begin()
    await publish(segment, "first", opened, writer="a")

    async def meanwhile() -> None:
        await publish(segment, "since", opened, writer="b")

    manifest = await case.take(after=meanwhile)
    done = await case.restore(manifest, keep_open=True)
    assert (done.left_out, done.aborted) == (1, 0)
    restored = await case.served()
    assert await committed(restored) == []
    await case.restored.commit(opened)
    await materialized(restored, opened)
    assert await committed(restored) == ["first"]
    assert await case.laws() == []


async def test_a_prepared_transaction_waits_for_its_external_coordinator(case: BackupCase) -> None:
    world, segment = case.world, await case.begin()
    prepared = await world.begin()
    await publish(segment, "a", prepared)
    await world.prepare(prepared)
    done = await case.restore(await case.take())
    assert (done.aborted, done.prepared) == (0, 1)
    restored = await case.served()
    await case.restored.commit(prepared)
    await materialized(restored, prepared)
    assert await committed(restored) == ["a"]


async def test_what_was_decided_and_not_carried_out_is_carried_out(
    case: BackupCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup does not wait forever until a broker has cleaned up."""
    monkeypatch.setattr(taking, "WAIT_SECONDS", 0.1)
    world, segment = case.world, await case.begin()
    done, undone = await world.begin(), await world.begin()
    await publish(segment, "committed", done)
    await publish(segment, "aborted", undone)
    world.store.events_flow.clear()
    await world.commit(done)
    await world.abort(undone)
    manifest = await case.take()
    await case.restore(manifest)
    assert await committed(await case.served()) == ["committed"]


async def test_an_append_that_its_transaction_has_not_waited_for_is_waited_for(case: BackupCase) -> None:
    """A program may commit while a publish is under way, which is then in the transaction if it had begun (§5.5). Its
    answer is that it is there, so it must be there at every revision from the commit on."""
    world, segment = case.world, await case.begin()
    txn, undone = await world.begin(), await world.begin()
    await publish(segment, "undone", undone)
    case.node.device.hold()
    sent = sending(segment, "begun", txn)
    await case.node.device.held()
    await world.commit(txn)
    waited = []

    async def waiting() -> None:
        case.node.device.go()
        waited.append(await world.operations(txn))

    manifest = await case.take(waiting=waiting)
    case.node.device.go()
    await sent
    assert waited[0] and waited[-1] == [] and await world.operations(undone), "only for what was committed"
    await case.restore(manifest)
    assert await committed(await case.served()) == ["begun"]


async def test_the_backup_begins_again_when_something_was_collected_meanwhile(case: BackupCase) -> None:
    """Otherwise its entries could not be told from those of a transaction that begins after the revision."""
    world, segment = case.world, await case.begin()
    cuts = []

    async def meanwhile() -> None:
        cuts.append(await world.store.inner.current_revision())
        if len(cuts) == 1:
            quick = await world.begin()
            await publish(segment, "quick", quick)
            await world.commit(quick)
            await materialized(segment, quick)
            await world.collect(quick)

    manifest = await case.take(before=meanwhile)
    assert len(cuts) == 2 and manifest.revision >= cuts[1]
    await case.restore(manifest)
    assert await committed(await case.served()) == ["quick"]


async def test_what_was_collected_before_stays_visible(case: BackupCase) -> None:
    world, segment = case.world, await case.begin()
    old = await world.begin()
    await publish(segment, "old", old)
    await world.commit(old)
    await materialized(segment, old)
    await world.collect(old)
    await case.restore(await case.take())
    restored = await case.served()
    assert await committed(restored) == ["old"]
    with pytest.raises(InvalidArgument, match="too old"):
        await snapshot(restored, 1)
    assert await snapshot(restored) == ["old"]


async def test_a_ledger_that_is_replaced_meanwhile_begins_a_new_cut(case: BackupCase) -> None:
    world, segment = case.world, await case.begin()
    await publish(segment, "a")
    seen: list[Position] = []

    async def meanwhile() -> None:
        if not seen:
            await rolled(segment)
            await publish(segment, "b")
            await trim(segment, world.store, case.node.storage, segment.ledgers.last_durable)
        seen.append(segment.ledgers.last_durable)

    manifest = await case.take(after=meanwhile)
    assert len(seen) == 2 and await case.problems(manifest) == []
    await case.restore(manifest)
    assert await committed(await case.served()) == ["b"]


async def test_ledgers_that_are_replaced_each_time_are_an_error(case: BackupCase) -> None:
    store, segment = case.world.store.inner, await case.begin()
    await publish(segment, "a")

    async def becomes(state: str) -> None:
        stored = await store.get(paths.segment(SEGMENT))
        assert stored is not None
        changed = SegmentRecord.decode(stored.value).model_copy(update={"state": state})
        await store.apply(store.batch().replace(stored, changed.encode()))

    with pytest.raises(BackupOvertaken):
        await case.take(before=partial(becomes, "active"), after=partial(becomes, "deleted"))
    assert await case.place.ids() == []


@pytest.mark.parametrize("rewritten", [False, True])
async def test_hidden_entries_stay_hidden(case: BackupCase, rewritten: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the index beside their ledger, or because they were left out of it."""
    if not rewritten:
        monkeypatch.setattr("participants.segment.rewriting.HIDDEN_PARTS", 0)
    await case.lawful()
    case.node, segment = await mostly_hidden(case.world)
    await tended(segment)
    manifest = await case.take()
    found = {ledger.ledger: (ledger.form is not None, bool(ledger.hidden)) for ledger in manifest.ledgers}
    assert found == {1: (rewritten, True), 2: (False, False)}
    assert await case.problems(manifest) == []
    await case.restore(manifest)
    restored = await case.served()
    assert await committed(restored) == ["a", "b", "c"]
    assert ("never" in await uncommitted(restored)) is not rewritten


async def test_a_retry_is_recognized_after_the_restore(case: BackupCase) -> None:
    segment = await case.begin()
    await publish(segment, "a", producer="p", sequence=7)
    await case.restore(await case.take())
    restored = await case.served()
    _, duplicate = await restored.publish(entry("a", producer="p", sequence=7))
    assert duplicate
    await publish(restored, "b", producer="p", sequence=8)
    assert await committed(restored) == ["a", "b"]
