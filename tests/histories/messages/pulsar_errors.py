"""Clients of Pulsar's are told nothing that those who keep the rules are never told. That a transaction is over they
are told only if they have ended it before, or if its time was over.

Anyone who is told that something may succeed later needs no reason. Nor does a commit that its client refuses, because
something of the transaction has failed: acknowledgements are no calls of the history.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.histories.calls import Call
from tests.histories.messages.history import History

_NS_PER_MS = 1_000_000
_OF_THE_MOMENT = {
    *("TimeoutException", "PulsarClientException", "AlreadyClosedException", "ConnectException", "LookupException"),
    *("BrokerPersistenceException", "CoordinatorNotFoundException", "ServiceNotReadyException"),
    *("TopicTerminatedException", "TransactionCoordinatorClientException", "TransactionHasOperationFailedException"),
}
_OF_ITS_TRANSACTION = {
    *("InvalidTxnStatusException", "TransactionNotFoundException", "TransactionConflictException"),
    "NotAllowedException",
}


def broken(history: History) -> Iterable[str]:
    for call in history.pulsar_errors:
        name = name_of(call)
        if name not in _OF_THE_MOMENT and not (name in _OF_ITS_TRANSACTION and _was_over(history, call)):
            yield f"nothing that has happened is a reason for {name}: {call}"


def name_of(call: Call) -> str:
    """Of the error that the client was told."""
    return str(call.result).removeprefix("V5 ").partition(":")[0]


def _was_over(history: History, call: Call) -> bool:
    """The transaction of this call."""
    begun = history.begun.get(call.action.get("txn"))
    if begun is None:
        return False
    timeout_ns = begun.action["timeout_ms"] * _NS_PER_MS
    ends = history.ends[call.action["txn"]]
    return call.returned - begun.invoked >= timeout_ns or any(end.invoked < call.invoked for end in ends)
