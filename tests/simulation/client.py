"""A client of the services, as small as it can be: the public endpoints, with retries, in one simulated process.

Every call ends in one of three ways, as the contract has it: an answer; `Refused`, certainly nothing happened; or
`Doubtful`, it may have.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import zip_longest
from random import Random
from typing import Any
from urllib.parse import quote, unquote

from metastore.types import Revision
from metatxn.wire.batches import pack_batch, packed_message, unpack_batch
from metatxn.wire.broker import (
    BATCH_MEDIA_TYPE,
    END_HEADER,
    MESSAGES_MEDIA_TYPE,
    NEXT_HEADER,
    REVISION_HEADER,
    hash_of_key,
)
from metatxn.wire.contents import messages_of
from metatxn.wire.frames import PayloadKind, decode_frames
from metatxn.wire.names import MessageId
from metatxn.wire.pages import PageEntry, decode_page
from tests.simulation.history import Asked, Begun, History, Outcome, Seen, connection
from tests.simulation.network import Answer, Network, NoAnswer, Request, Unreachable, url
from tests.simulation.world import World

PATIENCE_S = 25.0
ANNOUNCED = 0.3
"""The share of the writes without a writer that are announced."""
_JSON = {"content-type": "application/json"}
_BYTES = {"content-type": "application/octet-stream"}
_MESSAGES = {"content-type": MESSAGES_MEDIA_TYPE}
_BATCH = {"content-type": BATCH_MEDIA_TYPE}


class Refused(Exception):
    """This attempt certainly did nothing. `code` of the contract's table; UNREACHABLE when nobody listened at all.

    `doubtful`: the answer to an earlier attempt was lost, and of that one nobody knows.
    """

    def __init__(self, code: str, detail: str, *, doubtful: bool) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.doubtful = doubtful


class Doubtful(Exception):
    """It may have happened, or may yet."""


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """A segment in the layout of its topic."""

    segment: str
    low: int
    high: int
    active: bool
    parents: tuple[str, ...]

    def holds(self, key: str) -> bool:
        return self.low <= hash_of_key(key) <= self.high


@dataclass(frozen=True, slots=True)
class Page:
    frames: list[Seen]
    next: str
    end: bool
    revision: int | None


@dataclass(frozen=True, slots=True)
class Horizon:
    """How far readers may go in a segment, as the broker at `server` told."""

    server: str
    first: tuple[int, int]
    max_read_position: tuple[int, int]


class Client:
    def __init__(
        self,
        world: World,
        network: Network,
        coordinators: list[str],
        brokers: list[str],
        random: Random,
        history: History,
    ) -> None:
        self._world = world
        self._network = network
        self._coordinators = coordinators
        self._brokers = brokers
        self._owners: dict[str, str] = {}
        """Of each segment the broker that has answered last."""
        self._random = random
        self._history = history
        self._ours: set[str] = set()
        """Transactions that this client has begun and not tried to end: for these it vouches (DESIGN §5.1)."""
        self.epoch: int | None = None
        """Of its topic, which it has for itself, or has had."""
        self.as_messages = False
        """Whether the broker can see the keys of what is published to a segment."""
        self.layouts: dict[str, list[SegmentPlace]] = {}
        """Of each topic as it was when this client looked last: parents before their children."""

    # -- transactions ------------------------------------------------------------------------------------------

    async def begin(self, timeout_ms: int) -> str:
        """A call that is repeated may leave a transaction that nobody knows; its timeout ends it."""
        by = f"{self._random.getrandbits(64):016x}"
        header = await self._begin(by, {"timeout_ms": timeout_ms})
        txn_id: str = header["txn_id"]
        if int(by, 16) % 2:  # half of them
            self._ours.add(txn_id)
        return txn_id

    async def _begin(self, by: str, body: dict[str, Any]) -> dict[str, Any]:
        body["properties"] = {"by": by}
        answer = await self._ask("POST", self._coordinators, "/v1/txns", body=body)
        header: dict[str, Any] = answer.json()
        if not header.get("already_committed"):
            self._history.answered_begins.append(Begun(header["txn_id"], by, header.get("properties", {}).get("by")))
        return header

    async def commit(self, txn_id: str, writers: tuple[str, ...] | None, *, patient: bool) -> dict[str, Any]:
        body = {} if writers is None else {"writers": list(writers)}
        return await self._at_transaction(txn_id, "commit", body, patience_s=PATIENCE_S if patient else 0.0)

    async def abort(self, txn_id: str) -> dict[str, Any]:
        return await self._at_transaction(txn_id, "abort", {})

    async def prepare(self, txn_id: str, timeout_ms: int) -> None:
        await self._at_transaction(txn_id, "prepare", {"prepared_timeout_ms": timeout_ms})

    async def keep_alive(self, txn_id: str, timeout_ms: int) -> None:
        await self._at_transaction(txn_id, "keep-alive", {"timeout_ms": timeout_ms})

    async def remember_writers(self, txn_id: str, writers: Sequence[str]) -> None:
        await self._at_transaction(txn_id, "writers", {"add": list(writers)})

    async def _at_transaction(
        self, txn_id: str, action: str, body: dict[str, Any], patience_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        if action in ("commit", "abort", "prepare"):
            self._ours.discard(txn_id)
        path = f"/v1/txns/{txn_id}/{action}"
        answer = await self._ask("POST", self._coordinators, path, body=body, patience_s=patience_s)
        header: dict[str, Any] = answer.json()
        return header

    async def connect(self, key: str) -> dict[str, Any]:
        """Become the only connection of a key. A call that is repeated takes over from itself."""
        path = f"/v1/transaction-keys/{key}/connect"
        answer = await self._ask("POST", self._coordinators, path, body={"epoch": -1})
        connected: dict[str, Any] = answer.json()
        return connected

    async def begin_version(self, key: str, epoch: int, version: int, timeout_ms: int) -> dict[str, Any]:
        body = {"transaction_key": key, "epoch": epoch, "version": version, "timeout_ms": timeout_ms}
        return await self._begin(f"{connection(key, epoch)} for version {version}", body)

    async def begin_unconnected(self, key: str, timeout_ms: int) -> dict[str, Any]:
        """Without an epoch."""
        return await self._begin("somebody", {"transaction_key": key, "timeout_ms": timeout_ms})

    # -- subscriptions -----------------------------------------------------------------------------------------

    async def subscribe(
        self,
        topic: str,
        name: str,
        kind: str,
        dead_letters: str | None = None,
        max_redeliveries: int | None = None,
        **settings: int | str,
    ) -> None:
        body: dict[str, Any] = {"initial": "earliest", "type": kind} | settings
        if dead_letters is not None:
            body |= {"dead_letter_topic": dead_letters, "max_redeliveries": max_redeliveries}
        await self._at_subscription(topic, name, "PUT", "", body)

    async def drop_subscription(self, topic: str, name: str) -> None:
        """Gone already, or never made, is success."""
        try:
            path = f"/v1/topics/{quote(topic, safe='')}/subscriptions/{name}"
            await self._ask("DELETE", self._brokers, path, segment=f"home of {topic}")
        except Refused as refused:
            if refused.code != "NOT_FOUND":
                raise

    async def receive(self, topic: str, name: str, consumer: str, limit: int) -> list[dict[str, Any]]:
        """Not repeated: what was given in an answer that was lost stays with `consumer`, so go on as another one."""
        body = {"consumer": consumer, "max": limit, "wait_ms": 1000}
        answer = await self._at_subscription(topic, name, "POST", "/receive", body, once=True)
        messages: list[dict[str, Any]] = answer["messages"]
        return messages

    async def acknowledge(
        self, topic: str, name: str, ids: list[str], txn_id: str | None, patience_s: float = PATIENCE_S
    ) -> None:
        body = {"kind": "individual", "message_ids": ids} | ({"txn_id": txn_id} if txn_id is not None else {})
        await self._at_subscription(topic, name, "POST", "/acks", body, patience_s=patience_s)

    async def acknowledge_cumulative(self, topic: str, name: str, message_id: str, txn_id: str) -> None:
        body = {"kind": "cumulative", "message_ids": [message_id], "txn_id": txn_id}
        await self._at_subscription(topic, name, "POST", "/acks", body)

    async def acknowledge_up_to(
        self, topic: str, name: str, segment: str, position: tuple[int, int], txn_id: str
    ) -> None:
        positions = {segment: f"{position[0]}:{position[1]}"}
        body = {"kind": "cumulative", "positions": positions, "for_all": True, "txn_id": txn_id}
        await self._at_subscription(topic, name, "POST", "/acks", body)

    async def mark_deletes(self, topic: str, name: str) -> dict[str, tuple[int, int]]:
        """Of each segment the place up to which everything is acknowledged."""
        segments = (await self._at_subscription(topic, name, "GET", "", None))["segments"]
        return {each["segment"]: parse_position(each["mark_delete"]) for each in segments}

    async def backlog(self, topic: str, name: str) -> int:
        segments = (await self._at_subscription(topic, name, "GET", "", None))["segments"]
        return sum(each["backlog"] for each in segments)

    async def redeliver(self, topic: str, name: str, ids: list[str]) -> None:
        await self._at_subscription(topic, name, "POST", "/redeliver", {"message_ids": ids})

    async def seek(self, topic: str, name: str, to: str, *, force: bool = False) -> None:
        await self._at_subscription(topic, name, "POST", "/seek", {"to": to, "force": force})

    async def _at_subscription(
        self,
        topic: str,
        name: str,
        method: str,
        action: str,
        body: dict[str, Any] | None,
        *,
        once: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> dict[str, Any]:
        path = f"/v1/topics/{quote(topic, safe='')}/subscriptions/{name}{action}"
        home = f"home of {topic}"
        answer = await self._ask(method, self._brokers, path, body=body, segment=home, once=once, patience_s=patience_s)
        said: dict[str, Any] = answer.json()
        return said

    # -- topics ------------------------------------------------------------------------------------------------

    async def set_policy(self, level: str, topic: str, settings: dict[str, Any]) -> None:
        """Of the topic, or of another `level`."""
        path = f"/v1/topics/{quote(topic, safe='')}" if level == "topic" else f"/v1/policies/{level}"
        await self._ask("PATCH", self._brokers, path, body=settings)

    async def create_topic(self, broker: str, name: str, segments: int, format: str | None = None) -> None:
        body = {"name": name, "segments": segments} | ({"format": format} if format is not None else {})
        try:
            await self._ask("POST", [broker], "/v1/topics", body=body)
        except Refused as refused:
            if refused.code != "ALREADY_EXISTS":
                raise

    async def delete_topic(self, name: str) -> None:
        """Gone already, or never made, is success."""
        try:
            await self._ask("DELETE", self._brokers, f"/v1/topics/{quote(name, safe='')}")
        except Refused as refused:
            if refused.code != "NOT_FOUND":
                raise

    async def look(self, topic: str) -> list[SegmentPlace]:
        """The layout now."""
        answer = await self._ask("GET", self._brokers, f"/v1/topics/{quote(topic, safe='')}")
        found = [
            SegmentPlace(
                each["segment"],
                each["range"][0],
                each["range"][1],
                each["state"] == "active",
                tuple(each["parents"]),
            )
            for each in answer.json()["segments"]
        ]
        self.layouts[topic] = parents_first(found)
        return self.layouts[topic]

    async def look_behind_splits(self, topic: str, key: str) -> None:
        """Forget where an entry of `key` was sent, unless a merge lies between that segment and the one it would be
        sent to now: only the child of a split can tell all that its parent took (DESIGN §5.13)."""
        before = self.layouts[topic]
        now = {place.segment: place for place in await self.look(topic)}
        at = [place for place in self.layouts[topic] if place.holds(key)][-1]
        sent_to = [place for place in before if place.holds(key)][-1]
        while at.segment != sent_to.segment:
            if len(at.parents) != 1:
                self.layouts[topic] = before
                return
            at = now[at.parents[0]]

    async def change_layout(self, topic: str) -> None:
        """Split one of its segments, or merge two neighbours. In the middle of a merge none of them may be active."""
        active = [place for place in await self.look(topic) if place.active]
        if not active:
            return
        one = self._random.choice(active)
        neighbours = [place for place in active if place.low == one.high + 1]
        action, body = "split", {}
        if neighbours and len(active) > self._random.randrange(1, 5):
            action, body = "merge", {"with": neighbours[0].segment}
        path = f"/v1/segments/{quote(one.segment, safe='')}/{action}"
        await self._ask("POST", self._brokers, path, body=body, segment=one.segment)

    async def publish(
        self,
        topic: str,
        payload: dict[str, Any],
        *,
        txn_id: str | None = None,
        writer: str | None = None,
        producer: str | None = None,
        sequence: int,
        patience_s: float = PATIENCE_S,
    ) -> tuple[str, tuple[int, int]]:
        """Segment and position of an entry with the payload's `key`.

        What was not answered is asked for again where it was sent; once that segment is sealed and does not have it, or
        was removed, at the child that has taken over, which may name an ancestor (DESIGN §5.13).
        """
        query = {"txn_id": txn_id, "writer": writer, "producer": producer, "sequence": sequence}
        query["producer_epoch"] = self.epoch
        if txn_id in self._ours:
            query["before_commit"] = "true"
        content, headers = json.dumps(payload).encode(), _BYTES
        if self.as_messages:
            content, headers = json.dumps([{"key": payload["key"], "value": payload}]).encode(), _MESSAGES
        if sequence % 2:
            content, headers = pack_batch([packed_message(payload, payload["key"], None)])[0], _BATCH
        layout = self.layouts.get(topic) or await self.look(topic)
        doubtful = False
        while True:
            place = [place for place in layout if place.holds(payload["key"])][-1]
            path = f"/v1/segments/{quote(place.segment, safe='')}/entries"
            asking = self._ask(
                "POST",
                self._brokers,
                path,
                query,
                content=content,
                headers=headers,
                segment=place.segment,
                patience_s=patience_s,
            )
            try:
                answer = await (
                    asking if writer is not None else self._perhaps_announced(place.segment, txn_id, asking)
                )
                said = answer.json()
                (held, *_) = said.get("appended") or [said | {"segment": place.segment}]
                return held["segment"], parse_position(held["position"])
            except Refused as refused:
                doubtful = refused.doubtful = doubtful or refused.doubtful
                if refused.code != "SEGMENT_SEALED":
                    raise
            try:
                newest = await self.look(topic)
            except Refused as refused:
                refused.doubtful = doubtful
                raise
            if newest == layout:
                raise Doubtful("the segment is sealed and nobody has taken over")
            layout = newest

    async def claim(self, topic: str, session: str, ttl_ms: int, *, fence: bool) -> int:
        """The epoch. A call that is repeated gets the same one, unless the topic was taken from it in between."""
        body = {"session": session, "ttl_ms": ttl_ms, "fence": fence}
        path = f"/v1/topics/{quote(topic, safe='')}/exclusive-producer"
        return int((await self._ask("POST", self._brokers, path, body=body)).json()["epoch"])

    async def release(self, topic: str, epoch: int) -> None:
        path = f"/v1/topics/{quote(topic, safe='')}/exclusive-producer"
        await self._ask("DELETE", self._brokers, path, {"epoch": epoch})

    async def hold(self, topic: str, hold_id: str, hold_ms: int) -> int:
        """The revision that is held, also if the call is repeated."""
        path = f"/v1/topics/{quote(topic, safe='')}/read-holds"
        return int(
            (await self._ask("POST", self._brokers, path, body={"hold_id": hold_id, "hold_ms": hold_ms})).json()[
                "revision"
            ]
        )

    async def release_hold(self, topic: str, hold_id: str) -> None:
        await self._ask("DELETE", self._brokers, f"/v1/topics/{quote(topic, safe='')}/read-holds/{hold_id}")

    async def publish_to_topic(
        self, topic: str, messages: list[dict[str, Any]], producer: str, sequence: int, patience_s: float
    ) -> list[MessageId]:
        """Through any broker, and another one each time: where the messages lie."""
        body = {"messages": messages, "producer": producer, "sequence": sequence}
        path = f"/v1/topics/{quote(topic, safe='')}/messages"
        answer = await self._ask("POST", self._brokers, path, body=body, patience_s=patience_s)
        return [MessageId.parse(each) for each in answer.json()["message_ids"]]

    async def read(self, place: SegmentPlace, after: str | None, isolation: str, revision: int | None = None) -> Page:
        query: dict[str, Any] = {"after": after, "isolation": isolation, "revision": revision, "max_bytes": 4096}
        if revision is None:
            query["batches"] = "true"
        path = f"/v1/segments/{quote(place.segment, safe='')}/entries"
        answer = await self._ask("GET", self._brokers, path, query, segment=place.segment)
        said = answer.headers.get(REVISION_HEADER.lower())
        return Page(
            list(frames_of(place.segment, answer.body)),
            answer.headers[NEXT_HEADER.lower()],
            answer.headers[END_HEADER.lower()] == "true",
            int(said) if said is not None else None,
        )

    async def horizon(self, place: SegmentPlace) -> Horizon:
        path = f"/v1/segments/{quote(place.segment, safe='')}"
        said = (await self._ask("GET", self._brokers, path, segment=place.segment)).json()
        return Horizon(
            self._owners[place.segment],
            parse_position(said["first_position"]),
            parse_position(said["max_read_position"]),
        )

    async def trim(self, segment: str, before: tuple[int, int]) -> None:
        path = f"/v1/segments/{quote(segment, safe='')}/trim"
        await self._ask("POST", self._brokers, path, body={"before": f"{before[0]}:{before[1]}"}, segment=segment)

    async def delete_segment(self, segment: str) -> None:
        await self._ask("DELETE", self._brokers, f"/v1/segments/{quote(segment, safe='')}", segment=segment)

    async def browse(self, topic: str, after: str | None, limit: int) -> tuple[list[dict[str, Any]], str]:
        """A page of messages through any broker, and where to go on. Some pages are read with JSON, others in batches:
        then they have whole entries."""
        path = f"/v1/topics/{quote(topic, safe='')}"
        if self._random.random() < 0.5:
            head, entries = decode_page(
                (await self._ask("GET", self._brokers, f"{path}/batches", {"after": after, "max_bytes": 1000})).body
            )
            return [message for entry in entries for message in _messages_in(entry)], head.next
        said = (await self._ask("GET", self._brokers, f"{path}/messages", {"after": after, "max": limit})).json()
        return said["messages"], said["next"]

    # -- one call ----------------------------------------------------------------------------------------------

    async def _perhaps_announced(self, segment: str, txn_id: str | None, asking: Coroutine[Any, Any, Answer]) -> Answer:
        """The broker is told of the write by a request beside it, which may be earlier or later (DESIGN §5.1)."""
        if txn_id is None or Random(f"{txn_id} {segment}").random() >= ANNOUNCED:
            return await asking
        answer: Answer | BaseException
        answer, _ = await asyncio.gather(asking, self._announce(segment, txn_id), return_exceptions=True)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _announce(self, segment: str, txn_id: str) -> None:
        """Nothing depends on it, so it is sent once, and is no part of the history."""
        server = self._owners.get(segment) or self._brokers[0]
        content = json.dumps({"txn_ids": [txn_id], "segments": [segment]}).encode()
        with suppress(Unreachable, NoAnswer):
            await self._network.request(Request("POST", url(server, "/v1/intents"), content, _JSON))

    async def _ask(
        self,
        method: str,
        servers: list[str],
        path: str,
        query: dict[str, Any] | None = None,
        *,
        body: dict[str, Any] | None = None,
        content: bytes = b"",
        headers: dict[str, str] | None = None,
        segment: str | None = None,
        once: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> Answer:
        """Send it until there is an answer that is not to be repeated. All calls here may be repeated.

        To any of `servers`; what concerns a segment first to its owner, as far as that is known. `once`: what may have
        been done is not sent again.
        """
        loop = self._world.loop
        deadline = loop.time() + patience_s
        headers = headers or (_BYTES if body is None else _JSON)
        payload = content if body is None else json.dumps(body).encode()
        doubtful = False
        asked = asked_by(method, path, (query or {}) | (body or {}), content, self._history.revision)
        if method != "GET":
            self._history.asked.append(asked)
        while True:
            asked.floor, copies = self._history.revision, self._network.copies
            server = self._owners.pop(segment or "", None) or servers[self._random.randrange(len(servers))]
            request = Request(method, url(server, path, query), payload, headers if payload else {})
            try:
                answer = await self._network.request(request)
            except Unreachable as error:
                problem, retriable, definite = {"code": "UNREACHABLE", "detail": str(error)}, True, True
            except NoAnswer as error:
                problem, retriable, definite = {"code": "OUTCOME_UNKNOWN", "detail": str(error)}, True, False
            else:
                if answer.ok:
                    asked.outcome = Outcome.OK
                    if segment is not None:
                        self._owners[segment] = server
                    return answer
                problem = answer.json()
                if segment is not None and "owner_url" in problem:
                    self._owners[segment] = problem["owner_url"]
                retriable = problem["retriable"] or (not problem["definite"] and answer.status >= 500)
                definite = problem["definite"] and self._network.copies == copies  # brokers ask each other, too
            doubtful = doubtful or not definite
            over = loop.time() >= deadline or (once and doubtful)
            if retriable and over and doubtful:
                raise Doubtful(problem["detail"])
            if over or not retriable:
                outcome = Outcome.UNKNOWN if doubtful else Outcome.FAILED
                asked.refuse(problem["code"], problem["detail"], problem, outcome, self._history.revision)
                if method == "GET" and asked.argument == "after":  # nobody reads on behind what was never there
                    self._history.asked.append(asked)
                raise Refused(problem["code"], problem["detail"], doubtful=doubtful)
            await asyncio.sleep(self._random.uniform(0.05, 0.5))


_NAMES = {
    "txns": "txn_id",
    "transaction-keys": "key",
    "topics": "topic",
    "segments": "segment",
    "subscriptions": "subscription",
}


def asked_by(method: str, path: str, given: Mapping[str, Any], content: bytes, revision: Revision) -> Asked:
    """What a request is about: the names in its path, and what its query and its JSON body have given."""
    _, _, *parts = map(unquote, path.split("/"))
    asked = Asked(method, revision, txn_id=given.get("txn_id"), by=given.get("properties", {}).get("by"))
    asked.key, asked.epoch, asked.cumulative = (
        given.get("transaction_key"),
        given.get("epoch", given.get("producer_epoch")),
        "cumulative" in given.values(),
    )
    for kind, name in zip_longest(parts[::2], parts[1::2]):
        if name is None or kind not in _NAMES:
            asked.verb = kind
        else:
            setattr(asked, _NAMES[kind], name)
    asked.topic = asked.topic or given.get("name")
    producer = given.get("producer") or given.get("writer")
    if producer is not None and given.get("sequence") is not None:
        asked.sequence = (producer, given["sequence"], content.hex() or str(given["messages"]))
    return asked


def parse_position(text: str) -> tuple[int, int]:
    ledger, _, entry = text.partition("@")[0].partition(":")
    return int(ledger), int(entry)


def frames_of(segment: str, body: bytes) -> list[Seen]:
    """What the entries of a page hold: one payload each, or several messages of which each has one for its value."""
    found = []
    for frame in decode_frames(body):
        if frame.kind is PayloadKind.BATCH:
            payloads = list(unpack_batch(frame.payload, frame.count).values)
        else:
            content = json.loads(bytes(frame.payload))
            payloads = list(map(payload_of, content)) if isinstance(content, list) else [content]
        for index, payload in enumerate(payloads):
            found.append(
                Seen(
                    segment,
                    (frame.position.ledger, frame.position.entry),
                    str(frame.txn_id) if frame.txn_id is not None else None,
                    frame.writer,
                    payload["id"],
                    payload["key"],
                    payload["amount"],
                    index,
                )
            )
    return found


def _messages_in(entry: PageEntry) -> list[dict[str, Any]]:
    values = messages_of(entry.frame).values[entry.skip :]
    as_bytes = [base64.b64encode(value).decode() if isinstance(value, bytes) else None for value in values]
    return [{"value": value, "value_base64": encoded} for value, encoded in zip(values, as_bytes, strict=True)]


def payload_of(message: dict[str, Any]) -> Any:
    as_bytes = message.get("value_base64")
    return message["value"] if as_bytes is None else json.loads(base64.b64decode(as_bytes))


def parents_first(places: list[SegmentPlace]) -> list[SegmentPlace]:
    """The layout in an order in which the entries of every key are in the order in which they were written."""
    known = {place.segment: place for place in places}
    graph = {place.segment: [parent for parent in place.parents if parent in known] for place in places}
    return [known[segment] for segment in TopologicalSorter(graph).static_order()]
