"""The share of a subscription at another broker: the methods of `LocalShare`, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter

from metastore.versions import ClusterVersion, Feature
from metatxn.wire.broker import RedeliverAnswer, SeekPreviewSegment, SubscriptionSegment
from metatxn.wire.names import MessageId
from participants.broker.peers import Peer
from participants.subscription.definitions import Definition
from participants.subscription.dispatch import Redelivered
from participants.subscription.places import Span, Start
from participants.subscription.share import AckRequest, TakeAnswer, TakeRequest, WaitRequest
from participants.subscription.taking import DeliveredMessage
from participants.topic.share_models import SharePreviewRequest, ShareTakeAnswer, ShareTakeRequest, ShareWaitRequest

_SEGMENTS = TypeAdapter(list[SubscriptionSegment])
_PREVIEW = TypeAdapter(list[SeekPreviewSegment])
_NEW_WHEN_TAKING = {"home_segment", "most_held"}
_NEW_WHEN_WAITING = {"session", "sessions"}
"""The members that release 0.2.0 does not know."""


class RemoteShare:
    """A share elsewhere. `segments` are those that the broker owns, as far as is known here. Raises as `Peer.request`
    does.

    A broker refuses members of a request that it does not know. So what release 0.2.0 does not know is left out as long
    as the cluster `version` allows for brokers of it.
    """

    def __init__(self, peer: Peer, definition: Definition, segments: Iterable[str], version: ClusterVersion) -> None:
        self._peer = peer
        self._definition = definition
        self._version = version
        self.segments = list(segments)

    @property
    def url(self) -> str:
        return self._peer.url

    async def take(self, wanted: TakeRequest) -> TakeAnswer:
        """Take messages. OUTCOME_UNKNOWN means that messages may have been delivered to the consumer and lost on the
        way."""
        request = ShareTakeRequest(
            incarnation=self._definition.record.incarnation,
            home=wanted.home.generation,
            home_segment=wanted.home.number,
            session=wanted.session,
            sessions=list(wanted.sessions),
            newest=wanted.newest,
            segments=list(wanted.segments),
            max=wanted.limit,
            max_bytes=wanted.max_bytes,
            most_held=wanted.most_held,
        )
        content = await self._post("take", request.model_dump(exclude=self._without(_NEW_WHEN_TAKING)))
        answer = ShareTakeAnswer.model_validate_json(content)
        each_bytes = len(content) // max(1, len(answer.messages))
        messages = [DeliveredMessage(message, each_bytes) for message in answer.messages]
        return TakeAnswer(messages, set(answer.ended), answer.held, answer.full, answer.others_hold)

    async def wait(self, wanted: WaitRequest, wait_s: float) -> None:
        taker = wanted.taker
        request = ShareWaitRequest(
            incarnation=self._definition.record.incarnation,
            segments=list(wanted.segments),
            wait_ms=int(1000 * wait_s),
            session=taker.session if taker is not None else None,
            sessions=list(taker.present) if taker is not None else None,
            ended=list(wanted.ended) or None,
        )
        await self._post(
            "wait", request.model_dump(exclude=self._without(_NEW_WHEN_WAITING)), reads=True, wait_s=wait_s
        )

    async def acknowledge(self, request: AckRequest) -> None:
        kind = "cumulative" if request.cumulative or request.up_to else "individual"
        body: dict[str, Any] = {"kind": kind, "for_all": request.for_all or None}
        if request.up_to:
            body["positions"] = {segment: str(place) for segment, place in request.up_to.items()}
        else:
            body["message_ids"] = [str(each) for each in request.ids]
        if request.txn_id is not None:
            body["txn_id"] = str(request.txn_id)
            body["writer"] = request.writer
        await self._post("acks", body)

    async def redeliver(self, ids: Sequence[MessageId] | None) -> Redelivered:
        body = {} if ids is None else {"message_ids": [str(each) for each in ids]}
        answer = RedeliverAnswer.model_validate_json(await self._post("redeliver", body))
        return Redelivered(answer.redelivered, answer.withdrawn)

    async def look(self) -> list[SubscriptionSegment]:
        answer = await self._peer.request("GET", self._path(), self._name, reads=True)
        return _SEGMENTS.validate_json(answer.body)

    async def preview(
        self, starts: Mapping[str, Start], within: Mapping[str, Span] | None = None
    ) -> list[SeekPreviewSegment]:
        here = {name: start for name, start in starts.items() if name in self.segments}
        request = SharePreviewRequest(
            incarnation=self._definition.record.incarnation,
            positions={name: str(start.place.position) for name, start in here.items()},
            acked={name: [[str(a), str(b)] for a, b in start.acked] for name, start in here.items() if start.acked},
            within={name: [*map(str, span)] for name, span in within.items()} if within is not None else None,
        )
        return _PREVIEW.validate_json(await self._post("preview", request.model_dump(), reads=True))

    async def drop(self) -> None:
        await self._peer.request("DELETE", self._path(), self._name, reads=False)

    def _without(self, new: set[str]) -> set[str] | None:
        return None if self._version.allows(Feature.SHARES) else new

    async def _post(
        self, verb: str, body: Mapping[str, Any], *, reads: bool = False, wait_s: float = 0
    ) -> bytes | bytearray:
        path, content = self._path(verb), json.dumps({k: v for k, v in body.items() if v is not None}).encode()
        answer = await self._peer.request(
            "POST",
            path,
            self._name,
            reads=reads,
            content=content,
            media_type="application/json",
            wait_s=wait_s,
        )
        return answer.body

    @property
    def _name(self) -> str:
        return f"subscription {self._definition.name} at {self.url}"

    def _path(self, verb: str = "") -> str:
        topic, name = quote(self._definition.topic, safe=""), quote(self._definition.name, safe="")
        return f"/v1/topics/{topic}/subscriptions/{name}/share{verb and '/' + verb}"
