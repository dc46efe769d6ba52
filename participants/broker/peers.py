"""Segments that other brokers own, for requests that span a topic.

A topic's messages are published and browsed through any broker. It does what it can with its own segments and asks the
owners of the others, at their endpoints of one segment. Those never ask anybody else, so no request goes round in
circles: an owner that has just been relieved answers 307, and the caller is told to try again.

The caller's token goes with the request, so the owner decides by the same rights.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from metastore.types import Revision
from participants.api.models import (
    ARROW_MEDIA_TYPE,
    BYTES_MEDIA_TYPE,
    END_HEADER,
    MESSAGES_MEDIA_TYPE,
    NEXT_HEADER,
    Isolation,
)
from participants.broker.names import ReadPlace
from participants.ledger import frames
from participants.ledger.chain import RawFrame
from participants.ledger.frames import PayloadKind
from participants.ledger.position import Position
from participants.records import SegmentRecord
from participants.segment.dedup import Remembered
from participants.segment.segment import Entry, Page
from service.problems import ErrorCode, ServiceError

TIMEOUT_S = 30.0
_MEDIA_TYPES = {
    PayloadKind.BYTES: BYTES_MEDIA_TYPE,
    PayloadKind.ARROW: ARROW_MEDIA_TYPE,
    PayloadKind.MESSAGES: MESSAGES_MEDIA_TYPE,
}
_PROBLEM_MEMBERS = {"type", "status", "title", "detail", "code", "retriable", "definite", "action"}


@dataclass(slots=True)
class RemoteSegment:
    """What `Messages` needs of a segment, at the broker at `url`. `record` is as the store has it.

    Raises what the owner answers; STORE_UNAVAILABLE when it does not answer, or is not the owner any more;
    OUTCOME_UNKNOWN for a publish that it may have taken.
    """

    id: str
    record: SegmentRecord
    url: str
    http: httpx.AsyncClient
    authorization: str | None
    _end: Position | None = None

    @property
    def start(self) -> Position:
        return self.record.trimmed_up_to or Position(0, -1)

    def ended_at(self, position: Position) -> bool:
        """Nothing is behind `position`, and nothing will be."""
        return self.record.state == "sealed" and self._end is not None and position >= self._end

    def remembered(self, entry: Entry) -> Remembered | None:
        """Not known here. The children of a sealed segment remember what it had taken."""
        return None

    async def publish(self, entry: Entry) -> tuple[Position, bool]:
        params = {
            "txn_id": str(entry.txn_id) if entry.txn_id is not None else None,
            "writer": entry.writer,
            "producer": entry.producer,
            "sequence": entry.sequence,
            "count": entry.count,
        }
        answer = await self._request("POST", params, bytes(entry.payload), _MEDIA_TYPES[entry.kind])
        said = answer.json()
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
        place = ReadPlace.parse(answer.headers[NEXT_HEADER])
        end = answer.headers[END_HEADER] == "true"
        self._end = place.position if end else None
        return Page(_raw_frames(answer.content), place.position, end, place.revision)

    async def _request(
        self,
        method: str,
        params: dict[str, Any],
        content: bytes | None = None,
        media_type: str | None = None,
        wait_s: float = 0,
    ) -> httpx.Response:
        headers = {"Authorization": self.authorization} if self.authorization else {}
        if media_type is not None:
            headers["Content-Type"] = media_type
        try:
            answer = await self.http.request(
                method,
                f"{self.url}/v1/segments/{quote(self.id, safe='')}/entries",
                params={name: value for name, value in params.items() if value is not None},
                content=content,
                headers=headers,
                timeout=TIMEOUT_S + wait_s,
            )
        except httpx.ConnectError as error:
            raise self._unavailable(f"its owner {self.url} cannot be reached: {error}") from error
        except httpx.TransportError as error:
            if method == "GET":
                raise self._unavailable(f"its owner {self.url} does not answer: {error!r}") from error
            detail = f"{self.url} did not say whether segment {self.id} took the messages: {error!r}"
            raise ServiceError(ErrorCode.OUTCOME_UNKNOWN, detail, segment=self.id) from error
        if answer.status_code == HTTPStatus.TEMPORARY_REDIRECT:
            raise self._unavailable("it has just moved to another broker")
        if not answer.is_success:
            raise _problem_of(answer)
        return answer

    def _unavailable(self, reason: str) -> ServiceError:
        return ServiceError(
            ErrorCode.STORE_UNAVAILABLE,
            f"segment {self.id} is not available: {reason}",
            action="Try again in a moment; nothing happened.",
            segment=self.id,
        )


def _problem_of(answer: httpx.Response) -> ServiceError:
    try:
        problem = answer.json()
        members = {name: value for name, value in problem.items() if name not in _PROBLEM_MEMBERS}
        return ServiceError(ErrorCode(problem["code"]), problem["detail"], action=problem["action"], **members)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ServiceError(ErrorCode.OUTCOME_UNKNOWN, f"{answer.url} answered {answer.status_code}")


def _raw_frames(content: bytes) -> list[RawFrame]:
    view, at, found = memoryview(content), 0, []
    while at < len(view):
        data = view[at : frames.peek(view, at).end]
        found.append(RawFrame(frames.peek(data), data))
        at += len(data)
    return found
