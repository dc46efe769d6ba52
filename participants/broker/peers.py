"""Other brokers, and the segments that they own, for requests that span a topic.

A topic's messages are published, browsed and consumed through any broker. It does what it can with its own segments
and asks the owners of the others, at endpoints that are theirs alone. Those never ask anybody else, so no request goes
round in circles: an owner that has just been relieved answers 307, and the caller is told to try again.

The caller's token goes with the request, so the owner decides by the same rights.
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
from metatxn.wire.broker import END_HEADER, NEXT_HEADER, PAYLOAD_MEDIA_TYPES, Isolation, publish_params
from metatxn.wire.frames import Entry, peek_all
from metatxn.wire.names import ReadPlace
from metatxn.wire.position import Position
from metatxn.wire.problems import Problem, from_problem
from participants.segment.dedup import AppendedBefore, Remembered
from participants.segment.reading import Page

CONNECT_S = 5.0
TIMEOUT_S = 30.0
_PROBLEM_MEMBERS = {"type", "status", "title", "detail", "code", "retriable", "definite", "action"}


@dataclass(frozen=True, slots=True)
class Peer:
    """Another broker. `authorization` is what the caller of this one showed."""

    url: str
    transport: Transport
    authorization: str | None = None

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
        """A 2xx answer. `what` is asked for, as a person would say it.

        Raises what the other broker answers; STORE_UNAVAILABLE when it cannot be reached, or has not got it any more;
        OUTCOME_UNKNOWN when its answer is lost or makes no sense, unless the request only `reads`. That a request can
        be sent again does not make its outcome known: a caller who is told that nothing happened may do without it.
        """
        headers = Headers({"Authorization": self.authorization} if self.authorization else {})
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
            nonsense = f"its owner {self.url} answered {answer.status}, and not as a broker does"
            raise _problem_of(answer) or _unanswered(what, nonsense, reads)
        return answer


@dataclass(slots=True)
class RemoteSegment:
    """What `Messages` needs of a segment, at the broker `peer`. `record` is as the store has it.

    Raises what the owner answers; STORE_UNAVAILABLE when it does not answer, or is not the owner any more;
    OUTCOME_UNKNOWN for a publish that it may have taken.
    """

    id: str
    record: SegmentRecord
    peer: Peer

    @property
    def start(self) -> Position:
        return self.record.trimmed_up_to or Position(0, -1)

    def ended_at(self, position: Position) -> bool:
        """Nothing is behind `position`, and nothing will be. Where a page of the owner ends tells nothing: that may be
        the horizon of a transaction that is not decided yet."""
        ends = [ledger.last for ledger in self.record.ledgers]
        return self.record.state == "sealed" and all(end is not None and position >= end for end in ends)

    async def publish(self, entry: Entry, hashes: frozenset[int] | None = None) -> tuple[Position, bool]:
        """As `Segment.publish`. `hashes` are not sent: the owner finds those of a retry in its messages."""
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

    async def read(
        self, after: Position, max_bytes: int, isolation: Isolation, revision: Revision | None, wait_s: float = 0
    ) -> Page:
        """With `wait_s` the first visible entry is waited for."""
        params = {
            "after": str(after),
            "max_bytes": max_bytes,
            "isolation": isolation,
            "revision": revision,
            "wait_ms": int(wait_s * 1000) or None,
        }
        answer = await self._request("GET", params, wait_s=wait_s)
        place = ReadPlace.parse(answer.headers[NEXT_HEADER.lower()])
        end = answer.headers[END_HEADER.lower()] == "true"
        return Page(list(peek_all(answer.body)), place.position, end, place.revision)

    async def end(self, isolation: Isolation) -> Position:
        """The last entry that may be read now, or a bound."""
        answer = await self.peer.request("GET", self._path(), self._name, reads=True)
        return Position.parse(answer.json()["max_read_position" if isolation == "read_committed" else "last_position"])

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
    """A read has certainly changed nothing. Of everything else nobody knows."""
    if reads:
        return _unavailable(what, reason)
    return errors.OutcomeUnknown(
        f"nobody knows what became of a request to {what}: {reason}",
        action="Send it again: an acknowledgement, and what has a sequence, is done once. Or abort the transaction.",
    )


def _problem_of(answer: Answer) -> errors.MetatxnError | None:
    """None when it is not an answer of a broker."""
    try:
        problem = Problem.model_validate_json(answer.body)
    except ValueError:
        return None
    return from_problem(problem.model_dump())


def _appended_before(entry: Entry, wire: Any, *, complete: bool) -> AppendedBefore:
    return AppendedBefore(entry.sequence, [Remembered.parse(part) for part in wire], complete=complete)
