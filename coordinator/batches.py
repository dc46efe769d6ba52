"""Many begins, commits and aborts in one request, each of them answered as a single request would be.

Items that touch the same transaction, or the same transaction key, form a *lane* and are done one after another, in the
order of the list. The lanes run concurrently, and the records that commits and aborts need are presumed, or read for
all of them first.

An item is *plain* if it is alone in its lane, and can only fail by a check of its one write. Plain items are done
together, `TOGETHER` of them in one apply, which saves most of the work, in this process and in the store. If they are
too much for one apply, they are divided into halves. If a check of one item does not hold, the apply has no effect on
any of them, and each is done separately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from coordinator.answers import Members
from coordinator.capacity import refuse_large_properties
from coordinator.ends import Abort, Commit, End
from coordinator.transaction_keys import Begun
from coordinator.transactions import Failure, Transactions, answered, refuse_half_a_key, writer_set
from metastore.api import MetadataStore
from metastore.errors import InvalidBatch, MetastoreError
from metastore.txn.store import TransactionRecords
from metatxn.service.security.principal import ANYONE, Principal
from metatxn.wire import errors
from metatxn.wire.coordinator import BatchItem, BeginRequest
from metatxn.wire.errors import invalid_field
from metatxn.wire.ids import TxnId

Wanted = BeginRequest | End
Item = TypeVar("Item")
Known = Mapping[TxnId, TransactionRecords]


class Done(NamedTuple):
    """An item that succeeded, and whether it created a transaction (see `Begun`)."""

    txn: Members
    created: bool


ItemAnswer = Done | Failure

TOGETHER = 42
"""This many ends check 168 keys, and three such applies fill a request of 512 operations. An etcd with the default
`--max-txn-ops` accepts half of one."""
LANES_AT_ONCE = 256
"""The number of lanes of one batch that run concurrently: enough to fill the requests to a store, but not so many that
all others have to wait."""


async def run_batch(
    transactions: Transactions, items: Sequence[BatchItem], *, caller: Principal = ANYONE
) -> list[ItemAnswer]:
    """One answer for each item, in the order of the items.

    Raises INVALID_ARGUMENT, which names the field of a bad item, and the store's errors if it cannot be read. In both
    cases the request had no effect.
    """
    wanted = [_wanted(number, item, transactions.store) for number, item in enumerate(items)]
    ended = dict.fromkeys(item.txn_id for item in wanted if isinstance(item, End))
    known = await transactions.presume_or_read(ended, caller=caller)
    answers: dict[int, ItemAnswer] = {}
    begins: dict[int, BeginRequest] = {}
    ends: dict[int, tuple[End, TransactionRecords]] = {}
    lanes: list[list[int]] = []
    for lane in _lanes(wanted, known, caller):
        number, item = lane[0], wanted[lane[0]]
        if len(lane) > 1:
            lanes.append(lane)
        elif isinstance(item, End):
            if records := _plain_end(item, known, caller):
                ends[number] = item, records
            else:
                lanes.append(lane)
        elif _is_plain_begin(item, caller):
            begins[number] = item
        else:
            lanes.append(lane)

    async def together(
        call: Callable[[list[Item]], Awaitable[Sequence[Members | Begun | Failure]]],
        some: Mapping[int, Item],
        *,
        created: bool,
    ) -> None:
        try:
            for number, answer in zip(some, await call(list(some.values())), strict=True):
                answers[number] = Done(answer, created) if isinstance(answer, dict) else _item_answer(answer)
        except InvalidBatch:
            if len(some) == 1:
                await in_turn(list(some))
                return
            for half in _parts(some, (len(some) + 1) // 2):
                await together(call, half, created=created)
        except MetastoreError as error:
            answers.update(dict.fromkeys(some, error))

    async def in_turn(lane: Sequence[int]) -> None:
        for number in lane:
            # The records read before are out of date for all but the first item.
            item, still_known = wanted[number], known if number == lane[0] else {}
            answers[number] = _item_answer(await answered(_by_itself(transactions, item, still_known, caller)))

    end_together = partial(transactions.end_together, caller=caller)
    begin_together = partial(transactions.begin_together, caller=caller)
    await asyncio.gather(
        *(together(end_together, some, created=False) for some in _parts(ends)),
        *(together(begin_together, some, created=True) for some in _parts(begins)),
        _run(map(in_turn, lanes), min(len(lanes), LANES_AT_ONCE)),
    )
    return [answers[number] for number in range(len(items))]


def _wanted(number: int, item: BatchItem, store: MetadataStore) -> Wanted:
    try:
        match item.op:
            case "begin":
                refuse_half_a_key(item)
                refuse_large_properties(item, store)
                return item
            case "commit":
                writers = None if item.writers is None else writer_set(item.writers, "writers")
                return Commit(item.txn_id, writers)
            case "abort":
                return Abort(item.txn_id, item.reason, item.force)
    except errors.MetatxnError as error:
        field, _, detail = error.detail.partition(": ")
        raise invalid_field(f"items.{number}.{field}", detail, action=error.action) from error


def _lanes(wanted: Sequence[Wanted], known: Known, caller: Principal) -> Iterable[list[int]]:
    """The indexes of the items that touch each other."""
    lanes: dict[Hashable, list[int]] = {}
    for number, item in enumerate(wanted):
        lanes.setdefault(_touched(number, item, known, caller), []).append(number)
    return lanes.values()


def _touched(number: int, item: Wanted, known: Known, caller: Principal) -> Hashable:
    if isinstance(item, End):
        records = known.get(item.txn_id)
        if records is None or records.header.key is None:
            return item.txn_id
        return records.header.owner, records.header.key
    return number if item.transaction_key is None else (item.owner or caller.name, item.transaction_key)


def _is_plain_begin(request: BeginRequest, caller: Principal) -> bool:
    return request.transaction_key is None and (caller.name is None or request.owner in (None, caller.name))


def _plain_end(end: End, known: Known, caller: Principal) -> TransactionRecords | None:
    """The transaction that a plain item ends."""
    records = _presumed(end, known)
    if records is None or records.header.state.final or (isinstance(end, Abort) and end.force):
        return None
    return records if caller.owns(records.header.owner) else None


def _presumed(end: End, known: Known) -> TransactionRecords | None:
    """The presumed records, except under a key, where it matters whether the transaction is prepared: it is read in
    full."""
    records = known.get(end.txn_id)
    return records if records and records.header.key is None else None


async def _by_itself(transactions: Transactions, item: Wanted, known: Known, caller: Principal) -> Begun | Members:
    if isinstance(item, End):
        return await transactions.end(item, caller=caller, known=_presumed(item, known))
    return await transactions.begin(item, caller=caller)


def _item_answer(answer: Begun | Members | Failure) -> ItemAnswer:
    match answer:
        case Begun(txn, created):
            return Done(txn, created)
        case dict():
            return Done(answer, created=False)
    return answer


def _parts(items: Mapping[int, Item], size: int = TOGETHER) -> Iterator[dict[int, Item]]:
    rest = iter(items.items())
    while part := dict(islice(rest, size)):
        yield part


async def _run(jobs: Iterable[Coroutine[Any, Any, None]], at_once: int) -> None:
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            await job

    await asyncio.gather(*(work() for _ in range(at_once)))
