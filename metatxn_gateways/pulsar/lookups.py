"""Where segments are served, and of which segments a topic consists."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from functools import partial
from typing import Any

from metatxn.wire import errors
from metatxn_gateways.pulsar.brokers import fields_of
from metatxn_gateways.pulsar.codes import PulsarCode, PulsarError
from metatxn_gateways.pulsar.commands import command
from metatxn_gateways.pulsar.layouts import SegmentGraph
from metatxn_gateways.pulsar.names import is_segment, own_topic, scalable_topic, segment_parts
from metatxn_gateways.pulsar.session import PulsarSession

CONNECT, FAILED = 1, 2
WAIT_S = 10.0
"""How long a lookup waits until the segment is served; a client waits for 30 s."""
LOOK_AGAIN_S = 0.5
"""How often it looks whether the broker of a segment is announced with a listener."""
MAX_WATCHES = 1_000
"""The most topics that a connection watches."""
MAX_LOOKUPS = 5_000
"""The most lookups of a connection that wait: as many as Pulsar's clients send at once."""


class Lookups:
    """The lookups of one connection."""

    def __init__(self, session: PulsarSession) -> None:
        self._session = session
        self._watches: dict[int, _Watch] = {}
        self._waiting = 0

    def lookup(self, request: Any) -> None:
        self._session.answer(self._found(request), partial(_not_found, request), in_its_turn=False)

    async def _found(self, request: Any) -> bytes:
        """The answer to a lookup. Every broker answers for a topic, and the owner of a segment for that segment."""
        brokers = self._session.context.brokers
        if is_segment(request.topic):
            parts = segment_parts(request.topic)
            self._session.require_sight(parts.topic)
            if self._waiting >= MAX_LOOKUPS:
                raise PulsarError(PulsarCode.TOO_MANY_REQUESTS, f"a connection has at most {MAX_LOOKUPS} lookups")
            self._waiting += 1
            try:
                url = await self._serving(request.topic, parts.topic)
            finally:
                self._waiting -= 1
            self._session.require_sight(parts.topic)
        else:
            self._session.require_sight(own_topic(request.topic))
            url = brokers.own()
        return command(
            "lookup_response",
            request_id=request.request_id,
            response=CONNECT,
            authoritative=True,
            **fields_of("broker_url", url),
        )

    async def _serving(self, segment: str, topic: str) -> str:
        """The URL of the broker that serves a segment. One that is being opened, as after a split, is waited for: a
        client that hears that it is not ready closes its connection, and everything that its consumers hold returns."""
        broker, loop = self._session.context.broker, asyncio.get_running_loop()
        until_s = loop.time() + WAIT_S
        while True:
            changes = broker.changes()
            try:
                return await self._served_by(segment, topic)
            except (errors.StoreUnavailable, PulsarError):
                if (left_s := until_s - loop.time()) <= 0:
                    raise
                await asyncio.wait(changes, timeout=min(left_s, LOOK_AGAIN_S), return_when=asyncio.FIRST_COMPLETED)

    async def _served_by(self, segment: str, topic: str) -> str:
        broker, brokers = self._session.context.broker, self._session.context.brokers
        try:
            await broker.in_layout(topic, lambda: broker.segment(segment))
        except errors.NotOwner as elsewhere:
            if (url := brokers.of_broker(elsewhere.owner_url)) is not None:
                return url
            message = f"the broker that serves {segment} is not announced with a listener for Pulsar's clients"
            raise PulsarError(PulsarCode.SERVICE_NOT_READY, message) from None
        return brokers.own()

    def partition_metadata(self, request: Any) -> None:
        """Answer for partitions, which nothing has here. A client learns whether the topic exists when it uses it."""
        self._session.send(
            command("partition_metadata_response", request_id=request.request_id, partitions=0, response=0)
        )

    # -- watching ----------------------------------------------------------------------------------------------

    def watch(self, request: Any) -> None:
        """Send the layout of the topic now, and whenever it changes."""
        try:
            topic = own_topic(request.topic)
            self._session.require_sight(topic)
            if request.session_id not in self._watches and len(self._watches) >= MAX_WATCHES:
                raise PulsarError(PulsarCode.NOT_ALLOWED, f"a connection watches at most {MAX_WATCHES} topics")
            self.unwatch(request)
            watch = _Watch(self._session, request.session_id, topic)
        except PulsarError as error:
            self._session.send(_not_watched(request.session_id, error))
        else:
            self._watches[request.session_id] = watch

    def unwatch(self, request: Any) -> None:
        if (watch := self._watches.pop(request.session_id, None)) is not None:
            watch.end()

    def obey(self) -> None:
        """Tell the watchers of topics of which the principal may know nothing more, and forget them."""
        for session_id, watch in list(self._watches.items()):
            try:
                self._session.require_sight(watch.topic)
            except PulsarError as error:
                del self._watches[session_id]
                watch.end()
                self._session.send(_not_watched(session_id, error))

    def end(self) -> None:
        for watch in self._watches.values():
            watch.end()


class _Watch:
    """The watch of a topic. Raises `PulsarError` for a topic that does not exist. One that is just being changed is
    told once that is seen completely."""

    def __init__(self, session: PulsarSession, session_id: int, topic: str) -> None:
        self._session = session
        self._id = session_id
        self.topic = topic
        self._shown: object = None
        self._leave: Callable[[], None] = session.context.layouts.watch(topic, self._tell)
        if not session.context.layouts.exists(topic):
            self.end()
            create = f"metatxn topic create {shlex.quote(topic)} --format pulsar"
            message = f"topic {topic} does not exist. Create it first: {create}"
            raise PulsarError(PulsarCode.TOPIC_NOT_FOUND, message)
        self._tell()

    def end(self) -> None:
        self._leave()
        self._session.push_nothing(self)

    def _tell(self) -> None:
        self._session.push(self, self._update)

    def _update(self) -> bytes | None:
        """The layout, unless it was sent, or the principal may not see it any more, which `Lookups.obey` tells. Of a
        deleted topic there is none: the clients that use its segments are told."""
        if not self._session.may_be_told(None, self.topic):
            return None
        layout = self._session.context.layouts.get(self.topic)
        if layout is None or layout.shape == self._shown:
            return None
        self._shown = layout.shape
        return command(
            "scalable_topic_update",
            session_id=self._id,
            layout=layout.described | self._controller(layout),
            resolved_topic_name=scalable_topic(self.topic),
        )

    def _controller(self, layout: SegmentGraph) -> dict[str, str]:
        """Where stream consumers ask for their segments, if that is known: see `ordered`."""
        url = self._session.context.brokers.serving(layout.topic.home)
        return fields_of("controller_url", url) if url is not None else {}


def _not_found(request: Any, code: PulsarCode, message: str) -> bytes:
    return command("lookup_response", request_id=request.request_id, response=FAILED, error=int(code), message=message)


def _not_watched(session_id: int, error: PulsarError) -> bytes:
    return command("scalable_topic_update", session_id=session_id, error=int(error.code), message=str(error))
