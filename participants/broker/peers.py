"""Other brokers, and the segments that they own, for requests that span a topic.

A topic's messages can be published, browsed and consumed through any broker. It handles its own segments itself and
asks the owners of the others, at endpoints that serve only their own segments. Those never ask another broker, so no
request can go round in circles: an owner that has just lost the segment answers 307, and the caller is told to try
again.

The caller's token is passed on, so the owner checks the same rights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

from metastore.txn.records.segments import SegmentRecord
from metastore.types import Revision
from metatxn.transport.api import Answer, Headers, NoAnswer, Request, Transport, Unsent
from metatxn.wire import errors
from metatxn.wire.broker import END_HEADER, NEXT_HEADER, PAYLOAD_MEDIA_TYPES, PEER_HEADER, Isolation, publish_params
from metatxn.wire.frames import Entry, peek_all
from metatxn.wire.names import ReadPlace
from metatxn.wire.position import Position
from metatxn.wire.problems import Problem, from_problem
from participants.segment.dedup import AppendedBefore, KeyHashes, Remembered, unknown_hashes
from participants.segment.reading import CutPage, Page, Run

CONNECT_S = 5.0
TIMEOUT_S = 30.0
_PROBLEM_MEMBERS = {"type", "status", "title", "detail", "code", "retriable", "definite", "action"}


@dataclass(frozen=True, slots=True)
class Peer:
    """Another broker. `authorization` is that of the caller, and `proof` shows that a broker asks for it."""

    url: str
    transport: Transport
    authorization: str | None = None
    proof: str | None = None

    async def request(
        self,
        method: str,
        path: str,
        what: str,
        *,
        reads: bool,
        params: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        media_type: str | None = None,
        wait_s: float = 0,
    ) -> Answer:
        """Return a 2xx answer. `what` names the requested object in error messages.

        Raises the error that the other broker answers; STORE_UNAVAILABLE if it cannot be reached, or no longer owns the
        object; and OUTCOME_UNKNOWN if its answer is lost or malformed, unless the request only `reads`. That a request
        can be repeated does not make its outcome known: a caller who is told that nothing happened may do without it.
        """
        headers = Headers({"Authorization": self.authorization} if self.authorization else {})
        if self.proof is not None:
            headers[PEER_HEADER.decode()] = self.proof
        if media_type is not None:
            headers["Content-Type"] = media_type
        query = urlencode({name: value for name, value in (params or {}).items() if value is not None})
        url = f"{self.url}{path}?{query}" if query else self.url + path
        end = asyncio.get_running_loop().time() + CONNECT_S + TIMEOUT_S + wait_s
        request = Request(method, url, headers, content, CONNECT_S, TIMEOUT_S + wait_s, end)
        try:
            answer = await self.transport.send(request)
        except Unsent as error:
            raise _unavailable(what, f"its owner {self.url} cannot be reached: {error}") from error
        except NoAnswer as error:
            raise _unanswered(what, f"its owner {self.url} does not answer: {error}", reads) from error
        if answer.status == HTTPStatus.TEMPORARY_REDIRECT:
            raise _unavailable(what, "it has just moved to another broker")
        if not answer.ok:
            nonsense = f"its owner {self.url} answered {answer.status}, but not like a broker"
            raise _problem_of(answer) or _unanswered(what, nonsense, reads)
        return answer


@dataclass(slots=True)
class RemoteSegment:
    """A segment at the broker `peer`, with what `Messages` needs of a segment. `record` is as it is in the store.

    Raises the error that the owner answers; STORE_UNAVAILABLE if it does not answer, or is no longer the owner; and
    OUTCOME_UNKNOWN for a publish that may have taken effect.
    """

    id: str
    record: SegmentRecord
    peer: Peer
    batches: bool
    """Whether every broker knows binary batches of messages."""

    @property
    def start(self) -> Position:
        return self.record.trimmed_up_to or Position(0, -1)

    def ended_at(self, position: Position) -> bool:
        """Whether nothing is after `position`, and nothing will be. The end of a page of the owner does not tell this,
        because it may be the horizon of an undecided transaction."""
        ends = [ledger.last for ledger in self.record.ledgers]
        return self.record.state == "sealed" and all(end is not None and position >= end for end in ends)

    async def publish(self, entry: Entry, hashes: KeyHashes = unknown_hashes) -> tuple[Position, bool]:
        """See `Segment.publish`. `hashes` are not sent, because the owner determines those of a retry from its
        messages."""
        media_type = PAYLOAD_MEDIA_TYPES[entry.kind]
        try:
            answer = await self._request("POST", publish_params(entry), bytes(entry.payload), media_type)
        except errors.MetatxnError as error:
            if "appended" not in error.members:
                raise
            raise _appended_before(entry, error.members["appended"], complete=False) from None
        said = answer.json()
        if "appended" in said:
            raise _appended_before(entry, said["appended"], complete=True)
        return Position.parse(said["position"]), said["duplicate"]

    async def learn_producer(self) -> None:
        """See `Publisher.learn_producer`. It may be repeated, like a read."""
        await self.peer.request("POST", self._path("/learn-producer"), self._name, reads=True)

    async def read(
        self, after: Position, max_bytes: int, isolation: Isolation, revision: Revision | None, wait_s: float = 0
    ) -> Page:
        """Read a page. With `wait_s`, wait for the first visible entry."""
        params = {
            "after": str(after),
            "max_bytes": max_bytes,
            "isolation": isolation,
            "revision": revision,
            "wait_ms": int(wait_s * 1000) or None,
            "batches": "true" if self.batches else None,
        }
        answer = await self._request("GET", params, wait_s=wait_s)
        place = ReadPlace.parse(answer.headers[NEXT_HEADER.lower()])
        end = answer.headers[END_HEADER.lower()] == "true"
        return Page(list(peek_all(memoryview(answer.body).toreadonly())), place.position, end, place.revision)

    async def end(self, isolation: Isolation) -> Position:
        """The position of the last entry that may be read now, or a bound."""
        answer = await self.peer.request("GET", self._path(), self._name, reads=True)
        return Position.parse(answer.json()["max_read_position" if isolation == "read_committed" else "last_position"])

    async def position_at(self, at_ms: int) -> Position:
        """See `SegmentReader.position_at`."""
        answer = await self.peer.request(
            "GET", self._path("/position"), self._name, reads=True, params={"at_ms": at_ms}
        )
        return Position.parse(answer.json()["position"])

    async def read_cut(self, after: Position, revision: Revision) -> CutPage:
        """See `SegmentReader.read_cut`."""
        params = {"revision": revision, "after": str(after)}
        said = (await self.peer.request("GET", self._path("/cut"), self._name, reads=True, params=params)).json()
        runs = [Run(Position.parse(first), Position.parse(last), decided) for first, last, decided in said["runs"]]
        return CutPage(runs, Position.parse(said["next"]), said["end"])

    async def _request(
        self,
        method: str,
        params: dict[str, Any],
        content: bytes | None = None,
        media_type: str | None = None,
        wait_s: float = 0,
    ) -> Answer:
        return await self.peer.request(
            method,
            self._path("/entries"),
            self._name,
            reads=method == "GET",
            params=params,
            content=content,
            media_type=media_type,
            wait_s=wait_s,
        )

    @property
    def _name(self) -> str:
        return f"segment {self.id}"

    def _path(self, more: str = "") -> str:
        return f"/v1/segments/{quote(self.id, safe='')}{more}"


def _unavailable(what: str, reason: str) -> errors.MetatxnError:
    return errors.StoreUnavailable(
        f"{what} is not available: {reason}",
        action="Try again in a moment; nothing happened.",
    )


def _unanswered(what: str, reason: str, reads: bool) -> errors.MetatxnError:
    """The error for a lost answer. A read has certainly changed nothing; the effect of any other request is unknown."""
    if reads:
        return _unavailable(what, reason)
    return errors.OutcomeUnknown(
        f"the outcome of a request to {what} is unknown: {reason}",
        action="Send it again (acknowledgements, and publishes with a sequence, take effect once), "
        "or abort the transaction.",
    )


def _problem_of(answer: Answer) -> errors.MetatxnError | None:
    """The error in an answer; None if it is not an answer of a broker."""
    try:
        problem = Problem.model_validate_json(answer.body)
    except ValueError:
        return None
    return from_problem(problem.model_dump())


def _appended_before(entry: Entry, wire: Any, *, complete: bool) -> AppendedBefore:
    return AppendedBefore(entry.sequence, [Remembered.parse(part) for part in wire], complete=complete)
