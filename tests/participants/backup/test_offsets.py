"""Goal: the offsets of a topic with the format `kafka` go on behind a restore, without a gap or a repetition (DESIGN
§5.20, §13)."""

from __future__ import annotations

from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from tests.participants.backup.cases import BackupCase
from tests.participants.segment.test_hidden import rolled
from tests.participants.segment.test_offsets import batch, first_node, spans
from tests.participants.segment.world import SEGMENT


async def test_offsets_go_on_behind_a_restore(case: BackupCase) -> None:
    await case.lawful()
    case.node = await first_node(case.world)
    segment = await case.node.open()
    await segment.publish(batch(3))
    await rolled(segment)
    await segment.publish(batch(5))
    await case.restore(await case.take())
    stored = await case.restored.store.inner.get(paths.segment(SEGMENT))
    assert stored is not None
    record = SegmentRecord.decode(stored.value)
    assert ([ledger.first_offset for ledger in record.ledgers], record.next_offset) == ([0, 3], 8)
    restored = await case.served()
    await restored.publish(batch(2))
    assert await spans(restored) == [(0, 3), (3, 8), (8, 10)]
    assert await case.laws() == []


async def test_what_is_newer_than_the_backup_has_no_offset(case: BackupCase) -> None:
    await case.lawful()
    case.node = await first_node(case.world)
    segment = await case.node.open()
    await segment.publish(batch(3))

    async def meanwhile() -> None:
        await segment.publish(batch(4, await case.world.begin()))

    done = await case.restore(await case.take(after=meanwhile))
    restored = await case.served()
    await restored.publish(batch(2))
    assert done.left_out == 1 and await spans(restored) == [(0, 3), (3, 5)]
