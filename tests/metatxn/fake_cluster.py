"""One coordinator and one broker behind `httpx.MockTransport`, and faults in front of them.

The faults are on the wire only: a request is dropped before it arrives, or its reply is lost, or it is answered with
a problem. What arrives is treated as the real services do, as far as the client can tell: transactions are decided
once, entries are deduplicated by (producer, sequence), sealed segments name their children.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import httpx
import pyarrow as pa

import metatxn
from metatxn.wire.batches import unpack_batch
from metatxn.wire.broker import ARROW_MEDIA_TYPE, HASH_RANGE_END, MESSAGES_MEDIA_TYPE, hash_of_key
from metatxn.wire.entry_groups import unpack_entries
from metatxn.wire.errors import BY_CODE, ErrorCode
from participants.messages.batches import check_batch
from tests.over_httpx import OverHttpx

COORDINATOR = "http://coordinator.test"
BROKER = "http://broker.test"
Outcome = httpx.Response | None
Fault = Callable[[httpx.Request], Outcome | Awaitable[Outcome]]
"""Answers instead of the service, raises instead of it, or returns None to let the request through; at once or when
it is awaited."""


def problem(
    code: ErrorCode, detail: str = "so it is", headers: dict[str, str] | None = None, **members: Any
) -> httpx.Response:
    kind = BY_CODE[code]
    body = {
        "type": "about:blank",
        "status": kind.status,
        "title": kind.title,
        "detail": detail,
        "code": code,
        "retriable": kind.retriable,
        "definite": kind.definite,
        "action": kind.action,
    }
    return httpx.Response(
        kind.status, json=body | members, headers={"Content-Type": "application/problem+json", **(headers or {})}
    )


@dataclass
class Segment:
    low: int
    high: int
    children: list[str] = field(default_factory=list)
    merging: bool = False
    """Sealed, and its child is yet to come."""
    ended: bool = False
    """Sealed for good."""
    entries: list[tuple[str | None, list[Any]]] = field(default_factory=list)
    seen: dict[tuple[str | None, str, str], None] = field(default_factory=dict)
    """Transaction, producer and sequence of entries, the latest behind."""


class FakeCluster:
    """`before` faults see a request first; `after` faults see it when the service has done its work. Each is used
    for one matching request: (a part of "VERB path", the fault)."""

    def __init__(self) -> None:
        self.before: list[tuple[str, Fault]] = []
        self.after: list[tuple[str, Fault]] = []
        self.requests: list[str] = []
        self.transactions: dict[str, dict[str, Any]] = {}
        self.remembered: dict[str, set[str]] = {}
        self.memory = 1000
        """This many sequences of a producer outside of transactions."""
        self.segments = {"s-0": Segment(0, HASH_RANGE_END)}
        self.version: int | None = 2
        """The cluster version; None: it is of release 0.2.0."""
        self.knows_groups = True
        self.carries_commits = True
        """Whether it commits what comes with the last entries."""
        self.knows_announcements = True
        self.announced: list[dict[str, Any]] = []
        """The requests that announced writes."""
        self.vouched: list[Any] = []
        """The messages whose sender vouched that nobody had committed their transaction."""
        self._lock = threading.RLock()

    @property
    def transport(self) -> OverHttpx:
        return OverHttpx(httpx.MockTransport(self._handle))

    def client(self, request_timeout_s: float = 5) -> metatxn.Client:
        return metatxn.connect(COORDINATOR, request_timeout_s=request_timeout_s, transport=self.transport)

    def split(self, segment_id: str) -> None:
        with self._lock:
            parent = self.segments[segment_id]
            middle = (parent.low + parent.high) // 2
            parent.children = [f"{segment_id}.a", f"{segment_id}.b"]
            self.segments[parent.children[0]] = Segment(parent.low, middle, seen=dict(parent.seen))
            self.segments[parent.children[1]] = Segment(middle + 1, parent.high, seen=dict(parent.seen))

    def begin_merge(self, segment_id: str) -> None:
        """One of the two is sealed already."""
        with self._lock:
            self.segments[segment_id].merging = True

    def end_merge(self, low_id: str, high_id: str) -> None:
        with self._lock:
            low, high = self.segments[low_id], self.segments[high_id]
            low.children = high.children = [f"{low_id}+{high_id}"]
            self.segments[low.children[0]] = Segment(low.low, high.high, seen=low.seen | high.seen)

    def visible(self) -> list[Any]:
        """The messages of committed transactions and of none, segment by segment, each in log order."""
        shown = []
        for segment in self.segments.values():
            for txn_id, messages in segment.entries:
                if txn_id is None or self.transactions[txn_id]["state"] == "COMMITTED":
                    shown += messages
        return shown

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        name = f"{request.method} {unquote(request.url.raw_path.decode())}"
        with self._lock:
            self.requests.append(name)
            early = self._fault(self.before, name)
        if early is not None and (instead := await _happened(early, request)) is not None:
            return instead
        with self._lock:
            answer = self._serve(request)
            late = self._fault(self.after, name)
        if late is not None:
            return await _happened(late, request) or answer
        return answer

    @staticmethod
    def _fault(faults: list[tuple[str, Fault]], name: str) -> Fault | None:
        for index, (part, fault) in enumerate(faults):
            if part in name:
                del faults[index]
                return fault
        return None

    def _serve(self, request: httpx.Request) -> httpx.Response:
        parts = [unquote(part) for part in request.url.raw_path.decode().partition("?")[0].split("/")[2:]]
        match request.method, parts:
            case "GET", ["cluster"]:
                processes = {"coordinators": [{"id": "c", "url": COORDINATOR}], "brokers": [{"id": "b", "url": BROKER}]}
                version = {} if self.version is None else {"version": self.version}
                return httpx.Response(200, json=processes | {"revision": 1} | version)
            case "POST", ["txns"]:
                txn_id = f"{len(self.transactions) + 1:032x}"
                self.transactions[txn_id] = {"txn_id": txn_id, "state": "OPEN", "created_ms": 1}
                return httpx.Response(201, json=self.transactions[txn_id])
            case "POST", ["txns", "batch"]:
                return httpx.Response(200, json={"items": list(map(self._item, json.loads(request.content)["items"]))})
            case "GET", ["txns", txn_id]:
                return self._header(txn_id)
            case "POST", ["txns", txn_id, "writers"]:
                return self.remember(txn_id, json.loads(request.content)["add"])
            case "POST", ["txns", txn_id, "commit"]:
                return self.commit(txn_id, json.loads(request.content).get("writers"))
            case "POST", ["txns", txn_id, "abort"]:
                return self._decide(txn_id, "ABORTED")
            case "GET", ["topics", "t"]:
                return httpx.Response(200, json={"name": "t", "segments": self._segments()})
            case "POST", ["intents"] if self.knows_announcements:
                self.announced.append(json.loads(request.content))
                return httpx.Response(200, json={"stored": 0})
            case "POST", ["txns", txn_id, "entries"] if self.knows_groups:
                return self._append_group(txn_id, request.content)
            case "POST", ["segments", segment_id, "entries"]:
                return self._append(segment_id, request)
        return problem(ErrorCode.NOT_FOUND, f"nothing at {request.url}")

    def _item(self, item: dict[str, Any]) -> dict[str, Any]:
        """Of a batch, which begins or aborts."""
        path = "/txns" if item["op"] == "begin" else f"/txns/{item['txn_id']}/abort"
        answer = self._serve(httpx.Request("POST", f"{COORDINATOR}/v1{path}", json={}))
        return {"status": answer.status_code, "txn" if answer.is_success else "problem": answer.json()}

    def _header(self, txn_id: str) -> httpx.Response:
        if txn_id not in self.transactions:
            return problem(ErrorCode.TXN_NOT_FOUND)
        return httpx.Response(200, json=self.transactions[txn_id])

    def remember(self, txn_id: str, writers: list[str]) -> httpx.Response:
        self.remembered.setdefault(txn_id, set()).update(writers)
        return self._header(txn_id)

    def commit(self, txn_id: str, writers: list[str] | None) -> httpx.Response:
        """By whom ever: what counts is decided by the first who commits (DESIGN §5.12)."""
        header = self.transactions[txn_id]
        counted = None if writers is None else sorted(set(writers))
        if header["state"] == "OPEN":
            remembered = self.remembered.get(txn_id)
            header["writers"] = sorted(remembered) if counted is None and remembered else counted
        elif header["state"] == "COMMITTED" and counted not in (None, header["writers"]):
            return problem(ErrorCode.INVALID_TXN_STATE, "with other writers")
        return self._decide(txn_id, "COMMITTED")

    def _decide(self, txn_id: str, state: str) -> httpx.Response:
        header = self.transactions[txn_id]
        if header["state"] not in ("OPEN", state):
            return problem(ErrorCode.INVALID_TXN_STATE)
        header["state"] = state
        with self._lock:  # a broker remembers the sequences of a transaction until that is decided
            for segment in self.segments.values():
                segment.seen = {number: None for number in segment.seen if number[0] != txn_id}
        return self._header(txn_id)

    def _segments(self) -> list[dict[str, Any]]:
        return [
            {
                "segment": name,
                "range": [segment.low, segment.high],
                "state": "sealed" if segment.children or segment.merging or segment.ended else "active",
                "parents": [parent for parent, other in self.segments.items() if name in other.children],
                "children": segment.children,
                "owner": BROKER,
            }
            for name, segment in self.segments.items()
        ]

    def _append_group(self, txn_id: str, body: bytes) -> httpx.Response:
        """Each entry as in a request of its own."""
        outcomes = []
        group = unpack_entries(body)
        for head, payload in group.entries:
            params = {"txn_id": txn_id, **head.model_dump(include={"producer", "sequence", "count", "before_commit"})}
            url, kind = httpx.URL(f"{BROKER}/v1/segments", params=params), {"Content-Type": head.media_type}
            outcomes.append(self._append(head.segment, httpx.Request("POST", url, content=payload, headers=kind)))
        answer: dict[str, Any] = {"outcomes": [outcome.json() for outcome in outcomes]}
        if group.commit is not None and self.carries_commits and all(outcome.is_success for outcome in outcomes):
            answer["commit"] = self.commit(txn_id, group.commit.writers).json()
        return httpx.Response(200, json=answer)

    def _append(self, segment_id: str, request: httpx.Request) -> httpx.Response:
        segment, params = self.segments[segment_id], request.url.params
        txn_id = params.get("txn_id")
        number = (txn_id, params["producer"], params["sequence"])
        if number in segment.seen:
            return httpx.Response(200, json={"position": "0:0", "duplicate": True})
        if segment.children or segment.ended:
            return problem(ErrorCode.SEGMENT_SEALED, children=segment.children)
        if segment.merging:
            return problem(ErrorCode.STORE_UNAVAILABLE, "it is being merged")
        if txn_id is not None and self.transactions[txn_id]["state"] != "OPEN":
            return problem(ErrorCode.TXN_CONFLICT)
        if request.headers["Content-Type"] == ARROW_MEDIA_TYPE:
            rows = pa.ipc.open_stream(request.content).read_all().to_pylist()
            messages = [{"key": row["k"], "value": row} for row in rows]
        elif request.headers["Content-Type"] == MESSAGES_MEDIA_TYPE:
            messages = [{"key": None, **message} for message in json.loads(request.content)]
        else:
            assert self.version is not None, "a broker of release 0.2.0 takes this for opaque bytes"
            found = unpack_batch(request.content, check_batch(request.content))
            messages = [{"key": key, "value": value} for key, value in zip(found.keys, found.values, strict=True)]
        assert len(messages) == int(params["count"])
        assert self.version is not None or "before_commit" not in params, "release 0.2.0 refuses it"
        if params.get("before_commit") == "true":
            self.vouched += [message["value"] for message in messages]
        for message in messages:
            assert message["key"] is None or segment.low <= hash_of_key(message["key"]) <= segment.high
        segment.seen[number] = None
        plain = [each for each in segment.seen if each[:2] == (None, params["producer"])]
        for forgotten in plain[: max(0, len(plain) - self.memory)]:
            del segment.seen[forgotten]
        segment.entries.append((txn_id, [message["value"] for message in messages]))
        return httpx.Response(200, json={"position": f"0:{len(segment.entries) - 1}"})


async def _happened(fault: Fault, request: httpx.Request) -> Outcome:
    outcome = fault(request)
    return await outcome if inspect.isawaitable(outcome) else outcome


def lost(request: httpx.Request) -> httpx.Response | None:
    raise httpx.ReadError("connection reset", request=request)


def silent(request: httpx.Request) -> httpx.Response | None:
    raise httpx.ReadTimeout("timed out", request=request)


def refused(request: httpx.Request) -> httpx.Response | None:
    raise httpx.ConnectError("connection refused", request=request)


def answering(code: ErrorCode, headers: dict[str, str] | None = None, **members: Any) -> Fault:
    def answer(request: httpx.Request) -> httpx.Response:
        return problem(code, headers=headers, **members)

    return answer


def proxy(status: int, body: str = "<html>try again</html>") -> Fault:
    """What something that stands before the service answers by itself: a page, and no problem of ours."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, text=body)

    return answer
