"""What a listener needs from the process in which it runs."""

from __future__ import annotations

from typing import Protocol

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
