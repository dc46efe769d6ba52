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
from metatxn_gateways.kafka.wave_pace import WavePace
from metatxn_gateways.listener import MAX_IN_PROGRESS
from participants.segment.dedup import Scope, sequence_used
from participants.segment.publishing import Published
from participants.segment.segment import Segment

_SEQUENCES = 1 << 31
WAVE_BATCHES = MAX_IN_PROGRESS
"""The most batches of a wave: as many as one connection can have in progress."""
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


def _is_behind(sequence: int, other: int) -> bool:
    """Whether a sequence comes later than another one. In one epoch 0 follows the highest one, so the shorter way
    counts."""
    epoch, first = epoch_and_sequence(sequence)
    other_epoch, other_first = epoch_and_sequence(other)
    if epoch != other_epoch:
        return epoch > other_epoch
    return 0 < (first - other_first) % _SEQUENCES < _SEQUENCES // 2


class NotTheFollowing(Exception):
    """A batch is missing between this one and those that are here, as far as is known."""


@dataclass(eq=False, slots=True)
class Arrived:
    """A batch from its arrival on. `entry` has a producer, a sequence, and the transaction that was open when it
    arrived. It is sent in the one that `producer` has open then.

    `place` is done when the batch is durable, or has failed, and cancelled when nobody waits for it any more.
    """

    entry: Entry
    producer: TransactionalProducer | None
    place: asyncio.Future[Position] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    copies: dict[Arrived, None] = field(default_factory=dict)
    is_copy: bool = False
    connection: Turns | None = None
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
    """See the module docstring. `is_sending` and `pace` belong to the sender, which takes one wave at a time."""

    def __init__(self) -> None:
        self.is_sending = False
        self.pace = WavePace()
        self._opening: tuple[str, int] | None = None
        """The opening of the segment that the rest is about: in between another broker may have appended."""
        self._following: int | None = None
        """The sequence that is accepted next; None if nothing is known of the producer."""
        self._here: dict[Arrived, None] = {}
        """What was accepted and has not ended, and its copies, in the order of arrival."""
        self._accepted: dict[int, Arrived] = {}
        """By sequence, what of it is not a copy."""
        self._owed: int | None = None
        """The first batch that was refused or has failed since the last one was accepted."""
        self._sent_back: dict[Turns, int] = {}
        """The batch of each connection that was sent back last, since one is owed. Of those that are closed only those
        that were closed since the last one was sent back."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is here."""
        return not self._here

    @property
    def accepted(self) -> int:
        """The number of batches that were accepted and have not ended, without their copies."""
        return len(self._accepted)

    # -- arrivals ----------------------------------------------------------------------------------------------

    def refused(self, sequence: int, connection: Turns) -> None:
        """A batch was refused before it could be judged, or has failed. Its client sends it again before those behind
        it. If the client begins again with it, this one is owed in the place of an earlier one."""
        is_first = self._owed is None or not _is_behind(sequence, self._owed)
        if is_first or self._begins_again(sequence, connection):
            self._owed, self._sent_back = sequence, {}
        if connection not in self._sent_back:
            self._send_back(sequence, connection)

    def arrive(self, segment: Segment, arrived: Arrived, connection: Turns) -> None:
        """Judge a batch. Its `place` tells what becomes of it.

        Raises `NotTheFollowing`, INVALID_PRODUCER_EPOCH, NOT_LEADER_OR_FOLLOWER (it is to be sent again), and
        INVALID_ARGUMENT (another batch has its sequence).
        """
        arrived.connection = connection
        self._look_at(segment, arrived)
        self._assert_epoch(arrived)
        if (position := arrived.appended_before(segment, arrived.entry.txn_id)) is not None:
            self._passed(arrived)
            arrived.appended(position)
            return
        if self._following is None:
            self._assert_nothing_owed(arrived.sequence, connection)
            self._following = arrived.sequence
        self._judge(arrived)

    def _look_at(self, segment: Segment, arrived: Arrived) -> None:
        """Begin anew with another opening of the segment. What is on its way in the former one may be in the table, or
        not, so nothing passes over it."""
        opening = (segment.id, segment.ownership.generation)
        is_another = opening != self._opening
        if segment.lost or (is_another and not self.is_idle):
            self._owes(arrived)
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

    def _assert_nothing_owed(self, sequence: int, connection: Turns) -> None:
        """A producer of which the segment knows nothing may begin anywhere, but does not pass over what was refused
        here, unless its client does not send that again."""
        if self._owed is None or not _is_behind(sequence, self._owed) or self._begins_again(sequence, connection):
            return
        self._send_back(sequence, connection)
        raise KafkaError(KafkaCode.NOT_LEADER_OR_FOLLOWER)

    def _begins_again(self, sequence: int, connection: Turns) -> bool:
        """Whether a client sends again from this batch on what was sent back. On one connection batches come in their
        order until it does. What lies in an earlier one may still come, so as long as that is open a batch on another
        connection proves nothing."""
        last = self._sent_back.get(connection)
        if last is not None:
            return not _is_behind(sequence, last)
        if not all(each.is_over for each in self._sent_back):
            return False
        return not all(_is_behind(sequence, each) for each in self._sent_back.values())

    def _send_back(self, sequence: int, connection: Turns) -> None:
        self._sent_back = {each: last for each, last in self._sent_back.items() if not each.is_over}
        self._sent_back[connection] = sequence

    def _owes(self, arrived: Arrived) -> None:
        assert arrived.connection is not None
        self.refused(arrived.sequence, arrived.connection)

    def _judge(self, arrived: Arrived) -> None:
        """Accept a batch, behind everything that is here. Raises `NotTheFollowing` and INVALID_PRODUCER_EPOCH."""
        assert self._following is not None
        self._assert_epoch(arrived)
        original = self._accepted.get(arrived.sequence)
        if original is not None:
            if original.entry.count != arrived.entry.count:
                raise sequence_used(arrived.sequence, original.entry.count, arrived.entry.count)
            original.copies[arrived] = None
        else:
            epoch, sequence = epoch_and_sequence(arrived.sequence)
            begins_an_epoch = sequence == 0 and epoch > epoch_and_sequence(self._following)[0]
            if arrived.sequence != self._following and not begins_an_epoch:
                raise NotTheFollowing
            self._following = _behind(arrived.sequence, arrived.entry.count)
            self._owes_nothing()
            self._accepted[arrived.sequence] = arrived
        arrived.is_copy = original is not None
        self._here[arrived] = None

    def _passed(self, arrived: Arrived) -> None:
        """A batch was appended before, and its answer got lost."""
        if self._following in (None, arrived.sequence):
            self._following = _behind(arrived.sequence, arrived.entry.count)
        if self._owed == arrived.sequence:
            self._owes_nothing()

    def _owes_nothing(self) -> None:
        self._owed, self._sent_back = None, {}

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
            self._forget(arrived)
        else:
            self._failed(arrived, KafkaError(KafkaCode.NOT_LEADER_OR_FOLLOWER))

    def abandon(self, error: Exception) -> None:
        """Nothing that is here will be sent any more."""
        here, self._here, self._accepted = list(self._here), {}, {}
        self.is_sending = False
        if here:
            self._following = here[0].sequence
            self._owes(here[0])
        for arrived in here:
            arrived.failed(error)

    def _failed(self, first: Arrived, error: Exception) -> None:
        """A batch has failed. In the same step everything that arrived after it is judged anew, in its order: a copy of
        it takes its place, and what arrived behind it fails."""
        here = list(self._here)
        later = here[here.index(first) :]
        for arrived in reversed(later):  # copies before what they are copies of
            self._forget(arrived)
            arrived.is_sent = False
        self._following = first.sequence
        self._owes(first)
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
        if arrived.is_copy:
            del self._accepted[arrived.sequence].copies[arrived]
        else:
            del self._accepted[arrived.sequence]


def _for_those_behind(error: Exception) -> Exception:
    """The error for what arrived behind a batch that has failed. What was wrong with that one is not wrong with
    these."""
    if isinstance(error, errors.InvalidArgument | errors.PayloadTooLarge):
        return KafkaError(KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    return error
