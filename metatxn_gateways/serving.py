"""What a listener needs from the process in which it runs."""

from __future__ import annotations

from typing import Protocol

from coordinator.local import LocalCommits
from coordinator.transactions import Transactions
from metatxn.service.quotas.quotas import Quotas
from participants.broker.broker import Broker


class ServingBroker(Protocol):
    """A broker's service, once it has started."""

    @property
    def broker(self) -> Broker | None: ...

    @property
    def url(self) -> str: ...

    @property
    def quotas(self) -> Quotas: ...


def transactions_of(broker: Broker) -> Transactions:
    """The transactions that this process begins and ends: those of what commits in it, so that its metrics tell of
    them. A broker that commits nothing shows none."""
    committer = broker.committer
    return committer.transactions if isinstance(committer, LocalCommits) else Transactions(broker.store, broker.clock)
