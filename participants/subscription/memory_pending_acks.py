"""The built-in pending-ack store. Reserved ranges are sorted, so a conflict is found at once.

It does no I/O and has no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sortedcontainers import SortedDict

from metatxn.wire.ids import TxnId
from participants.subscription.cursor import Cursor
from participants.subscription.pending_acks import Ack, AckConflict, AckState, PendingAckStore, PendingTransaction
from participants.subscription.places import START, Place, Span


class MemoryPendingAcks(PendingAckStore):
    def __init__(self) -> None:
        self._transactions: dict[TxnId, PendingTransaction] = {}
        self._holders: SortedDict[Place, tuple[Place, TxnId]] = SortedDict()
        """The start of each range of single acknowledgements, with its end and its holder. No two overlap."""
        self._cumulative_holder: TxnId | None = None

    def __iter__(self) -> Iterator[PendingTransaction]:
        return iter(list(self._transactions.values()))

    def __len__(self) -> int:
        return len(self._transactions)

    def get(self, txn_id: TxnId) -> PendingTransaction | None:
        return self._transactions.get(txn_id)

    def holder(self, place: Place) -> TxnId | None:
        if (cumulative := self._cumulative_end()) is not None and place < cumulative:
            return self._cumulative_holder
        return next((holder for _, holder in self._held(Span(place, place._replace(message=place.message + 1)))), None)

    # -- conflicts ---------------------------------------------------------------------------------------------

    def check(self, txn_id: TxnId | None, ack: Ack, cursor: Cursor) -> None:
        known = self._transactions.get(txn_id) if txn_id is not None else None
        if known is not None and ack in known.acks:
            return
        if ack.cumulative:
            self._check_cumulative(txn_id, ack.span.end, cursor)
        else:
            self._check_single(txn_id, ack.span, cursor)

    def _check_single(self, txn_id: TxnId | None, span: Span, cursor: Cursor) -> None:
        if txn_id is not None and cursor.overlaps(span):
            raise AckConflict(span.start, "it is already acknowledged")
        cumulative = self._cumulative_end()
        if cumulative is not None and span.start < cumulative and self._cumulative_holder != txn_id:
            raise AckConflict(span.start, "a cumulative acknowledgement of it is pending", self._cumulative_holder)
        self._check_unheld(txn_id, span)

    def _check_cumulative(self, txn_id: TxnId | None, end: Place, cursor: Cursor) -> None:
        if txn_id is not None and end <= cursor.mark_delete:
            raise AckConflict(end, "everything up to it is already acknowledged")
        pending = self._cumulative_end()
        if pending is not None and (self._cumulative_holder != txn_id or end < pending):
            raise AckConflict(end, "a cumulative acknowledgement is pending", self._cumulative_holder)
        self._check_unheld(txn_id, Span(START, end))

    def _check_unheld(self, txn_id: TxnId | None, span: Span) -> None:
        for start, holder in self._held(span):
            if holder != txn_id:
                raise AckConflict(max(start, span.start), "an acknowledgement of it is pending", holder)

    # -- reservations ------------------------------------------------------------------------------------------

    def reserve(self, txn_id: TxnId, ack: Ack) -> None:
        if self.state(txn_id, ack) is None:
            self._set(txn_id, ack, AckState.SENT)

    def stored(self, txn_id: TxnId, ack: Ack) -> None:
        if txn_id in self._transactions:
            self._set(txn_id, ack, AckState.STORED)

    def restore(self, txn_id: TxnId, ack: Ack) -> None:
        self._set(txn_id, ack, AckState.STORED)

    def unknown(self, txn_id: TxnId, ack: Ack) -> None:
        if self.state(txn_id, ack) is AckState.SENT:
            self._set(txn_id, ack, AckState.UNKNOWN)

    def release(self, txn_id: TxnId, ack: Ack) -> None:
        known = self._transactions.get(txn_id)
        if known is None or known.acks.get(ack) is not AckState.SENT:
            return
        del known.acks[ack]
        remaining = known.acks
        self._forget(known)
        for each, state in remaining.items():
            self._set(txn_id, each, state)

    def state(self, txn_id: TxnId, ack: Ack) -> AckState | None:
        known = self._transactions.get(txn_id)
        return known.acks.get(ack) if known else None

    def end(self, txn_id: TxnId) -> PendingTransaction | None:
        known = self._transactions.get(txn_id)
        if known is not None:
            self._forget(known)
        return known

    # -- inside ------------------------------------------------------------------------------------------------

    def _set(self, txn_id: TxnId, ack: Ack, state: AckState) -> None:
        known = self._transactions.setdefault(txn_id, PendingTransaction(txn_id))
        known.acks[ack] = state
        if ack.cumulative:
            known.cumulative = max(known.cumulative or START, ack.span.end)
            self._cumulative_holder = txn_id
        elif not known.ranges.covers(ack.span):
            held, swallowed = known.ranges.add(ack.span)
            for start in swallowed:
                del self._holders[start]
            self._holders[held.start] = (held.end, txn_id)

    def _forget(self, known: PendingTransaction) -> None:
        for start, _ in known.ranges:
            del self._holders[start]
        del self._transactions[known.txn_id]
        if self._cumulative_holder == known.txn_id:
            self._cumulative_holder = None

    def _cumulative_end(self) -> Place | None:
        holder = self._cumulative_holder
        return self._transactions[holder].cumulative if holder is not None else None

    def _held(self, span: Span) -> Iterable[tuple[Place, TxnId]]:
        """The starts of the single acknowledgements in `span`, and their holders."""
        at = self._holders.bisect_right(span.start) - 1
        if at < 0 or self._holders.peekitem(at)[1][0] <= span.start:
            at += 1
        while at < len(self._holders):
            start, (_, holder) = self._holders.peekitem(at)
            if start >= span.end:
                return
            yield start, holder
            at += 1


def open_memory_pending_acks(segment: str, subscription: str) -> PendingAckStore:
    """See `OpenPendingAcks`."""
    return MemoryPendingAcks()
