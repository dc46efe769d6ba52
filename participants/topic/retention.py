"""The owner's part in what policies say: for each of its segments, close what is to be dropped or compacted later, and
drop what is due (see `participants.segment.retention`). The segment compacts itself as it is told here.

A pass reads the policies of all topics that have segments here, at once. A topic whose policy drops and closes nothing
costs no more. Of a topic that a reader holds nothing is dropped or compacted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from metastore.errors import MetastoreError
from metastore.txn import paths
from metastore.txn.read_holds import holds_in_force
from metastore.txn.records.segments import SegmentRecord
from metatxn.wire import errors
from metatxn.wire.policies import UNLIMITED, EffectivePolicy
from participants.broker.broker import Broker
from participants.ledger.storage import LedgerError
from participants.messages.policies import InForce
from participants.segment.retention import Due, drop, droppable, learn_facts, must_roll
from participants.segment.segment import Cleanup, Segment
from participants.topic.backlog import Backlogs, release

log = structlog.get_logger()


class Retention:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._backlogs = Backlogs(broker)

    async def look(self) -> None:
        """One pass over all segments that are served here. Raises the store's errors."""
        served: dict[str, list[Segment]] = {}
        for segment in self._broker.serving_now():
            served.setdefault(segment.record.topic, []).append(segment)
        async for looked in self._broker.policies.look(list(served)):
            topic = looked.topic.name
            self._broker.topic_seen(looked.topic)
            if _asks_for_anything(looked.policy):
                await self._look_at(topic, served[topic])
            else:
                _set_cleanup(served[topic], None)
                release(served[topic])

    async def _look_at(self, topic: str, segments: Sequence[Segment]) -> None:
        in_force = await self._broker.policies.in_force(topic)
        if in_force is None:
            return
        now_ms = self._broker.clock()
        # Behind the read of the topic, which anyone who takes a hold writes again (DESIGN §5.24).
        held = bool(await holds_in_force(self._broker.store, paths.read_holds(topic), now_ms))
        _set_cleanup(segments, None if held else in_force)
        records = await self._records(in_force)
        due = {} if held else droppable(in_force.policy, records, now_ms)
        active = sum(record.state == "active" for record in records.values())
        await self._bound_backlog(in_force, segments, records, now_ms)
        for segment in segments:
            if segment.id not in records or segment.lost:
                continue
            if in_force.policy.ttl_ms.value != UNLIMITED:
                await self._expire(segment, now_ms - in_force.policy.ttl_ms.value)
            if must_roll(segment, in_force.policy, active, now_ms):
                segment.roll()
            if in_force.policy.drops:
                await self._drop(segment, in_force, Due(records[segment.id], due.get(segment.id)))

    async def _bound_backlog(
        self, in_force: InForce, segments: Sequence[Segment], records: Mapping[str, SegmentRecord], now_ms: int
    ) -> None:
        """Look at the backlog. Whatever fails is tried again by the next pass; until then what is held stays so."""
        if not in_force.policy.bounds_backlog:
            release(segments)
            return
        serving = [segment for segment in segments if segment.id in records and not segment.lost]
        try:
            for segment in serving:
                await learn_facts(segment, self._broker.store)
            if serving:
                await self._backlogs.look(in_force.policy, serving, records, now_ms)
        except (MetastoreError, LedgerError, errors.MetatxnError) as error:
            log.info("the backlog is not known, and is looked at again", topic=in_force.topic.name, error=str(error))

    async def _expire(self, segment: Segment, before_ms: int) -> None:
        """Whatever fails is tried again by the next pass."""
        try:
            if segment.attached is not None:
                await segment.attached.expire(before_ms)
        except (MetastoreError, LedgerError, errors.MetatxnError) as error:
            log.info("nothing has expired, which will be tried again", segment=segment.id, error=str(error))

    async def _records(self, in_force: InForce) -> dict[str, SegmentRecord]:
        keys = {paths.segment(each): each for each in in_force.topic.segments}
        found = (await self._broker.store.get_many(list(keys))).records
        return {keys[key]: SegmentRecord.decode(stored.value) for key, stored in found.items() if stored is not None}

    async def _drop(self, segment: Segment, in_force: InForce, due: Due) -> None:
        """Whatever fails is tried again by the next pass."""
        broker, hard = self._broker, in_force.policy.retention.value == "hard"
        try:
            dropped = await drop(segment, broker.store, broker.storage, due, hard=hard, checks=in_force.checks)
            await learn_facts(segment, broker.store)
        except (MetastoreError, LedgerError, errors.MetatxnError) as error:
            log.info("nothing dropped, which will be tried again", segment=segment.id, error=str(error))
            return
        broker.metrics.retention_ledgers.inc(len(dropped))
        broker.metrics.retention_bytes.inc(sum(ledger.bytes or 0 for ledger in dropped))


def _asks_for_anything(policy: EffectivePolicy) -> bool:
    closes_or_drops = policy.drops or policy.compacts or policy.roll_after_ms is not None
    return closes_or_drops or policy.ttl_ms.value != UNLIMITED or policy.bounds_backlog


def _set_cleanup(segments: Sequence[Segment], in_force: InForce | None) -> None:
    """How the segments are compacted from now on."""
    cleanup = None
    if in_force is not None and in_force.policy.compacts:
        cleanup = Cleanup(in_force.policy.delete_retention_ms.value, in_force.checks)
    for segment in segments:
        segment.cleanup = cleanup
