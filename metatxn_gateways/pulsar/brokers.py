"""Where Pulsar's clients reach the brokers of the cluster.

    /cluster/broker/<id>     its `pulsar` is the URL of a listener
    /segment-owner/<id>      the broker that serves the segment

All brokers see the same records, so they give the same answers soon. Nothing depends on that: a broker that does not
serve a segment refuses its producers and consumers, and their clients look it up again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord
from metastore.txn.records.segments import OwnerRecord
from metastore.watches import Mirror
from participants.broker.broker import Broker


class PulsarBrokers:
    """The brokers as they were last seen. `own` is the URL of this broker's listener, known once it listens."""

    def __init__(self, broker: Broker, own: Callable[[], str]) -> None:
        self._broker = broker
        self.own = own
        self._announced = Mirror(broker.store, paths.BROKERS, lambda _: None)
        self._owners = Mirror(broker.store, paths.SEGMENT_OWNERS, lambda _: None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the records inside this block. Raises the store's errors."""
        async with AsyncExitStack() as stack:
            for mirror in (self._announced, self._owners):
                await stack.enter_async_context(mirror.running())
            yield

    def of_broker(self, url: str) -> str | None:
        """The URL for the clients of the broker whose own interface is at `url`, if it has any."""
        for record in self._announced.records.values():
            announced = BrokerRecord.decode(record.value)
            if announced.url == url and announced.pulsar is not None:
                return announced.pulsar
        return None

    def serving(self, segment: str) -> str | None:
        """The URL for the clients of the broker that serves a segment, if that is known."""
        if self._broker.serving(segment) is not None:
            return self.own()
        record = self._owners.records.get(paths.segment_owner(segment))
        owner = OwnerRecord.decode(record.value) if record is not None else None
        return self.of_broker(owner.url) if owner is not None and owner.broker != self._broker.id else None


def fields_of(name: str, url: str) -> dict[str, str]:
    """The fields of a command with this URL; with TLS clients look at another one."""
    return {name: url, f"{name}_tls": url} if url.startswith("pulsar+ssl:") else {name: url}
