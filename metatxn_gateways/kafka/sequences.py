"""The order of an idempotent producer's batches in one partition (DESIGN §5.22, rule 6).

    arrives ─▶ judged ─▶ waits ─▶ on its way, in a wave ─▶ appended
                 │         │             └─ failed: what arrived behind it is judged anew
                 │         └─ withdrawn: its connection was closed
                 ├─ a copy of one that is here: it shares that one's fate, and is judged anew if that one fails
                 ├─ appended before: it has its place already
                 └─ anything else is refused

Nothing here is awaited: a batch is judged, and what follows from the end of another one is done, in one step of the
event loop. So the order of the batches is always that in which they arrived.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from metatxn.wire import errors
from metatxn.wire.frames import MAX_PAYLOAD_BYTES, Entry
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from metatxn_gateways.kafka.codes import KafkaCode, KafkaError
from metatxn_gateways.kafka.producers import TransactionalProducer
from metatxn_gateways.kafka.turns import Turns
from metatxn_gateways.listener import MAX_IN_PROGRESS
from participants.segment.dedup import Scope, sequence_used
from participants.segment.publishing import Published
from participants.segment.segment import Segment

_SEQUENCES = 1 << 31
WAVE_BATCHES = MAX_IN_PROGRESS
"""The most batches of a wave: as many as one connection can have in progress, unless its requests repeat a
partition."""
WAVE_BYTES = MAX_PAYLOAD_BYTES
"""The most bytes of a wave, unless it is one batch. So no wave keeps others waiting for longer than one batch may."""


def sequence_in_epoch(epoch: int, sequence: int) -> int:
    """The sequence of an entry: in Kafka each epoch of a producer has its own sequences, which begin at 0."""
    return epoch * _SEQUENCES + sequence


def epoch_and_sequence(sequence: int) -> tuple[int, int]:
    return divmod(sequence, _SEQUENCES)


def _behind(sequence: int, count: int) -> int:
    """The sequence of the next batch in the same epoch."""
    epoch, first = epoch_and_sequence(sequence)
    return sequence_in_epoch(epoch, (first + count) % _SEQUENCES)


class NotTheFollowing(Exception):
    """A batch is missing between this one and those that are here, as far as is known."""


@dataclass(eq=False, slots=True)
class Arrived:
    """A batch from its arrival on. `entry` has a producer and a sequence, and no transaction: that is the one which
    `producer` has open when the batch is sent, and `txn_id` is the one that was open when it arrived.

    `place` is done when the batch is durable, or has failed, and cancelled when nobody waits for it any more.
    """

    entry: Entry
    producer: TransactionalProducer | None
    txn_id: TxnId | None
    place: asyncio.Future[Position] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    copies: list[Arrived] = field(default_factory=list)
    is_copy: bool = False
    is_sent: bool = False

    @property
    def sequence(self) -> int:
        assert self.entry.sequence is not None
        return self.entry.sequence

    def appended(self, position: Position) -> None:
        if not self.place.done():
            self.place.set_result(position)

    def failed(self, error: Exception) -> None:
        if not self.place.done():
            self.place.set_exception(error)
            self.place.exception()  # retrieved, should nobody wait for it any more

    def appended_before(self, segment: Segment, txn_id: TxnId | None) -> Position | None:
        """The place that it has already, in this transaction or outside of any. Raises INVALID_ARGUMENT if something
        else has its sequence."""
        found = segment.dedup.find(Scope(txn_id, None, self.entry.producer), self.sequence, None)
        if not found:
            return None
        if found[0].count != self.entry.count:
            raise sequence_used(self.sequence, found[0].count, self.entry.count)
        return found[0].position


class Sequences:
    """See the module docstring. `is_sending` belongs to the sender, which takes one wave at a time."""

    def __init__(self) -> None:
        self.is_sending = False
        self._opening: tuple[str, int] | None = None
        """The opening of the segment that the rest is about: in between another broker may have appended."""
        self._following: int | None = None
        """The sequence that is accepted next; None if nothing is known of the producer."""
        self._here: dict[Arrived, None] = {}
        """What was accepted and has not ended, and its copies, in the order of arrival."""
        self._accepted: dict[int, Arrived] = {}
        """By sequence, what of it is no copy."""
        self._owed: int | None = None
        """The first batch that was refused or has failed since the last one was accepted."""
        self._sent_back: tuple[int, Turns] | None = None
        """The first batch that was refused since, because another one is owed, and its connection."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is here."""
        return not self._here

    # -- arrivals ----------------------------------------------------------------------------------------------

    def refused(self, sequence: int) -> None:
        """A batch was refused before it could be judged. Its client sends it again before those behind it."""
        if self._owed is None or sequence <= self._owed:
            self._owed, self._sent_back = sequence, None

    def arrive(self, segment: Segment, arrived: Arrived, connection: Turns) -> None:
        """Judge a batch. Its `place` tells what becomes of it.

        Raises `NotTheFollowing`, INVALID_PRODUCER_EPOCH, NOT_LEADER_OR_FOLLOWER (it is to be sent again), and
        INVALID_ARGUMENT (another batch has its sequence).
        """
        self._look_at(segment, arrived)
        self._assert_epoch(arrived)
        if (position := arrived.appended_before(segment, arrived.txn_id)) is not None:
            self._passed(arrived)
            arrived.appended(position)
            return
        if self._following is None:
            self._assert_nothing_owed(arrived, connection)
            self._following = arrived.sequence
        self._judge(arrived)

    def _look_at(self, segment: Segment, arrived: Arrived) -> None:
        """Begin anew with another opening of the segment. What is on its way in the former one may be in the table, or
        not, so nothing passes over it."""
        opening = (segment.id, segment.ownership.generation)
        is_another = opening != self._opening
        if segment.lost or (is_another and not self.is_idle):
            self.refused(arrived.sequence)
            raise KafkaError(KafkaCode.NOT_LEADER_OR_FOLLOWER)
        if not is_another:
            return
        assert arrived.entry.producer is not None
        last = segment.dedup.last_of(arrived.entry.producer)
        self._opening, self._following = opening, None if last is None else _behind(*last)

    def _assert_epoch(self, arrived: Arrived) -> None:
        """Raises INVALID_PRODUCER_EPOCH for what is late from an earlier epoch of its producer."""
        if self._following is not None and arrived.sequence // _SEQUENCES < self._following // _SEQUENCES:
            raise KafkaError(KafkaCode.INVALID_PRODUCER_EPOCH)

    def _assert_nothing_owed(self, arrived: Arrived, connection: Turns) -> None:
        """A producer of which the segment knows nothing may begin anywhere, but does not pass over what was refused
        here. Only if the same batch comes again before that one, another broker has that one. What lies in an earlier
        connection may still come, so there it is no sign."""
        if self._owed is None or arrived.sequence <= self._owed:
            return
        if self._sent_back is not None and self._sent_back[0] == arrived.sequence:
            if self._sent_back[1] is connection or self._sent_back[1].is_over:
                return
            self._sent_back = arrived.sequence, connection
        self._sent_back = self._sent_back or (arrived.sequence, connection)
        raise KafkaError(KafkaCode.NOT_LEADER_OR_FOLLOWER)

    def _judge(self, arrived: Arrived) -> None:
        """Accept a batch, behind everything that is here. Raises `NotTheFollowing` and INVALID_PRODUCER_EPOCH."""
        assert self._following is not None
        self._assert_epoch(arrived)
        original = self._accepted.get(arrived.sequence)
        if original is not None:
            if original.entry.count != arrived.entry.count:
                raise sequence_used(arrived.sequence, original.entry.count, arrived.entry.count)
            original.copies.append(arrived)
        else:
            epoch, sequence = epoch_and_sequence(arrived.sequence)
            begins_an_epoch = sequence == 0 and epoch > epoch_and_sequence(self._following)[0]
            if arrived.sequence != self._following and not begins_an_epoch:
                raise NotTheFollowing
            self._following = _behind(arrived.sequence, arrived.entry.count)
            self._owed = self._sent_back = None
            self._accepted[arrived.sequence] = arrived
        arrived.is_copy = original is not None
        self._here[arrived] = None

    def _passed(self, arrived: Arrived) -> None:
        """A batch was appended before, and its answer got lost."""
        if self._following in (None, arrived.sequence):
            self._following = _behind(arrived.sequence, arrived.entry.count)
        if self._owed == arrived.sequence:
            self._owed = self._sent_back = None

    # -- waves -------------------------------------------------------------------------------------------------

    def next_wave(self) -> list[Arrived]:
        """The batches that wait, as many as a wave may have, and no others behind those of another transaction."""
        wave: list[Arrived] = []
        size = 0
        for arrived in self._accepted.values():
            size += arrived.entry.size
            if wave and (len(wave) >= WAVE_BATCHES or size > WAVE_BYTES or arrived.producer is not wave[0].producer):
                break
            arrived.is_sent = True
            wave.append(arrived)
        return wave

    def ended(self, wave: list[Arrived], published: Published) -> None:
        """The wave has ended; what of it was not appended has failed."""
        for arrived, position in zip(wave, published.positions, strict=False):
            self._forget(arrived)
            arrived.appended(position)
            for copy in arrived.copies:
                if copy in self._here:
                    del self._here[copy]
                    copy.appended(position)
        if len(published.positions) < len(wave):
            assert published.failure is not None
            self._failed(wave[len(published.positions)], published.failure)

    def withdraw(self, arrived: Arrived) -> None:
        """Nobody waits for a batch any more. One that is on its way is appended nevertheless, or fails."""
        if arrived not in self._here or arrived.is_sent:
            return
        if arrived.is_copy:
            del self._here[arrived]
        else:
            self._failed(arrived, KafkaError(KafkaCode.NOT_LEADER_OR_FOLLOWER))

    def abandon(self, error: Exception) -> None:
        """Nothing that is here will be sent any more."""
        here, self._here, self._accepted = list(self._here), {}, {}
        self.is_sending = False
        if here:
            self._following = here[0].sequence
            self.refused(here[0].sequence)
        for arrived in here:
            arrived.failed(error)

    def _failed(self, first: Arrived, error: Exception) -> None:
        """A batch has failed. In the same step everything that arrived after it is judged anew, in its order: a copy of
        it takes its place, and what arrived behind it fails."""
        here = list(self._here)
        later = here[here.index(first) :]
        for arrived in later:
            self._forget(arrived)
            arrived.copies, arrived.is_sent = [], False
        self._following = first.sequence
        self.refused(first.sequence)
        first.failed(error)
        behind = _for_those_behind(error)
        for arrived in later[1:]:
            try:
                self._judge(arrived)
            except NotTheFollowing:
                arrived.failed(behind)
            except (KafkaError, errors.MetatxnError) as refusal:
                arrived.failed(refusal)

    def _forget(self, arrived: Arrived) -> None:
        del self._here[arrived]
        if not arrived.is_copy:
            del self._accepted[arrived.sequence]


def _for_those_behind(error: Exception) -> Exception:
    """The error for what arrived behind a batch that has failed. What was wrong with that one is not wrong with
    these."""
    if isinstance(error, errors.InvalidArgument | errors.PayloadTooLarge):
        return KafkaError(KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    return error
