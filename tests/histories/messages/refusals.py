"""Nobody is refused for certain without a reason: of each definite refusal the history tells what has made it true, or
what may have, before it was told. A refusal that says that the same call may succeed later needs no reason.

The reasons are necessary, not sufficient: a call whose outcome nobody knows may have been the reason, and a transaction
that was begun longer ago than its timeout may have been aborted by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.histories.calls import Call, Outcome
from tests.histories.messages.history import History

_OF_THE_MOMENT = {"StoreUnavailable", "NotOwner", "RateLimited", "StorageFull", "ServiceUnreachable"}
_NS_PER_MS = 1_000_000


def broken(history: History) -> Iterable[str]:
    for call in history.refused:
        kind, _, detail = call.result.partition(": ")
        if kind not in _OF_THE_MOMENT:
            reason = _REASONS.get((call.action["do"], kind))
            if reason is None or not reason(history, call):
                yield f"nothing that has happened is a reason for {kind} ({detail}): {call}"


def _ended(history: History, call: Call) -> bool:
    """By somebody else, by its timeout, or by the library, which aborts on a commit what is not all there."""
    ends = history.ends[call.action["txn"]]
    if _timed_out(history, call) or any(_may_precede(other, call) for other in ends):
        return True
    commits = [end for end in ends if end.action["commit"] and end.invoked <= call.returned]
    return bool(commits) and _incomplete(history, call)


def _otherwise_ended(history: History, call: Call) -> bool:
    """In the opposite way. The library itself refuses to commit what is not all there."""
    txn, commit = call.action["txn"], call.action["commit"]
    others = [other for other in history.ends[txn] if other.action["commit"] is not commit]
    return any(_may_precede(other, call) for other in others) or (commit and _incomplete(history, call))


def _incomplete(history: History, call: Call) -> bool:
    """Another call has not sent what belongs to the same transaction."""
    sends = [write.call for write in history.transactions().get(call.action["txn"], ())]
    return any(send is not call and send.outcome is not Outcome.OK and send.invoked <= call.returned for send in sends)


def _timed_out(history: History, call: Call) -> bool:
    begun = history.begun[call.action["txn"]]
    timeout_ms: int = begun.action["timeout_ms"]
    return call.returned - begun.invoked >= timeout_ms * _NS_PER_MS


def _collected(history: History, call: Call) -> bool:
    """A revision is too old once a decision behind it has been collected."""
    return any(_may_precede(end, call) for ends in history.ends.values() for end in ends)


def _changed(history: History, call: Call) -> bool:
    """Somebody else may have split or merged it."""
    return any(_may_precede(other, call) for other in history.layouts)


def _may_precede(other: Call, call: Call) -> bool:
    return other is not call and other.outcome is not Outcome.FAILED and other.invoked <= call.returned


_REASONS: dict[tuple[str, str], Callable[[History, Call], bool]] = {
    ("write", "TransactionConflict"): _ended,
    ("write", "InvalidTransactionState"): _ended,
    ("write", "ExpiredTransaction"): _timed_out,
    ("write", "TransactionNotFound"): _ended,
    ("end", "InvalidTransactionState"): _otherwise_ended,
    ("end", "ExpiredTransaction"): _timed_out,
    ("end", "TransactionNotFound"): _ended,
    ("snapshot", "InvalidArgument"): _collected,
    ("split", "SegmentSealed"): _changed,
    ("split", "NotFound"): _changed,
    ("merge", "SegmentSealed"): _changed,
    ("merge", "NotFound"): _changed,
    ("merge", "InvalidArgument"): _changed,
}
