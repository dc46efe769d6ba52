"""The batches of an idempotent producer are appended to a partition in waves (DESIGN §5.22, rule 6).

What arrives while a wave is on its way forms the next one. A wave has one answer of the metadata store and one sync,
however many batches are in it. As only one wave of a producer and partition is on its way, nothing can begin between
the failure of an append and the moment at which that is heard of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from metatxn.wire import errors
from metatxn.wire.frames import Entry
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from metatxn_gateways.kafka.codes import REFUSALS, TRANSACTION_ENDED, KafkaCode, KafkaError
from metatxn_gateways.kafka.producers import REMEMBERED_PRODUCERS, Producers, TransactionalProducer
from metatxn_gateways.kafka.recently_used import RecentlyUsed
from metatxn_gateways.kafka.sequences import WAVE_BATCHES, Arrived, Sequences
from metatxn_gateways.kafka.turns import Turns
from participants.segment.publishing import Published
from participants.segment.segment import Segment


class Waves:
    def __init__(self, producers: Producers) -> None:
        self._producers = producers
        self._sequences: RecentlyUsed[tuple[str, int, int], Sequences] = RecentlyUsed(REMEMBERED_PRODUCERS)

    def sequences(self, topic: str, partition: int, producer_id: int) -> Sequences:
        """What is known of the batches of a producer in a partition."""
        known = self._sequences.get((topic, partition, producer_id))
        return known or self._sequences.setdefault((topic, partition, producer_id), Sequences())

    def begin(self, segment: Segment, sequences: Sequences, arrived: Arrived, connection: Turns) -> None:
        """Accept a batch for the next wave. Raises as `Sequences.arrive`."""
        sequences.arrive(segment, arrived, connection)
        sequences.pace.changed(sequences.accepted)
        if not sequences.is_idle and not sequences.is_sending:
            sequences.is_sending = True
            segment.spawn(self._send(segment, sequences)).add_done_callback(partial(_ended, sequences))

    async def place_of(self, sequences: Sequences, arrived: Arrived) -> Position:
        """The place of a batch, once it is durable. If the caller is cancelled, a batch that waits is not sent. Raises
        one of `REFUSALS`."""
        try:
            return await arrived.place
        except asyncio.CancelledError:
            sequences.withdraw(arrived)
            sequences.pace.changed(sequences.accepted)
            raise

    async def _send(self, segment: Segment, sequences: Sequences) -> None:
        """Send wave after wave, until nothing is left."""
        while sequences.accepted:
            await sequences.pace.until_enough(sequences.accepted)
            waiting, wave = sequences.accepted, sequences.next_wave()
            if wave:
                published = await self._published(segment, wave)
                expected = published.failure is None and len(wave) == waiting
                sequences.pace.ended(min(sequences.accepted, WAVE_BATCHES) if expected else 0)
                sequences.ended(wave, published)
        sequences.is_sending = False

    async def _published(self, segment: Segment, wave: Sequence[Arrived]) -> Published:
        entries = [each.entry for each in wave]
        producer = wave[0].producer
        try:
            if producer is None:
                published = await segment.publish_in_order(entries)
            else:
                published = await self._published_in(producer, segment, entries)
        except REFUSALS as error:
            return Published([], error)
        if isinstance(published.failure, errors.NotAllowed):  # the topic has an exclusive producer
            return Published(published.positions, KafkaError(KafkaCode.TOPIC_AUTHORIZATION_FAILED))
        return published

    async def _published_in(
        self, producer: TransactionalProducer, segment: Segment, entries: Sequence[Entry]
    ) -> Published:
        """Publish in the open transaction. Another broker may have ended the one that this one knows, and begun the
        next one: then the whole wave goes on there. Raises as `Producers.open_transaction`."""
        txn_id = await self._producers.open_transaction(producer)
        published = await segment.publish_in_order(_inside(txn_id, entries))
        refused = isinstance(published.failure, TRANSACTION_ENDED) and not published.positions
        if not refused or isinstance(published.failure, errors.NotAllowed):
            return published
        following = await self._producers.open_transaction(producer, refused=txn_id)
        return published if following == txn_id else await segment.publish_in_order(_inside(following, entries))


def _inside(txn_id: TxnId, entries: Sequence[Entry]) -> list[Entry]:
    return [entry if entry.txn_id == txn_id else replace(entry, txn_id=txn_id) for entry in entries]


def _ended(sequences: Sequences, sending: asyncio.Task[None]) -> None:
    """Tell those that still wait when the segment was closed before everything was sent, even before the task could
    begin; otherwise it has ended by itself."""
    if sending.cancelled():
        sequences.abandon(
            errors.OutcomeUnknown("the segment was closed before the request was finished", action="Send it again.")
        )
    elif (error := sending.exception()) is not None:
        assert isinstance(error, Exception)
        sequences.abandon(error)
