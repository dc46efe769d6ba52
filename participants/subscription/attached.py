"""The consumers of one subscription on one segment that are connected to the owner of the segment, and not to the home.

    home's consumers       sessions of the home, for all segments of the topic         numbers from 1 on
    attached consumers     a connection to the owner of this segment, for this alone    numbers from `FIRST_ATTACHED` on

The owner attaches a consumer, and detaches it when its connection is gone; so nothing else has to say who is present,
and no home can take from an attached consumer what it holds. Where one consumer at a time gets the messages of a
segment, it is the attached one, and the home gets none (DESIGN §5.10). It gets nothing either as long as transactions
that were open when it was attached have acknowledged something: what one of them returns has to come first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count

from metatxn.wire import errors
from metatxn.wire.ids import TxnId
from participants.subscription.definitions import Definition
from participants.subscription.deliveries import Deliveries
from participants.subscription.dispatch import Dispatch
from participants.subscription.pending_acks import PendingAckStore
from participants.subscription.taking import FIRST_ATTACHED


class AttachedConsumers:
    """The attached consumers. Used only from the event loop of its process."""

    def __init__(
        self,
        segment: str,
        definition: Definition,
        dispatch: Dispatch,
        deliveries: Deliveries,
        pending: PendingAckStore,
        assert_serving: Callable[[], None],
    ) -> None:
        self._segment = segment
        self._definition = definition
        self._dispatch = dispatch
        self._deliveries = deliveries
        self._assert_serving = assert_serving
        self._numbers = count(FIRST_ATTACHED)
        self._names: dict[int, str] = {}
        self._pending = pending
        self._before: set[TxnId] = set()
        """The open transactions that had acknowledged something before the one consumer was attached."""
        dispatch.admits = self.admits

    @property
    def held(self) -> Mapping[str, int]:
        """How many messages each consumer holds, by name."""
        found: Counter[str] = Counter()
        for number, name in self._names.items():
            found[name] += self._deliveries.number_held(number)
        return found

    @property
    def _one_at_a_time(self) -> bool:
        return self._definition.record.type == "failover"

    def admits(self, consumer: int) -> bool:
        """Whether messages may be delivered to this consumer."""
        if consumer >= FIRST_ATTACHED:
            self._before = {txn_id for txn_id in self._before if self._pending.get(txn_id) is not None}
            return consumer in self._names and not self._before
        return not (self._names and self._one_at_a_time)

    @property
    def admits_home(self) -> bool:
        """Whether messages may be delivered to consumers of the home."""
        return self.admits(0)

    async def attach(self, name: str) -> int:
        """Attach a consumer. Returns its number.

        Raises ALREADY_EXISTS if another one is attached where there can be one, INVALID_ARGUMENT for a subscription
        whose consumers can only be told apart by its home, and if the segment, or the subscription, is not
        served here any more.
        """
        kind = self._definition.record.type
        if kind not in ("shared", "failover"):
            raise errors.InvalidArgument(
                f"type: subscription {self._definition.name} is {kind}, so a consumer of one segment alone cannot "
                "use it",
                action="Use a shared or failover subscription.",
                field="type",
                subscription=self._definition.name,
            )
        async with self._dispatch.reading:  # what is being delivered meanwhile is held by then
            self._assert_serving()
            if self._one_at_a_time and self._names:
                (holder,) = self._names.values()
                raise errors.AlreadyExists(
                    f"consumer {holder} has segment {self._segment} of subscription {self._definition.name}",
                    action="Wait until that consumer is gone.",
                    consumer=holder,
                )
            number = next(self._numbers)
            self._names[number] = name
            if self._one_at_a_time:
                self._before = {each.txn_id for each in self._pending}
                for consumer in self._deliveries.consumers:
                    self._dispatch.consumer_gone(consumer)
        return number

    async def detach(self, number: int) -> None:
        """Detach a consumer that is gone; what it holds returns. Idempotent."""
        if self._names.pop(number, None) is None:
            return
        async with self._dispatch.reading:  # a delivery to it may be under way
            self._dispatch.consumer_gone(number)
