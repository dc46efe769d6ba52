"""The consumers of one connection that ask which segments they have, see `ordered`."""

from __future__ import annotations

from functools import partial
from typing import Any

from metatxn_gateways.pulsar.codes import PulsarCode, PulsarError
from metatxn_gateways.pulsar.commands import command
from metatxn_gateways.pulsar.names import own_topic
from metatxn_gateways.pulsar.ordered import CHECKPOINT, STREAM, GroupKey, OrderedMember
from metatxn_gateways.pulsar.session import PulsarSession
from metatxn_gateways.pulsar.subscribing import checked_name

MAX_MEMBERSHIPS = 1_000
"""The most topics of which a connection reads in order."""


class Memberships:
    def __init__(self, session: PulsarSession) -> None:
        self._session = session
        self._members: dict[int, tuple[GroupKey, OrderedMember]] = {}

    def subscribe(self, request: Any) -> None:
        self._session.answer(self._joined(request), partial(_refused, request))

    async def _joined(self, request: Any) -> bytes:
        topic, kind = own_topic(request.topic), request.consumer_type
        subscription = checked_name(request.subscription, "subscription")
        name = checked_name(request.consumer_name, "consumer")
        if kind not in (STREAM, CHECKPOINT):
            raise PulsarError(PulsarCode.NOT_ALLOWED, f"consumers of the kind {kind} are not supported")
        self._session.require("consume", topic)
        self._leave(request.consumer_id)
        if len(self._members) >= MAX_MEMBERSHIPS:
            raise PulsarError(PulsarCode.NOT_ALLOWED, f"a connection reads at most {MAX_MEMBERSHIPS} topics in order")
        key, member = (
            (topic, subscription, kind),
            OrderedMember(name, partial(self._tell, request.consumer_id, topic), self._session.link.abort),
        )
        self._members[request.consumer_id] = key, member
        try:
            assignment = await self._session.context.ordered.join(key, member)
            self._session.require("consume", topic)
        except BaseException:
            if self._members.get(request.consumer_id) == (key, member):
                self._leave(request.consumer_id)
            raise
        return command("scalable_topic_subscribe_response", request_id=request.request_id, assignment=assignment)

    def _tell(self, consumer_id: int, topic: str, assignment: dict[str, Any]) -> None:
        def update() -> bytes | None:
            if self._session.may_be_told("consume", topic):
                return command("scalable_topic_assignment_update", consumer_id=consumer_id, assignment=assignment)
            self._session.link.abort()
            return None

        self._session.push(("assignment", consumer_id), update)

    def obey(self) -> None:
        """End the connection if the principal may not have the segments of one of them any more. The protocol has no
        other way to tell: the client asks again, and is refused."""
        if not all(self._session.principal.may("consume", key[0]) for key, _ in self._members.values()):
            self._session.link.abort()

    def _leave(self, consumer_id: int) -> None:
        self._session.push_nothing(("assignment", consumer_id))
        if (known := self._members.pop(consumer_id, None)) is not None:
            self._session.context.ordered.leave(*known)

    def end(self) -> None:
        for consumer_id in list(self._members):
            self._leave(consumer_id)


def _refused(request: Any, code: PulsarCode, message: str) -> bytes:
    about = {"request_id": request.request_id, "error": int(code), "message": message}
    return command("scalable_topic_subscribe_response", **about)
