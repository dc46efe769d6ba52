"""Group commit: independent applies travel to etcd as one `Txn`, and a lost reply is resolved, never guessed.

    Txn  if    version(/batch/<process>/<slot>) == n
         then  put /batch/<process>/<slot> = {"batch": id}
               Txn { checks of apply 1, then its writes, else reads of what it checked }
               Txn { checks of apply 2, ...                                            }
         else  get /batch/<process>/<slot>

**A large group travels flat**, be it of many members or of a few large ones: the compares and writes of all its members
in one list, without nested transactions and reads, which cost the server and this process a third of the work. The sum
of its members bounds it, so several large ones fill several slots: one is encoded while another is applied. It takes
effect as a whole, or not at all if one check does not hold; that is definite, so its members are sent again, nested,
where each stands for itself. So are the next `NESTED_AFTER_REFUSAL` groups: where checks fail often, hardly any request
is sent twice.

**An apply that travels alone** is flat too, with a read of each record that it checks for the case that a check does
not hold: the answer then tells which one, and nothing is sent again. A nested transaction would cost the server more.

A store has a few *slots*; each carries one request at a time, under a marker of its own. Nothing waits for company: as
soon as a slot is free everything that waits and may travel together leaves (`joining` has the rule), so a lone apply
leaves at once, and under load the groups grow by themselves.

**A lost reply.** After `UNAVAILABLE`, a timeout or any other code that is not a refusal, the request may have been
applied, may be applied later, or never. Reading the marker would not tell: the request may still sit in the server. So
a *fence* is sent, with the very compare of the request:

    Txn  if    version(marker) == n   then  put marker = {"fence": id}   else  get marker

Whichever of the two takes effect first makes the version n + 1, and the other's compare fails forever. Nothing else
writes this marker, and the slot carries nothing until one fence has been answered (all fences for one request are
equal, so any of them may be). Then the marker's value says which it was:

    fence    the request is dead. Its members go back to the head of the queue and are sent again.
    batch    it was applied, at the marker's modification revision R. The compares of each member saw the state at
             R - 1, so its checks are evaluated on reads at R - 1: that is exactly what etcd did.

Only if that revision has been compacted away meanwhile, or the deadline of a member passes before the server answers,
is its outcome unknown. The slot continues to fence after that, so that a request whose callers have gone does not land
at some later time; and its members' keys stay reserved until it is settled, so that what touches them waits.

**Nothing is sent into the dark.** While the channel is not connected, applies wait in the queue. Their deadline then
ends in `StoreUnavailable`, which is definite: they were never sent.

**A refusal** (too large, too many operations, no permission) is definite too, but names no culprit: the group is split
in halves, down to the one apply that is refused alone.

**A full store** answers NOSPACE, also to the request that crossed the quota and *was* applied, so the marker is read
before that is believed. A fence is a put and is refused while the alarm lasts: a request lost then stays unknown.

The marker is put at the top level of the request for one more reason: etcd 3.4 counts nested puts as no growth at all,
and without a plain put would fill its disk past the quota.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import grpc.aio

from metastore.backends import etcd_encoding as encoding
from metastore.backends.etcd_connection import (
    EtcdConnection,
    error_text,
    is_compacted,
    is_denied,
    is_full,
    is_overload,
    is_refusal,
)
from metastore.backends.etcd_stubs import (
    DeleteRangeRequest,
    KeyValue,
    RequestOp,
    ResponseOp,
    TxnRequest,
    TxnResponse,
)
from metastore.backends.etcd_wire import MARKERS, Encoded, Wire, first_failure
from metastore.backends.joining import Footprint, RequestLimits, take_group
from metastore.backends.pending import PendingApplies, PendingApply
from metastore.background import Backoff, in_background
from metastore.errors import (
    InvalidBatch,
    MetastoreError,
    OutcomeUnknown,
    StoreUnavailable,
)
from metastore.types import Applied, Revision

# A smaller group gains nothing from being flat.
FLAT_FROM = 16
FLAT_FROM_COST = 64
NESTED_AFTER_REFUSAL = 16


@dataclass(slots=True, eq=False, kw_only=True)
class EtcdApply(PendingApply):
    encoded: Encoded


@dataclass(slots=True, eq=False)
class _Slot:
    """A marker and the request under it. `version` is the marker's, as far as it is known. `landed` has the
    calls that answer the members whose outcome is known."""

    marker: bytes
    version: int = 0
    members: list[EtcdApply] = field(default_factory=list)
    footprint: Footprint = field(default_factory=Footprint)
    carrier: asyncio.Task[None] | None = None
    flat: bool = False
    landed: list[Callable[[], None]] = field(default_factory=list)
    ever_lost: bool = False

    def request(self, value: bytes, *more: bytes) -> TxnRequest:
        """Put `value` if the marker has the expected version, else read it; with `more` fields (see
        `etcd_encoding`)."""
        compare = encoding.is_version(self.marker, self.version)
        fields = compare, encoding.put(self.marker, value), encoding.else_read(self.marker)
        return TxnRequest.FromString(b"".join(fields + more))


class EtcdGroupCommit(PendingApplies[EtcdApply]):
    """The only way in which applies of a store reach etcd.

    `on_group` is called with the size of every group sent, and `on_lost` when the reply to one was lost.
    """

    def __init__(
        self,
        connection: EtcdConnection,
        wire: Wire,
        process: str,
        *,
        pipeline: int,
        limits: RequestLimits,
        deadline_s: float,
        on_group: Callable[[int], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        assert pipeline >= 1
        super().__init__(f"etcd at {connection.endpoints}", deadline_s)
        self._connection = connection
        self._wire = wire
        self.limits = limits
        # An answer later than this is fenced off; what is left of the deadline is for the fence and for sending again.
        self._request_timeout_s = deadline_s * 0.4
        self._on_group = on_group
        self._on_lost = on_lost
        self._slots = [_Slot(wire.key(f"{MARKERS}{process}/{number}")) for number in range(pipeline)]
        self._ids = itertools.count(1)
        self._nested_groups = 0
        self._pump_scheduled = False
        self._reconnecting: asyncio.Task[None] | None = None

    def submit(self, encoded: Encoded, footprint: Footprint) -> asyncio.Future[Applied]:
        """`MetadataStore.apply`: the apply is queued when this returns, and the returned future has the result."""
        member = EtcdApply(
            encoded=encoded,
            cost=encoded.cost,
            size_bytes=encoded.size_bytes,
            footprint=footprint,
            deadline=self._deadline(),
            answer=self._loop.create_future(),
        )
        self._enqueue(member)
        self._schedule_pump()
        return member.answer

    async def close(self) -> None:
        """Wait until every apply has its answer (each has a deadline), then stop."""
        await self._all_answered()
        tasks = [slot.carrier for slot in self._slots if slot.carrier] + [self._reconnecting]
        for task in filter(None, tasks):
            task.cancel()
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)
        await self._remove_markers()

    # -- sending ------------------------------------------------------------------------------------------------

    def _sent(self) -> Iterator[EtcdApply]:
        return (member for slot in self._slots for member in slot.members)

    def _unavailable(self, what: str) -> StoreUnavailable:
        return self._connection.unavailable(what)

    def _schedule_pump(self) -> None:
        """Send in the next round of the event loop, so that applies submitted in this round are sent together."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Fill every free slot with applies that may be sent now."""
        self._pump_scheduled = False
        for slot in self._slots:
            if not self._queue:
                return
            if slot.carrier is not None:
                continue
            if not self._connection.ready:
                self._reconnect()
                return
            in_flight = [other.footprint for other in self._slots if other.carrier]
            slot.flat = self._nested_groups == 0 and self._much_waits()
            members, slot.footprint = take_group(self._queue, in_flight, self.limits, flat=slot.flat)
            slot.members = [member for member in members if not member.answer.done()]
            if slot.members:
                slot.flat = slot.flat or len(slot.members) == 1
                self._nested_groups = max(0, self._nested_groups - 1)
                slot.carrier = in_background(self._carry(slot), "etcd group commit", self._loop)

    def _much_waits(self) -> bool:
        return len(self._queue) >= FLAT_FROM or sum(member.cost for member in self._queue) >= FLAT_FROM_COST

    def _reconnect(self) -> None:
        if self._reconnecting is None:
            self._reconnecting = self._loop.create_task(self._pump_when_ready(), name="etcd reconnect")

    async def _pump_when_ready(self) -> None:
        try:
            await self._connection.wait_ready()
        finally:
            self._reconnecting = None
        self._schedule_pump()

    # -- one request --------------------------------------------------------------------------------------------

    async def _carry(self, slot: _Slot) -> None:
        """Carry the members of `slot` to their answers. The slot stays taken until its marker is settled.

        What waits leaves before those who landed hear of it: to answer them, and to take what they want next, lasts as
        long as a request.
        """
        again: Sequence[EtcdApply] = ()
        try:
            again = await self._commit(slot, slot.members)
        finally:
            members, landed = slot.members, slot.landed
            self._queue.extendleft(member for member in reversed(again) if not member.answer.done())
            slot.members, slot.landed, slot.carrier = [], [], None
            if self._queue:
                try:
                    self._pump()
                finally:
                    self._loop.call_soon(self._answer, members, landed, again)
            else:
                self._answer(members, landed, again)

    def _answer(
        self, members: Sequence[EtcdApply], landed: Sequence[Callable[[], None]], again: Sequence[EtcdApply]
    ) -> None:
        """Every member gets an answer, even if the reply cannot be read, because nothing else would end its waiting."""
        try:
            for deliver in landed:
                deliver()
        finally:
            for member in members:
                if not member.answer.done() and member not in again:
                    member.fail(OutcomeUnknown("the request was sent, and no answer to it could be read"))

    async def _commit(self, slot: _Slot, members: Sequence[EtcdApply]) -> Sequence[EtcdApply]:
        """Send `members` as one request. Returns those that were not applied and are to be sent again."""
        name = b'{"batch":%d}' % next(self._ids)
        alone = slot.flat and len(members) == 1
        if alone:
            bodies = [self._wire.with_reads(members[0].encoded)]
        else:
            bodies = [member.encoded.fields if slot.flat else self._wire.nested(member.encoded) for member in members]
        request = slot.request(name, *bodies)
        if self._on_group:
            self._on_group(len(members))
        try:
            answer = await self._connection.call(self._connection.kv.Txn, request, self._request_timeout_s)
        except grpc.aio.AioRpcError as error:
            if is_full(error):
                return await self._full(slot, members, name)
            if is_refusal(error):
                return await self._refused(slot, members, error)
            return await self._fence(slot, members, name)
        if answer.succeeded:
            slot.version += 1
            slot.landed.append(partial(self._deliver, slot.flat, answer, members))
            return ()
        found = answer.responses[0].response_range.kvs
        if slot.flat and slot.version == (found[0].version if found else 0):
            if alone:
                slot.landed.append(partial(self._refuse, members[0], answer.responses[1:], answer.header.revision))
                return ()
            self._nested_groups = NESTED_AFTER_REFUSAL
            return members
        # Our marker was written: by a repeated delivery of this request, or by someone who must not write it.
        return await self._settle(slot, members, found, name, fence=None)

    def _deliver(self, flat: bool, answer: TxnResponse, members: Sequence[EtcdApply]) -> None:
        revision = answer.header.revision
        applied = Applied(revision)
        if flat:
            for member in members:
                member.succeed(applied)
            return
        for member, response in zip(members, answer.responses[1:], strict=True):
            outcome = response.response_txn
            if outcome.succeeded:
                member.succeed(applied)
            elif not member.answer.done():
                # What it checked is as it was before the request; a member behind it may have written it since.
                self._refuse(member, outcome.responses, revision - 1)

    def _refuse(self, member: EtcdApply, read: Iterable[ResponseOp], revision: Revision) -> None:
        """A check of the member did not hold: tell which one, by what was `read` of each at `revision`."""
        failure = first_failure(self._wire.conditions(member.encoded.checks), self._wire.found(read), revision)
        assert failure is not None, "a compare failed, but every check holds on what was read with it"
        member.fail(failure)

    async def _refused(
        self, slot: _Slot, members: Sequence[EtcdApply], error: grpc.aio.AioRpcError
    ) -> Sequence[EtcdApply]:
        """The request had no effect. Find the culprit by halves, in order; members after a part that is sent again are
        sent after it."""
        if is_overload(error):
            await Backoff(first_s=0.1).pause()
            return members
        if len(members) == 1:
            members[0].fail(self._explain(error))
            return ()
        middle = len(members) // 2
        again = await self._commit(slot, members[:middle])
        if again:
            return [*again, *members[middle:]]
        return await self._commit(slot, members[middle:])

    async def _full(self, slot: _Slot, members: Sequence[EtcdApply], name: bytes) -> Sequence[EtcdApply]:
        """NOSPACE. The request that crosses the quota is answered so although it *was* applied; only the next ones
        are refused. It has been answered, so nothing is on its way, and the marker alone tells which it was."""
        request = TxnRequest.FromString(encoding.then_read(slot.marker))
        backoff = Backoff()
        while True:
            try:
                answer = await self._connection.call(self._connection.kv.Txn, request, self._request_timeout_s)
                break
            except grpc.aio.AioRpcError:
                await backoff.pause()
        found = answer.responses[0].response_range.kvs
        if found and found[0].value == name:
            return await self._settle(slot, members, found, name, fence=None)
        for member in members:
            member.fail(self._connection.full())
        return ()

    def _explain(self, error: grpc.aio.AioRpcError) -> MetastoreError:
        if is_denied(error):
            return self._connection.denied(error)
        return InvalidBatch(f"etcd refuses the batch: {error.details()}")

    # -- lost replies -------------------------------------------------------------------------------------------

    async def _fence(self, slot: _Slot, members: Sequence[EtcdApply], name: bytes) -> Sequence[EtcdApply]:
        """Make sure that the request can no longer change its outcome, and learn it. See the module docstring."""
        slot.ever_lost = True
        if self._on_lost:
            self._on_lost()
        fence = b'{"fence":%d}' % next(self._ids)
        request = slot.request(fence)
        backoff = Backoff()
        while True:
            await self._connection.wait_ready()
            try:
                answer = await self._connection.call(self._connection.kv.Txn, request, self._request_timeout_s / 2)
            except grpc.aio.AioRpcError:
                await backoff.pause()
                continue
            if answer.succeeded:
                slot.version += 1
                return members
            return await self._settle(slot, members, answer.responses[0].response_range.kvs, name, fence)

    async def _settle(
        self, slot: _Slot, members: Sequence[EtcdApply], found: Sequence[KeyValue], name: bytes, fence: bytes | None
    ) -> Sequence[EtcdApply]:
        """The compare on the marker has failed: its value tells the outcome of the request called `name`."""
        marker = found[0] if found else None
        expected = slot.version + 1
        slot.version = marker.version if marker else 0
        if marker and marker.value == name and slot.flat:
            for member in members:
                member.succeed(Applied(marker.mod_revision))
            return ()
        if marker and marker.value == name:
            await asyncio.gather(*(self._judge(member, marker.mod_revision) for member in members))
            return ()
        if fence is None or (marker and marker.value == fence and marker.version == expected):
            return members
        for member in members:
            member.fail(OutcomeUnknown(f"the marker {slot.marker.decode()} was changed by another client"))
        return ()

    async def _judge(self, member: EtcdApply, revision: Revision) -> None:
        """The member was part of a request that was applied at `revision`: did its checks hold just before that?"""
        conditions = self._wire.conditions(member.encoded.checks)
        if not conditions:
            member.succeed(Applied(revision))
        request = TxnRequest()
        for condition in conditions:
            condition.add_read(request.success, revision - 1)
        backoff = Backoff()
        while not member.answer.done():
            try:
                answer = await self._connection.call(self._connection.kv.Txn, request, self._request_timeout_s)
            except grpc.aio.AioRpcError as error:
                if is_compacted(error):
                    member.fail(OutcomeUnknown(f"the reply was lost and its revision is gone: {error_text(error)}"))
                await backoff.pause()
                continue
            if failure := first_failure(conditions, self._wire.found(answer.responses), revision - 1):
                member.fail(failure)
            else:
                member.succeed(Applied(revision))

    async def _remove_markers(self) -> None:
        """Leave nothing behind. Not for a slot that has ever lost a reply: a request that compares version 0 and is
        still on its way would find the version it waits for. Best effort: a marker left behind is a few bytes."""
        operations = [
            RequestOp(request_delete_range=DeleteRangeRequest(key=slot.marker))
            for slot in self._slots
            if slot.version and not slot.ever_lost
        ]
        if operations and self._connection.ready:
            try:
                await self._connection.call(
                    self._connection.kv.Txn, TxnRequest(success=operations), self._request_timeout_s
                )
            except grpc.aio.AioRpcError:
                return
