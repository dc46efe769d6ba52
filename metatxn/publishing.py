"""Entries that are due at the same time travel together.

    publish ──▶ the group of its transaction and broker ──▶ one request ──▶ the outcome of each entry

Within one turn of the event loop, the small entries of one transaction for one broker form a group, which is one
request (`metatxn.wire.entry_groups`). Only entries of one transaction do: nothing is visible before all of them are
durable, so none can be late because of another one.

A group is sent once; only when the service has too much to do, and nothing of it has happened, it is sent again after
the pause that the service asks for. What is not appended by it is sent again by itself, exactly as if there had been no
group: with redirects, retries, and their errors. The sequence of an entry tells a broker what it has already appended.
So a group that was lost on its way, or half carried out, or sent to a broker that has just lost a segment, costs time
and nothing else, and an entry whose group had no answer has an unknown outcome until a request of its own tells it. If
the group carried the commit of its transaction, that takes more (`metatxn.carried`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Protocol

from metatxn.answers import parsed
from metatxn.carried import NOT_TOLD, CarriedCommit, EntryName
from metatxn.cluster import Directory
from metatxn.http import Call, Earlier, Http, path_of
from metatxn.json_messages import entry_in_json
from metatxn.topics import LayoutCache, OwnerOf
from metatxn.transport.api import Answer
from metatxn.wire.broker import PAYLOAD_MEDIA_TYPES, PublishAnswer, publish_params
from metatxn.wire.entry_groups import MEDIA_TYPE, PublishGroupAnswer, pack_entries
from metatxn.wire.errors import (
    ExpiredTransaction,
    MetatxnError,
    NotFound,
    OutcomeUnknown,
    PayloadTooLarge,
    RateLimited,
    SchemaMismatch,
    SegmentSealed,
    TransactionNotFound,
    UpgradePending,
)
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.ids import TxnId
from metatxn.wire.problems import from_problem

GATHERING_MS = 0
"""How long the first entry of a group waits for others. With 0 it is the rest of a turn of the event loop."""
MAX_ENTRY_BYTES = 64 * 1024
"""Larger entries travel alone: a request costs little beside them."""
MAX_GROUP_BYTES = 1024 * 1024
MAX_GROUP_ENTRIES = 250
"""A group is sent at once when it has this much."""
LEAST_PAUSE_S = 1.0
"""The pause after a service that has too much to do, if it asks for none."""
ASK_AGAIN_S = 60.0
"""A broker that knew no groups is asked again after this time."""
SETTLED_BY = (SegmentSealed, NotFound, ExpiredTransaction, PayloadTooLarge, SchemaMismatch)
"""The errors that also settle earlier attempts without an answer. A sealed segment answers from the sequences that it
has seen before it refuses; a deleted one took its entries with it; an aborted transaction is never seen; and an entry
that is too large or does not fit was so at the first attempt."""


class Spawn(Protocol):
    def __call__(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it ends or the client is closed."""


@dataclass(slots=True, eq=False)
class _Member:
    segment: str
    entry: Entry
    outcome: asyncio.Future[str | Earlier]
    """The position, or what is known of the attempt that was not successful."""
    commit: CarriedCommit | None = None
    """The commit with which it departed."""


@dataclass(slots=True, eq=False)
class _Group:
    url: str
    txn_id: TxnId
    members: list[_Member] = field(default_factory=list)
    size: int = 0
    commit: CarriedCommit | None = None


class Publishing:
    """See the module docstring. For one client and one event loop."""

    def __init__(self, http: Http, topics: LayoutCache, directory: Directory, spawn: Spawn) -> None:
        self._http = http
        self._topics = topics
        self._directory = directory
        self._spawn = spawn
        self._forming: dict[tuple[str, TxnId], _Group] = {}
        self._commits: dict[TxnId, CarriedCommit] = {}
        """The commits that wait for the last entries of their transactions."""
        self._without_groups: dict[str, float] = {}
        """Brokers of earlier releases, which know no groups, and when they may have been upgraded."""

    async def publish(self, segment: str, entry: Entry) -> str:
        """See `Link.publish`."""
        if entry.before_commit and not await self._directory.knows_batches():  # release 0.2.0 refuses the parameter
            entry = replace(entry, before_commit=False)
        if entry.kind is PayloadKind.BATCH and not await self._directory.knows_batches():
            if entry.behind is not None:
                raise UpgradePending("services of release 0.2.0 know no sequenced producers")
            entry = entry_in_json(entry)
        url = self._topics.owner(segment)
        if url is None or not self._knows_groups(url) or not _travels_with_others(entry):
            return await self._alone(segment, entry)
        member = self._join(url, segment, entry)
        outcome = await member.outcome
        if isinstance(outcome, str):
            return outcome
        if member.commit is None:
            return await self._alone(segment, entry, outcome)
        again = replace(entry, before_commit=False)
        if not member.commit.may_have_landed:
            return await self._alone(segment, again, outcome)
        return await self._behind_commit(member.commit, segment, again, outcome)

    @contextmanager
    def carrying(self, txn_id: TxnId, commit: CarriedCommit) -> Iterator[None]:
        """Meanwhile `commit` departs with the last entries of its transaction, if they all go to one broker."""
        self._commits[txn_id] = commit
        try:
            yield
        finally:
            if self._commits.get(txn_id) is commit:
                del self._commits[txn_id]

    async def _behind_commit(self, commit: CarriedCommit, segment: str, entry: Entry, earlier: Earlier) -> str:
        """Send an entry again, whose transaction may be committed by the request that it came in."""
        try:
            return await self._alone(segment, entry, earlier)
        except MetatxnError as error:
            if await commit.has_landed(error):
                return NOT_TOLD
            raise

    async def _alone(self, segment: str, entry: Entry, earlier: Earlier | None = None) -> str:
        path = path_of("segments", segment, "entries")
        media_type = PAYLOAD_MEDIA_TYPES[entry.kind]
        call = Call("POST", path, publish_params(entry), bytes(entry.payload), media_type, settled_by=SETTLED_BY)
        owner = OwnerOf(self._topics, self._directory, segment)
        return parsed(PublishAnswer, await self._http.request(owner, call, earlier=earlier)).position

    def _knows_groups(self, url: str) -> bool:
        upgraded_s = self._without_groups.get(url)
        return upgraded_s is None or asyncio.get_running_loop().time() >= upgraded_s

    # -- groups ------------------------------------------------------------------------------------------------

    def _join(self, url: str, segment: str, entry: Entry) -> _Member:
        assert entry.txn_id is not None
        loop = asyncio.get_running_loop()
        group = self._forming.get((url, entry.txn_id))
        if group is None:
            group = self._forming[url, entry.txn_id] = _Group(url, entry.txn_id)
            loop.call_later(GATHERING_MS / 1000, self._depart, group)
        member = _Member(segment, entry, loop.create_future())
        group.members.append(member)
        group.size += entry.size
        if len(group.members) >= MAX_GROUP_ENTRIES or group.size >= MAX_GROUP_BYTES:
            self._depart(group)
        return member

    def _depart(self, group: _Group) -> None:
        if self._forming.get((group.url, group.txn_id)) is not group:
            return  # it was full before
        del self._forming[group.url, group.txn_id]
        group.members = [member for member in group.members if not member.outcome.done()]  # nobody waits for the others
        commit = self._commits.get(group.txn_id)
        if commit is not None and commit.departs_with({_name(member.entry) for member in group.members}):
            group.commit = commit
            for member in group.members:
                member.commit = commit
        if len(group.members) == 1 and group.commit is None:
            group.members[0].outcome.set_result(Earlier(self._http.timeout_s))
        elif group.members:
            self._spawn(self._send(group))

    async def _send(self, group: _Group) -> None:
        outcomes: list[str | Earlier] = [_given_up() for _ in group.members]
        try:
            outcomes = await self._outcomes(group)
        except Exception as error:  # noqa: BLE001  a bug, or an entry that nobody can send: the others can be sent alone
            failure = OutcomeUnknown(f"{type(error).__name__}: {error}")
            outcomes = [Earlier(self._http.timeout_s, failure) for _ in group.members]
        finally:  # also if the client is being closed
            for member, outcome in zip(group.members, outcomes, strict=True):
                if not member.outcome.done():
                    member.outcome.set_result(outcome)

    async def _outcomes(self, group: _Group) -> list[str | Earlier]:
        commit = group.commit
        entries = [(member.segment, member.entry) for member in group.members]
        body = pack_entries(entries, commit.request if commit is not None else None)
        call = Call("POST", path_of("txns", str(group.txn_id), "entries"), content=body, content_type=MEDIA_TYPE)
        owners = [OwnerOf(self._topics, self._directory, member.segment) for member in group.members]
        earlier = Earlier(self._http.timeout_s)
        try:
            answer = await self._when_there_is_time(_Broker(group.url, owners), call, earlier)
            told = parsed(PublishGroupAnswer, answer)
        except MetatxnError as error:
            if commit is not None:
                commit.failed(error)
            if error.members.get("status") == HTTPStatus.NOT_FOUND and not isinstance(error, TransactionNotFound):
                self._without_groups[group.url] = asyncio.get_running_loop().time() + ASK_AGAIN_S
            return [_left(earlier, error) for _ in group.members]
        if commit is not None:
            commit.answered(told.commit)
        outcomes = told.outcomes
        if len(outcomes) != len(group.members):
            wrong = OutcomeUnknown(f"{group.url} told {len(outcomes)} outcomes of {len(group.members)} entries")
            return [_left(earlier, wrong) for _ in group.members]
        return [
            each.position
            if isinstance(each, PublishAnswer)
            else _left(earlier, from_problem(each.model_dump(exclude_none=True)))
            for each in outcomes
        ]

    async def _when_there_is_time(self, broker: _Broker, call: Call, earlier: Earlier) -> Answer:
        """The answer to a group, after the pauses that the service asks for: single entries would be many requests to
        a service that wants fewer."""
        while True:
            try:
                return await self._http.request(broker, call, patient=False, earlier=earlier)
            except RateLimited as error:
                pause_s = error.retry_after_s or LEAST_PAUSE_S
                if not error.definite or pause_s >= earlier.left_s:
                    raise
                earlier.left_s -= pause_s
            await asyncio.sleep(pause_s)


class _Broker:
    """An endpoint: the broker at `url`, which owns several segments as far as is known."""

    def __init__(self, url: str, owners: Sequence[OwnerOf]) -> None:
        self._url = url
        self._owners = owners

    async def url(self) -> str:
        return self._url

    def failed(self, url: str) -> None:
        for owner in self._owners:
            owner.failed(url)

    def unavailable(self, url: str) -> bool:
        for owner in self._owners:
            owner.unavailable(url)
        return False

    def answered(self, url: str) -> None: ...


def _name(entry: Entry) -> EntryName:
    assert entry.producer is not None and entry.sequence is not None, "only such entries travel with others"
    return entry.producer, entry.sequence


def _left(earlier: Earlier, error: MetatxnError) -> Earlier:
    return Earlier(earlier.left_s, None if error.definite else error)


def _given_up() -> Earlier:
    return Earlier(0, OutcomeUnknown("the client was closed while this was being sent"))


def _travels_with_others(entry: Entry) -> bool:
    return (
        entry.txn_id is not None
        and entry.producer is not None
        and entry.sequence is not None
        and entry.behind is None
        and entry.epoch is None
        and entry.size <= MAX_ENTRY_BYTES
    )
