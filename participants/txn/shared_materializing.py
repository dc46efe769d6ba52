"""What is left to do after decisions, done together for all segments of a broker (DESIGN §5.5).

A request is the work of `materialize`: one transaction on one segment. Requests that wait at the same time share reads
and applies. Each keeps its own checks and its own outcome, in the apply that deletes its operations, so an apply of
many is nothing but their applies at one moment; if it is refused, each is repeated alone. Operations are found by
range reads that begin after the request, and so after its decision; one read is for transactions whose ids are close to
each other, as those of one client mostly are.

No one waits for this work, so rounds begin at least `REST_S` after one another, unless more requests wait than one
takes: a busy broker has fewer and larger ones. A request that finds the broker at rest is done at once.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from metastore.api import MetadataStore
from metastore.errors import CheckFailed, MetastoreError, StoreClosed
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.records.operations import Outcome
from metastore.types import AtVersion, Batch, Record
from metatxn.wire.ids import TxnId
from participants.txn import materializer

REST_S = 0.1
"""So in each second there are at most ten rounds. Their requests to the store are a part of what a small transaction
costs, and their syncs delay those that somebody waits for."""
REQUESTS_PER_ROUND = 1_000
OPS_PER_SEGMENT = 4
"""Operations of a transaction that one read may find for each of its segments here; with more, each segment reads its
own. Others of the transaction may be on other brokers, and each broker would read all of them."""
IDS_APART = 8
"""How far apart the ids of two transactions may be that share a read. It also finds operations of those in between,
which may have nothing to do here."""
DELETION_COST = 3
"""The operations of an apply for each deletion: a check, a record and an entry of an index."""


@dataclass(eq=False, slots=True)
class _Request:
    segment: str
    ownership: AtVersion
    txn_id: TxnId
    outcome: bytes | None
    done: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Whether the request was done with others. Otherwise it is to be done alone."""
    operations: Sequence[Record] = ()
    size: int = 0
    """The bytes of the request's part of an apply."""

    @property
    def prefix(self) -> str:
        return paths.write_ops_of_segment(self.txn_id, self.segment)

    @property
    def cost(self) -> int:
        return 1 + 2 * (self.outcome is not None) + DELETION_COST * len(self.operations)

    def add_to(self, batch: Batch) -> Batch:
        if self.outcome is not None:
            batch.create(paths.outcome(self.segment, self.txn_id), self.outcome)
        for record in self.operations:
            batch.remove(record)
        return batch

    def answer(self, done: bool) -> None:
        if not self.done.done():  # its segment may have been closed
            self.done.set_result(done)

    def fail(self, error: MetastoreError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class SharedMaterializing:
    """The shared work for the segments of one broker, on its event loop. One round is under way at a time."""

    def __init__(self, store: MetadataStore, rest_s: float = REST_S) -> None:
        self._store = store
        self._rest_s = rest_s
        self._waiting: deque[_Request] = deque()
        self._working: asyncio.Task[None] | None = None
        self._next_at = 0.0

    async def materialize(self, segment: str, ownership: AtVersion, txn_id: TxnId, outcome: Outcome | None) -> None:
        """See `materializer.materialize`."""
        request = _Request(segment, ownership, txn_id, outcome.encode() if outcome is not None else None)
        self._waiting.append(request)
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        if not await request.done:
            await materializer.materialize(self._store, segment, ownership, txn_id, outcome)

    async def close(self) -> None:
        """Close. Callers that still wait are told that the store is closed."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])

    async def _work(self) -> None:
        taken: list[_Request] = []
        try:
            while self._waiting:
                now = asyncio.get_running_loop().time
                if len(self._waiting) < REQUESTS_PER_ROUND:
                    await asyncio.sleep(max(0.0, self._next_at - now()))
                self._next_at = now() + self._rest_s
                count = min(len(self._waiting), REQUESTS_PER_ROUND)
                taken = [each for each in (self._waiting.popleft() for _ in range(count)) if not each.done.done()]
                await self._round(taken)
        finally:
            self._working = None
            for request in (*taken, *self._waiting):
                request.fail(StoreClosed("closed before the decision was made durable"))
            self._waiting.clear()

    async def _round(self, requests: Sequence[_Request]) -> None:
        if len(requests) == 1:
            requests[0].answer(False)
            return
        by_transaction: defaultdict[TxnId, list[_Request]] = defaultdict(list)
        for request in requests:
            by_transaction[request.txn_id].append(request)
        found = await asyncio.gather(*map(self._find, _close_to_each_other(by_transaction)))
        await asyncio.gather(*map(self._apply, self._portions(chain.from_iterable(found))))

    async def _find(self, transactions: Sequence[Sequence[_Request]]) -> list[_Request]:
        """Find the operations of the requests of these transactions. Returns those that may share an apply; the others
        have their answers."""
        requests = list(chain.from_iterable(transactions))
        first = min(request.prefix for request in requests)
        end = max(prefix_end(request.prefix) for request in requests)
        try:
            found = await self._store.range(first, end, limit=OPS_PER_SEGMENT * len(requests))
        except MetastoreError as error:
            for request in requests:
                request.fail(error)
            return []
        if found.more and len(transactions) > 1:
            alone = await asyncio.gather(*(self._find([each]) for each in transactions))
            return list(chain.from_iterable(alone))
        keys = [record.key for record in found.records]
        for request in requests:
            prefix = request.prefix
            request.operations = found.records[bisect_left(keys, prefix) : bisect_left(keys, prefix_end(prefix))]
            request.size = request.add_to(self._store.batch().check(request.ownership)).size_bytes
        return [request for request in requests if self._may_share(request, complete=not found.more)]

    def _may_share(self, request: _Request, *, complete: bool) -> bool:
        """Answers the request if it may not, or if nothing is left to do for it."""
        if not complete or request.cost > self._most_cost or request.size > self._most_bytes:
            request.answer(False)
            return False
        if not request.operations:
            request.answer(True)
            return False
        return True

    @property
    def _most_cost(self) -> int:
        """The operations to delete at once, as many as in `materialize`."""
        return DELETION_COST * materializer.OPS_PER_APPLY

    @property
    def _most_bytes(self) -> int:
        """Half of what an apply takes. A larger request needs several applies."""
        return self._store.max_batch_bytes // 2

    def _portions(self, requests: Iterable[_Request]) -> Iterator[list[_Request]]:
        portion: list[_Request] = []
        cost = size = 0
        for request in requests:
            if portion and (cost + request.cost > self._most_cost or size + request.size > self._most_bytes):
                yield portion
                portion, cost, size = [], 0, 0
            portion.append(request)
            cost += request.cost
            size += request.size
        if portion:
            yield portion

    async def _apply(self, portion: Sequence[_Request]) -> None:
        batch = self._store.batch().check(*dict.fromkeys(request.ownership for request in portion))
        for request in portion:
            request.add_to(batch)
        try:
            await self._store.apply(batch)
        except CheckFailed:
            for request in portion:
                request.answer(False)
        except MetastoreError as error:
            for request in portion:
                request.fail(error)
        else:
            for request in portion:
                request.answer(True)


def _close_to_each_other(by_transaction: Mapping[TxnId, list[_Request]]) -> Iterator[list[list[_Request]]]:
    """The requests of each transaction, in groups of transactions whose ids are close to each other."""
    group: list[list[_Request]] = []
    last = 0
    for txn_id in sorted(by_transaction):
        number = int(txn_id, 16)
        if group and number - last > IDS_APART:
            yield group
            group = []
        group.append(by_transaction[txn_id])
        last = number
    if group:
        yield group
