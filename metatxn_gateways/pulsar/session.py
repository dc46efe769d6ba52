"""What a connection offers to the code that answers its commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from coordinator.transactions import Transactions
from metatxn.service.quotas.quotas import Charge, Quotas
from metatxn.service.security.authentication import Authenticator
from metatxn.service.security.principal import Principal
from metatxn.wire.access import Right
from metatxn.wire.ids import TxnId
from metatxn_gateways.listener import FrameConnection, MalformedRequest, NotAuthenticated
from metatxn_gateways.pulsar.brokers import PulsarBrokers
from metatxn_gateways.pulsar.codes import REFUSALS, PulsarCode, PulsarError, explained, pulsar_code
from metatxn_gateways.pulsar.commands import command
from metatxn_gateways.pulsar.layouts import SegmentGraphs
from metatxn_gateways.pulsar.metrics import PulsarMetrics
from metatxn_gateways.pulsar.ordered import OrderedConsumers
from metatxn_gateways.pulsar.subscribing import Subscribing
from metatxn_gateways.pulsar.topic_schemas import TopicSchemas
from participants.api.rights import check_transaction
from participants.broker.broker import Broker

log = structlog.get_logger()
Refusal = Callable[[PulsarCode, str], bytes]
"""The answer that says why a request is refused."""
MAX_REQUESTS = 1_000
MAX_REQUEST_BYTES = 1 << 20
"""If more requests of a connection, or bytes of them, are in progress, no more are received."""
DELIVERIES_AT_ONCE = 4
"""The most consumers of a connection that read at the same time: each sends up to a page of entries."""
MAX_KEPT_BYTES = 4 << 20
"""The most bytes that the readers of a connection keep until they are permitted; others are read again."""
_UNTAKEN = "answers"
"""What holds back a peer that does not take what it is sent."""


@dataclass(frozen=True, slots=True)
class Context:
    """What all connections of a listener have in common."""

    broker: Broker
    transactions: Transactions
    layouts: SegmentGraphs
    schemas: TopicSchemas
    subscribing: Subscribing
    ordered: OrderedConsumers
    authenticator: Authenticator | None
    brokers: PulsarBrokers
    quotas: Quotas
    metrics: PulsarMetrics


class BegunCommand(NamedTuple):
    """A command that is being begun: when it came, in seconds of the event loop, and its bytes."""

    name: str
    since_s: float
    size: int


class PulsarSession:
    """The session of a connection. Used only from the event loop of its process."""

    def __init__(self, context: Context, link: FrameConnection, look: Callable[[], Principal]) -> None:
        self.context = context
        self.link = link
        self._look = look
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests = 0
        self._request_bytes = 0
        self._pushes: dict[object, Callable[[], bytes | None]] = {}
        """What is to be sent unasked once the peer takes it, by whose it is."""
        self.delivering = asyncio.Semaphore(DELIVERIES_AT_ONCE)
        self.schemas = asyncio.Lock()
        """The lock of the request that has schemas in memory: they may be large."""
        self.kept_bytes = 0
        """What the readers of this connection keep, see `MAX_KEPT_BYTES`."""
        link.on_writable = self._writable
        self.began = BegunCommand("", 0.0, 0)
        """The command that is being begun."""
        self._holding: set[str] = set()

    @property
    def principal(self) -> Principal:
        """Who is at the other end, by the token of this moment: what is done next is decided by it, whenever it was
        asked for. Raises `NotAuthenticated`."""
        return self._look()

    def require(self, right: Right, topic: str) -> None:
        """Raises AUTHORIZATION, whether there is such a topic or not."""
        if not self.principal.may(right, topic):
            raise PulsarError(PulsarCode.AUTHORIZATION, f"the right {right} on topic {topic} is missing")

    def require_sight(self, topic: str) -> None:
        """Raises AUTHORIZATION unless the principal has any right on the topic."""
        if not self.principal.may_see(topic):
            raise PulsarError(PulsarCode.AUTHORIZATION, f"any right on topic {topic} is missing")

    def may_be_told(self, right: Right | None, topic: str) -> bool:
        """Whether something may be sent unasked that needs this right, or any. Ends the connection if its token has
        ended."""
        try:
            principal = self.principal
        except NotAuthenticated as error:
            self.link.close_because(error)
            return False
        return principal.may_see(topic) if right is None else principal.may(right, topic)

    async def check_transaction(self, txn_id: TxnId | None) -> None:
        """Raises NOT_ALLOWED if another principal has begun it, and TXN_NOT_FOUND."""
        await check_transaction(self.context.broker, txn_id, self.principal)

    def hold(self, why: str, held: bool) -> None:
        """Receive nothing more as long as anything holds that back."""
        before = bool(self._holding)
        (self._holding.add if held else self._holding.discard)(why)
        if bool(self._holding) != before:
            self.link.receive_more(before)

    @property
    def holds_back(self) -> bool:
        """Whether nothing more is received at this moment, also no sign of life, although the peer takes what it is
        sent."""
        return bool(self._holding - {_UNTAKEN})

    def _writable(self, writable: bool) -> None:
        self.hold(_UNTAKEN, not writable)
        self._push_on()

    async def may_read(self) -> Charge | None:
        """Wait until the principal may read more, and charge it with what it gets."""
        quotas = self.context.quotas
        if not quotas.active:
            return None
        return await quotas.begin_later(self.principal.name, ["bytes_out_per_second"], 0)

    def send(self, answer: bytes) -> None:
        self.link.send([answer])

    def push(self, whose: object, make: Callable[[], bytes | None]) -> None:
        """Send what `make` returns, if anything, as soon as the peer takes it. Until then a later one takes its
        place."""
        self._pushes[whose] = make
        self._push_on()

    def push_nothing(self, whose: object) -> None:
        self._pushes.pop(whose, None)

    def _push_on(self) -> None:
        while self._pushes and self.link.writable:
            if (made := self._pushes.pop(next(iter(self._pushes)))()) is not None:
                self.send(made)

    def answer(
        self,
        answering: Coroutine[Any, Any, bytes],
        refused: Refusal,
        pulsar_code: Callable[[Exception], PulsarCode] = pulsar_code,
        *,
        in_its_turn: bool = True,
    ) -> None:
        """Send what a call returns, or why it is refused. It counts as in progress until then, unless it may wait for
        long, and has a bound of its own."""
        began = self.began

        async def answered() -> None:
            try:
                found = await answering
            except REFUSALS as error:
                found = refused(pulsar_code(error), explained(error))
            self.answered(began)
            self.send(found)

        self.begin(answered(), count=int(in_its_turn))

    def answered(self, began: BegunCommand) -> None:
        self.context.metrics.answered(began.name, asyncio.get_running_loop().time() - began.since_s)

    def begin(self, work: Coroutine[Any, Any, None], count: int = 1) -> None:
        """Run the work of the command that is being begun. It counts as in progress until it is over, with its bytes in
        any case."""
        size = self.began.size
        self._in_progress(count, size)
        self.spawn(work).add_done_callback(lambda _: self._in_progress(-count, -size))

    def _in_progress(self, more: int, bytes_more: int) -> None:
        self._requests += more
        self._request_bytes += bytes_more
        self.hold("requests", self._requests >= MAX_REQUESTS or self._request_bytes >= MAX_REQUEST_BYTES)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` as long as there is a connection. An unexpected error ends it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """End the connection because of an unexpected error, or of a token that has ended meanwhile."""
        if isinstance(error, MalformedRequest):
            self.link.close_because(error)
            return
        log.error("unhandled error", peer=self.link.peer, exc_info=error)
        self.link.abort()

    def end(self) -> None:
        for task in list(self._tasks):
            task.cancel()


def refused(request: Any, code: PulsarCode, message: str) -> bytes:
    """The answer to most requests that are refused."""
    return command("error", request_id=request.request_id, error=int(code), message=message)
