"""Publishing to an owned segment.

Used only from the event loop of its process. The order of the steps is the protocol (DESIGN §5.3-5):

    pin ─▶ covered by the store ─▶ not decided meanwhile? ─▶ append begun ─▶ durable ─▶ acknowledged

The first entry of a writer in a transaction is covered by its intent, one guarded apply. The intent also covers the
later entries: each of them only has to learn that the transaction took operations after the entry had arrived, unless
its sender vouches that nobody had committed the transaction when it was sent (DESIGN §5.1). Between "not decided
meanwhile?" and "append begun" nothing is awaited. A decision may overtake the store's answer; then the publish is
refused although its intent was stored, and the materializer deletes the record.

Entries that are published in order, as a *wave*, are covered together, and their appends begin in one step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from metastore.clock import Clock
from metastore.errors import CheckFailed, MetastoreError
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.transactions import Header
from metastore.types import FirstVersion, Record
from metatxn.wire import errors
from metatxn.wire.broker import MAX_ENTRY_MESSAGES
from metatxn.wire.frames import MAX_PAYLOAD_BYTES, Entry, PayloadKind
from metatxn.wire.position import Position
from participants.common.metrics import BrokerMetrics
from participants.ledger.offsets import latest_record_ms, stamped
from participants.ledger.storage import Append, LedgerError, LedgerFenced, LedgerStopped, StorageFull
from participants.ledger.watermark import Watermark
from participants.segment.admission import Admission
from participants.segment.dedup import AppendedBefore, KeyHashes, NotTheNext, Scope, sequence_used, unknown_hashes
from participants.segment.intents import Intents
from participants.segment.owned import OwnedSegment
from participants.txn.buffer import Decision, TrackedTransaction
from participants.txn.refusals import prepared_refusal, refusal


@dataclass(frozen=True, slots=True)
class Hold:
    """A topic takes no messages, because this subscription has too large a backlog: `backlog`, in words."""

    subscription: str
    backlog: str


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a wave: the positions of its first entries, which are durable, and why the others were not
    appended; None if all of them are."""

    positions: list[Position]
    failure: Exception | None


@dataclass(frozen=True, slots=True)
class _Begun:
    """The appends of the first entries of a wave, which have begun, and why those of the others have not."""

    transaction: TrackedTransaction | None
    appends: list[Append]
    failure: Exception | None = None


class Publisher:
    """See the module docstring."""

    def __init__(self, segment: OwnedSegment, clock: Clock, metrics: BrokerMetrics) -> None:
        self._segment = segment
        self._clock = clock
        self._metrics = metrics
        self.admission = Admission(segment)
        self.intents = Intents(segment, metrics)
        self._publishes: set[asyncio.Task[Any]] = set()
        self._begun: set[asyncio.Task[Any]] = set()
        """The publishes whose append was begun, until its result is recorded."""
        self.appending = asyncio.Lock()
        """Held while an append is begun, and while the open ledger changes. The lock is fair, so the order of arrival
        is kept."""
        self.closing = False
        self.watermark = Watermark()
        """The watermark of the disk below the ledgers. The opener replaces it by the one of the whole broker."""
        self.hold: Hold | None = None
        """The backlog that holds publishes, as the last pass over the topic's policy found it."""
        self._seal_problem: str | None = None
        self._arrivals: dict[Scope, asyncio.Future[None]] = {}

    async def publish(
        self,
        entry: Entry,
        hashes: KeyHashes = unknown_hashes,
        *,
        misfit: errors.SchemaMismatch | None = None,
    ) -> tuple[Position, bool]:
        """Append one entry. Returns its position and whether it had already been appended (a retried sequence).
        For `writer` and `sequence` see DESIGN §5.12-13. `misfit` is why it does not fit the topic: it may have fitted
        when it was appended.

        When this returns, the entry is durable. Raises `misfit`, TXN_NOT_FOUND, TXN_CONFLICT, EXPIRED_TRANSACTION,
        NOT_ALLOWED (another producer has the topic to itself), PAYLOAD_TOO_LARGE, STORAGE_FULL, RATE_LIMITED,
        STORE_UNAVAILABLE or SEGMENT_SEALED if nothing was appended, and nothing of it will ever be visible. After
        OUTCOME_UNKNOWN, retry with the same sequence, or abort the transaction. Raises `AppendedBefore` if the entry,
        or a part of it, had already been appended, and not only in this segment.
        """
        self._segment.assert_serving()
        self._assert_format(entry)
        _assert_within_bounds(entry)
        if not self.admission.admits(entry):
            await self.admission.look_again(entry)
            self._segment.assert_serving()
        scope = Scope(entry.txn_id, entry.writer, entry.producer)
        if entry.behind is not None:
            if (position := await self._appended_last(entry, scope)) is not None:
                return position, True
        elif entry.sequence is not None:
            if (position := self._appended_before(entry, entry.sequence, hashes)) is not None:
                return position, True
            if (in_flight := self._segment.dedup.in_flight(scope, entry.sequence)) is not None:
                position = await self._segment.answer(in_flight)
                return self._appended_before(entry, entry.sequence, hashes) or position, True
        if self.closing or self._segment.ledgers.open is None:
            raise await self._sealed()
        self._assert_admitted(entry)
        if misfit is not None:
            raise misfit
        self._assert_room(entry)
        publish = self._segment.spawn(self._publish(entry, scope))
        self._publishes.add(publish)
        publish.add_done_callback(self._publishes.discard)
        if entry.sequence is not None:
            self._segment.dedup.begin(scope, entry.sequence, publish)
        return await self._segment.answer(publish), False

    async def publish_in_order(self, entries: Sequence[Entry]) -> Published:
        """Append a wave: entries of one scope, each with a sequence, one behind the other. They share one answer of the
        store and, up to the size of a group, one sync. If one is not appended, none behind it is.

        The caller sends one wave of a scope at a time, and has looked for retries: an entry that is there already, or
        is being published otherwise, ends the wave with OUTCOME_UNKNOWN.

        When this returns, the entries that have a position are durable. The others failed with an error of `publish`,
        which says about the first of them what it says there, and of those behind it nothing was appended.
        """
        first = entries[0]
        scope = Scope(first.txn_id, first.writer, first.producer)
        try:
            self._segment.assert_serving()
            if not self.admission.admits(first):
                await self.admission.look_again(first)
                self._segment.assert_serving()
            if self.closing or self._segment.ledgers.open is None:
                raise await self._sealed()
        except (errors.MetatxnError, MetastoreError) as error:
            return Published([], error)
        admitted, failure = self._first_admitted(entries, scope)
        if not admitted:
            return Published([], failure)
        wave = self._segment.spawn(self._publish_wave(admitted, scope))
        self._publishes.add(wave)
        wave.add_done_callback(self._publishes.discard)
        try:
            published = await self._segment.answer(wave)
        except errors.OutcomeUnknown as error:  # the segment was closed
            return Published([], error)
        return published if published.failure is not None else Published(published.positions, failure)

    def _first_admitted(self, entries: Sequence[Entry], scope: Scope) -> tuple[list[Entry], Exception | None]:
        """The first entries of a wave, up to the one that may not be appended, and why not."""
        admitted: list[Entry] = []
        dedup = self._segment.dedup
        for entry in entries:
            assert entry.sequence is not None and entry.behind is None
            try:
                self._assert_format(entry)
                _assert_within_bounds(entry)
                self._assert_admitted(entry)
                self._assert_room(entry)
                if dedup.knows(scope, entry.sequence) or dedup.in_flight(scope, entry.sequence) is not None:
                    raise errors.OutcomeUnknown(
                        f"sequence {entry.sequence} is being published by another request",
                        action="Send it again, with the same sequence.",
                        segment=self._segment.id,
                    )
            except errors.MetatxnError as error:
                return admitted, error
            admitted.append(entry)
        return admitted, None

    def _assert_format(self, entry: Entry) -> None:
        """Check the kind of an entry: a segment with offsets takes only batches, and no other one takes them."""
        if (entry.kind is PayloadKind.KAFKA) != (self._segment.open_offsets is not None):
            takes = "no record batches" if entry.kind is PayloadKind.KAFKA else "only messages: it has the format kafka"
            raise errors.InvalidArgument(
                f"body: topic {self._segment.record.topic} takes {takes}",
                field="body",
                segment=self._segment.id,
            )

    def _assert_admitted(self, entry: Entry) -> None:
        """Check that the entry comes from the topic's exclusive producer, or that there is none (DESIGN §5.23)."""
        if not self.admission.admits(entry):
            raise self.admission.refusal(entry)

    def _assert_room(self, entry: Entry) -> None:
        """Check for space and backlog, before anything of the entry is stored, its intent included."""
        if self.hold is not None:
            self._metrics.held_publishes.inc()
            raise errors.RateLimited(
                f"subscription {self.hold.subscription} has a backlog of {self.hold.backlog}",
                action="Nothing happened. Try again after Retry-After seconds, when its consumers have caught up.",
                segment=self._segment.id,
                subscription=self.hold.subscription,
            )
        if not self.watermark.admits(entry.size):
            raise errors.StorageFull(
                f"{self.watermark.refusal}",
                action="Free space; writing then resumes automatically. Nothing happened. Everything else goes on.",
                segment=self._segment.id,
            )

    def _appended_before(self, entry: Entry, sequence: int, key_hashes: KeyHashes) -> Position | None:
        """The position of the entry, if it was already appended here. An entry with unknown hashes is taken for one of
        this segment rather than for an inherited one. Raises `AppendedBefore`, INVALID_ARGUMENT."""
        scope = Scope(entry.txn_id, entry.writer, entry.producer)
        if not self._segment.dedup.knows(scope, sequence):
            return None
        hashes = key_hashes()
        found = self._segment.dedup.find(scope, sequence, hashes)
        own = next((each for each in found if each.segment is None), None)
        if own is not None and (len(found) == 1 or hashes is None):
            if own.count != entry.count:
                raise sequence_used(sequence, own.count, entry.count)
            return own.position
        if not found:
            return None
        told = all(any(each.tells_of(hashed) for each in found) for hashed in hashes or ())
        parts = [replace(each, segment=each.segment or self._segment.id) for each in found]
        raise AppendedBefore(sequence, parts, complete=told)

    async def _appended_last(self, entry: Entry, scope: Scope) -> Position | None:
        """The position of the entry if its producer, which numbers its messages itself, appended it last; or None if it
        is the next one. Nothing is in flight then, and nothing was awaited since that was judged. Raises
        `NotTheNext`."""
        dedup = self._segment.dedup
        while others := dedup.all_in_flight(scope):
            await asyncio.wait(others)
            self._segment.assert_serving()
        known, last = dedup.all_of(scope), dedup.last(scope)
        if entry.sequence == last.own:
            found = next(each for sequence, each in known if sequence == last.own and each.segment is None)
            if found.count == entry.count:
                return found.position
        if last != entry.behind or (entry.sequence or 0) <= last.own:
            raise NotTheNext(self._segment.id, entry, known)
        return None

    async def _publish(self, entry: Entry, scope: Scope) -> Position:
        begun = await self._begin([entry], scope)
        if begun.failure is not None:
            raise begun.failure
        return await self._until_durable(begun.appends[0], entry, scope, begun.transaction)

    async def _publish_wave(self, entries: Sequence[Entry], scope: Scope) -> Published:
        landing: dict[int, asyncio.Future[Position]] = {}
        for entry in entries:  # a caller that publishes one of them otherwise joins it
            assert entry.sequence is not None
            landing[entry.sequence] = landed = asyncio.get_running_loop().create_future()
            self._segment.dedup.begin(scope, entry.sequence, landed)
        positions: list[Position] = []
        failure: Exception | None = None
        try:
            begun = await self._begin(entries, scope)
            failure = begun.failure
            for append in begun.appends:
                append.durable.add_done_callback(_looked_at)  # if the segment closes, not all of them are waited for
            for entry, append in zip(entries, begun.appends, strict=False):
                assert entry.sequence is not None
                try:  # each of them, because each tells the transaction that it has ended
                    position = await self._until_durable(append, entry, scope, begun.transaction)
                except errors.MetatxnError as error:
                    failure = error if failure is begun.failure else failure
                    continue
                assert failure is begun.failure, "what follows a failed append has failed with it"
                positions.append(position)
                landing[entry.sequence].set_result(position)
        finally:
            for landed in landing.values():
                landed.cancel()
        return Published(positions, failure)

    async def _begin(self, entries: Sequence[Entry], scope: Scope) -> _Begun:
        """Begin the appends of entries of one scope, in one step. On failure of the first one none was begun."""
        txn_id = scope.txn_id
        if txn_id is None:
            async with self.appending:
                return self._begin_appends(None, None, entries)
        if (final := self._segment.mirror.final(txn_id)) is not None:
            return _Begun(None, [], refusal(txn_id, final[0]))
        transaction = self._segment.track(txn_id)
        if transaction.decision is not None:
            return _Begun(None, [], refusal(txn_id, transaction.decision.header))
        previous, arrived = self._arrive(scope)
        try:
            intent = self._segment.buffer.pin(transaction, self._segment.buffer.last_durable)
            await self._cover(transaction, intent, entries[0])
            if previous is not None:
                await asyncio.shield(previous)
            async with self.appending:
                return self._begin_appends(transaction, intent, entries)
        except (errors.MetatxnError, MetastoreError) as error:
            return _Begun(transaction, [], error)
        finally:
            self._has_arrived(scope, previous, arrived)

    async def _cover(self, transaction: TrackedTransaction, intent: int, entry: Entry) -> None:
        """Cover the entry by its writer's intent, which the first entry stores. On any failure the pin is dropped
        (DESIGN §5.3)."""
        announced = transaction.announced.get(entry.writer)
        try:
            if announced is not None and (announced.result() if announced.done() else await asyncio.shield(announced)):
                if not entry.before_commit:
                    await self._assert_open(transaction)
            else:
                await self.intents.announce(transaction, transaction.intents[intent], entry)
        except BaseException as error:
            definite = isinstance(error, MetastoreError) and error.definite
            self._drop_intent(transaction, intent, maybe_stored=not definite)
            if isinstance(error, CheckFailed):
                raise self._refused(transaction, error) from None
            raise

    async def _assert_open(self, transaction: TrackedTransaction) -> None:
        """Learn what an intent of its own would tell: the transaction took operations after the entry had arrived."""
        standing = await self._segment.mirror.ask(transaction.txn_id)
        if standing.header is None or not standing.header.first:
            raise self._refused_by(transaction, standing.header)
        if standing.prepared:
            raise prepared_refusal(transaction.txn_id)

    def _begin_appends(
        self, transaction: TrackedTransaction | None, intent: int | None, entries: Sequence[Entry]
    ) -> _Begun:
        """Begin the appends, with no await in between. `intent` is what has covered the entries."""
        begun: list[Append] = []
        for entry in entries:
            try:
                if transaction is None:
                    append = self._begin_append(entry)
                else:
                    intent = intent or self._segment.buffer.pin(transaction, self._segment.buffer.last_durable)
                    append = self._begin_append_of(transaction, intent, entry)
                    intent = None
            except (errors.MetatxnError, ValueError) as error:
                return _Begun(transaction, begun, error)
            begun.append(append)
        return _Begun(transaction, begun)

    def _begin_append_of(self, transaction: TrackedTransaction, intent: int, entry: Entry) -> Append:
        """Check the decision a last time and begin the append, with no await in between (DESIGN §5.5)."""
        try:
            self._segment.assert_serving()
            if transaction.decision is not None:
                raise refusal(transaction.txn_id, transaction.decision.header)
            append = self._begin_append(entry)
        except BaseException:
            self._drop_intent(transaction, intent, maybe_stored=True)
            raise
        self._segment.buffer.append_begun(transaction, intent, append.position, entry.writer)
        return append

    def _begin_append(self, entry: Entry) -> Append:
        self._assert_admitted(entry)
        ledger, offsets = self._segment.ledgers.open, self._segment.open_offsets
        assert ledger is not None, "the drain before a seal waits for every publish"
        if offsets is not None:  # the entry has this place, whatever was begun and failed before (DESIGN §5.20)
            offset = offsets.take(ledger.last_assigned.entry + 1, entry.count, latest_record_ms(entry.payload))
            payload = stamped(entry.payload, offset)
            entry = entry if payload is entry.payload else replace(entry, payload=payload)
        try:
            return ledger.append(entry, self._clock())
        except LedgerStopped as error:
            self._segment.lose(f"its ledger is stopped: {error}")
            raise self._segment.not_serving() from None

    async def _until_durable(
        self, append: Append, entry: Entry, scope: Scope, transaction: TrackedTransaction | None
    ) -> Position:
        publish = asyncio.current_task()
        assert publish is not None
        self._begun.add(publish)
        publish.add_done_callback(self._begun.discard)
        try:
            await asyncio.shield(append.durable)
        except StorageFull as error:
            self._append_ended(transaction)
            raise errors.StorageFull(str(error), segment=self._segment.id) from None
        except LedgerFenced as error:
            self._segment.lose(str(error))
            raise self._segment.not_serving() from None
        except LedgerError as error:
            # Unknown: the transaction is never released by this object; recovery re-reads the ledger.
            self._segment.lose(f"an append failed: {error}")
            raise errors.OutcomeUnknown(str(error), segment=self._segment.id) from None
        self._segment.traffic.came_in(entry.count, entry.size)
        if entry.txn_id is not None:
            self._segment.work.wrote(entry.txn_id, self._segment.id, entry.count, entry.size, self._clock())
        if entry.sequence is not None:
            self._segment.dedup.durable(scope, entry.sequence, append.position, entry.count)
        self._append_ended(transaction)
        return append.position

    def _append_ended(self, transaction: TrackedTransaction | None) -> None:
        if transaction is not None:
            self._segment.buffer.append_ended(transaction)
            self._segment.release_if_drained(transaction)

    def _drop_intent(self, transaction: TrackedTransaction, intent: int, *, maybe_stored: bool) -> None:
        self._segment.buffer.unpin(transaction, intent, maybe_stored=maybe_stored)
        if self._segment.buffer.get(transaction.txn_id) is None:
            self._segment.unfollow(transaction.txn_id)
        self._segment.advanced()

    def _arrive(self, scope: Scope) -> tuple[asyncio.Future[None] | None, asyncio.Future[None]]:
        """Wait for the entry's turn: frames of one scope are appended in the order in which they arrived, whatever the
        order of the store's answers."""
        previous = self._arrivals.get(scope)
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals[scope] = arrived
        return previous, arrived

    def _has_arrived(self, scope: Scope, previous: asyncio.Future[None] | None, arrived: asyncio.Future[None]) -> None:
        """End a turn. A publish that failed early must not let later ones overtake earlier ones."""

        def pass_on(_: object) -> None:
            arrived.set_result(None)
            if self._arrivals.get(scope) is arrived:
                del self._arrivals[scope]

        if previous is None or previous.done():
            pass_on(previous)
        else:
            previous.add_done_callback(pass_on)

    # -- the end of appending ----------------------------------------------------------------------------------

    async def until_begun_ended(self) -> None:
        """Wait until every begun append is durable and recorded, or has failed. While `appending` is held, no other one
        begins."""
        while self._begun:
            await asyncio.wait(self._begun)

    async def learn_producer(self) -> None:
        """Returns once this owner knows which producer has the topic to itself now, and nothing is under way that was
        begun before. Raises STORE_UNAVAILABLE if it is not the owner, or one of those appends has an unknown
        outcome."""
        await self.admission.learn()
        if begun := set(self._begun):
            await asyncio.wait(begun)
        self._segment.assert_serving()

    async def drain(self) -> None:
        """Admit no more publishes, and wait until the admitted ones are durable or have failed (DESIGN §5.14).

        This cannot be undone: the segment is sealed next, or this object is lost.
        """
        self.closing = True
        while self._publishes:
            await asyncio.wait(self._publishes)

    def seal_delayed(self, reason: str) -> None:
        """The seal is delayed, so publishes that wait for it should not wait here."""
        self._seal_problem = reason
        self._segment.changed.notify()

    async def _sealed(self) -> errors.MetatxnError:
        """The error for a publish that is not admitted. It waits for a seal in progress, unless the seal takes too
        long."""
        while self._segment.ledgers.open is not None:
            self._segment.assert_serving()
            if self._seal_problem is not None:
                return self._sealing(f"is being sealed: {self._seal_problem}")
            await self._segment.changed.wait()
        self._segment.assert_serving()
        if self._segment.record.merge is not None:
            await self._reread()
        if self._segment.record.merge is not None:
            return self._sealing(f"is being merged with {self._segment.record.merge.other}")
        return errors.SegmentSealed(
            f"segment {self._segment.id} is sealed",
            action=None
            if self._segment.record.children
            else "It was sealed for good: write to another segment or topic.",
            segment=self._segment.id,
            children=list(self._segment.record.children),
        )

    def _sealing(self, what: str) -> errors.MetatxnError:
        return errors.StoreUnavailable(
            f"segment {self._segment.id} {what}",
            action="Try again in a moment; nothing happened.",
            segment=self._segment.id,
        )

    async def _reread(self) -> None:
        """Read the record again, because a merge may be ended by a broker that does not own both segments."""
        stored = await self._segment.store.get(paths.segment(self._segment.id))
        if stored is not None:
            self._segment.recorded(SegmentRecord.decode(stored.value), stored.version)

    def _refused(self, transaction: TrackedTransaction, lost: CheckFailed) -> Exception:
        """The error for the publisher when a guard of the intent did not hold."""
        if lost.check == self._segment.ownership.check:
            self._segment.deposed_by(lost)
            return self._segment.not_serving()
        if isinstance(lost.check, FirstVersion):
            return self._refused_by(transaction, lost.current)
        return prepared_refusal(transaction.txn_id)

    def _refused_by(self, transaction: TrackedTransaction, found: Record | None) -> errors.MetatxnError:
        """The error for a header that is final, or gone."""
        header = Header.decode(found.value) if found else None
        if header is not None:
            self._segment.decide(transaction, Decision(header))
        return refusal(transaction.txn_id, header)


def _looked_at(durable: asyncio.Future[None]) -> None:
    """Retrieve a failure."""
    if not durable.cancelled():
        durable.exception()


def _assert_within_bounds(entry: Entry) -> None:
    """Check the count. Readers make as many messages as an entry counts, also of one that they cannot read, so its
    sender must not count more than it may have. A table was decoded before, and opaque bytes are one message, whatever
    they count."""
    if entry.size > MAX_PAYLOAD_BYTES:
        raise errors.PayloadTooLarge(
            f"an entry holds at most {MAX_PAYLOAD_BYTES} bytes",
            limit_bytes=MAX_PAYLOAD_BYTES,
        )
    if entry.count > MAX_ENTRY_MESSAGES and entry.kind not in (PayloadKind.ARROW, PayloadKind.BYTES):
        raise errors.PayloadTooLarge(
            f"an entry holds at most {MAX_ENTRY_MESSAGES} messages, and this one counts {entry.count}",
            action="Send fewer messages in each entry.",
        )
