"""One connection of a client that speaks Pulsar's binary protocol.

    size of the command · command              both ways
    size of the command · command · entry      SEND and MESSAGE

Commands are begun in the order in which they come. Their answers name the request, so they need no order, except for
the receipts of a producer. What takes time runs as a task, and ends with the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from metatxn.service.security.principal import ANYONE, Principal
from metatxn.wire import errors
from metatxn.wire.frames import MAX_PAYLOAD_BYTES
from metatxn_gateways.listener import FrameConnection, MalformedRequest
from metatxn_gateways.pulsar.authentication import METHOD, REFRESH, PulsarAuthentication
from metatxn_gateways.pulsar.codes import PulsarCode
from metatxn_gateways.pulsar.commands import MAX_FRAME_BYTES, command, read_command
from metatxn_gateways.pulsar.consumers import NONE, Consumers
from metatxn_gateways.pulsar.coordinators import Coordinators
from metatxn_gateways.pulsar.lookups import Lookups
from metatxn_gateways.pulsar.memberships import Memberships
from metatxn_gateways.pulsar.producers import PulsarProducers
from metatxn_gateways.pulsar.schemas import Schemas
from metatxn_gateways.pulsar.session import BegunCommand, Context, PulsarSession

SERVER = "metatxn"
PROTOCOL_VERSION = 21
KEEP_ALIVE_S = 30.0
"""A peer that is silent for this long is asked whether it is there, and after as long again it counts as gone."""
MAX_WAITING = 100
MAX_WAITING_BYTES = 1 << 20
"""If more commands, or bytes of them, wait for a quota, no more are received."""
_FREE = ("ping", "pong")
"""No quota applies to these: a connection that shows no sign of life ends."""
_MOVED = {"send": ["bytes_in_per_second"]}


@dataclass(frozen=True, slots=True)
class _Waiting:
    name: str
    content: Any
    entry: memoryview
    size: int
    since_s: float


class PulsarConnection:
    """See the module docstring. Used only from the event loop of its process."""

    def __init__(self, context: Context, link: FrameConnection) -> None:
        self._link = link
        self._authentication = PulsarAuthentication(
            context.authenticator, link, context.broker.clock, self._ask_for_token
        )
        self._principal = ANYONE
        """Who was at the other end when its rights were last applied to what is open."""
        self._session = session = PulsarSession(context, link, self._authentication.principal)
        self._lookups = lookups = Lookups(session)
        self._producers = producers = PulsarProducers(session)
        self._memberships = memberships = Memberships(session)
        self._consumers = consumers = Consumers(session)
        coordinators, schemas = Coordinators(session), Schemas(session)
        self._handlers: dict[str, Callable[[Any], None]] = {
            "ping": self._ping,
            "pong": lambda _: None,
            "lookup": lookups.lookup,
            "partition_metadata": lookups.partition_metadata,
            "scalable_topic_lookup": lookups.watch,
            "scalable_topic_close": lookups.unwatch,
            "get_schema": schemas.get,
            "get_or_create_schema": schemas.get_or_create,
            "producer": producers.create,
            "close_producer": producers.close,
            "subscribe": consumers.subscribe,
            "close_consumer": consumers.close,
            "flow": consumers.flow,
            "ack": consumers.ack,
            "redeliver": consumers.redeliver,
            "seek": consumers.seek,
            "scalable_topic_subscribe": memberships.subscribe,
            "get_last_message_id": consumers.last_message_id,
            "watch_tc_assignments": coordinators.watch,
            "watch_tc_assignments_close": coordinators.unwatch,
            "tc_client_connect": coordinators.connect,
            "new_txn": coordinators.begin,
            "add_partition_to_txn": coordinators.add_partition,
            "add_subscription_to_txn": coordinators.add_subscription,
            "end_txn": coordinators.end,
        }
        self._waiting: deque[_Waiting] = deque()
        """The commands that wait for a quota."""
        self._waiting_bytes = 0
        self._connected = False
        self._heard = True
        self._asked = False
        self._keep_alive = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._is_there)
        self._unsent_bytes = 0
        link.max_request_bytes = min(link.max_request_bytes, MAX_FRAME_BYTES)
        link.on_lost = self._end

    def handle(self, request: memoryview) -> None:
        """Begin a command. Raises `MalformedRequest`, and `NotAuthenticated`."""
        self._heard = True
        name, content, entry = read_command(request)
        if not self._connected:
            self._connect(name, content)
            return
        if name == "auth_response":
            self._go_on(content)
            return
        self._obey(self._session.principal)
        waiting = _Waiting(name, content, entry, len(request), asyncio.get_running_loop().time())
        if name not in _FREE and (self._waiting or self._session.context.quotas.active):
            self._wait(waiting)
        else:
            self._begin(waiting)

    def _obey(self, principal: Principal) -> None:
        """Close what the rights of a principal that has others than before do not allow any more. Producers stay: each
        message that they send is refused."""
        if principal is not self._principal:
            self._principal = principal
            for opened in (self._lookups, self._memberships, self._consumers):
                opened.obey()

    def _wait(self, command: _Waiting) -> None:
        """Begin a command once the quota of its principal lets it pass, in the order in which they came."""
        self._waiting.append(command)
        self._waiting_bytes += command.size
        self._session.hold("quota", self._has_much)
        if len(self._waiting) == 1:
            self._session.spawn(self._pass_on())

    @property
    def _has_much(self) -> bool:
        return len(self._waiting) >= MAX_WAITING or self._waiting_bytes >= MAX_WAITING_BYTES

    async def _pass_on(self) -> None:
        quotas = self._session.context.quotas
        while self._waiting:
            next = self._waiting[0]
            amounts = ["requests_per_second", *_MOVED.get(next.name, [])]
            await quotas.begin_later(self._session.principal.name, amounts, next.size)
            self._waiting.popleft()
            self._waiting_bytes -= next.size
            self._session.hold("quota", self._has_much)
            try:
                self._begin(next)
            except MalformedRequest as error:
                self._link.close_because(error)
                return

    def _begin(self, waiting: _Waiting) -> None:
        name, content, entry = waiting.name, waiting.content, waiting.entry
        self._session.began = BegunCommand(name, waiting.since_s, waiting.size)
        if name == "send":
            self._producers.send(content, entry)
        elif (handler := self._handlers.get(name)) is not None:
            handler(content)
        else:
            raise MalformedRequest(f"the command {name} is not supported")

    def _connect(self, name: str, request: Any) -> None:
        if name != "connect":
            raise MalformedRequest(f"{name} comes before the handshake")
        try:
            self._authentication.begin(request)
        except errors.MetatxnError as error:
            self._refuse(error.detail)
            return
        self._connected = True
        self._session.send(
            command(
                "connected",
                server_version=SERVER,
                protocol_version=min(request.protocol_version, PROTOCOL_VERSION),
                max_message_size=MAX_PAYLOAD_BYTES,
                feature_flags={"supports_scalable_topics": True, "supports_tc_metadata_discovery": True},
            )
        )

    def _ask_for_token(self) -> None:
        """Ask for the next token. The client shows it at once, or the connection ends."""
        challenge = {"auth_method_name": METHOD, "auth_data": REFRESH}
        about = {"server_version": SERVER, "protocol_version": PROTOCOL_VERSION}
        self._session.send(command("auth_challenge", challenge=challenge, **about))

    def _go_on(self, answer: Any) -> None:
        try:
            self._obey(self._authentication.go_on(answer))
        except errors.MetatxnError as error:
            self._refuse(error.detail)

    def _refuse(self, why: str) -> None:
        about = {"request_id": NONE, "error": int(PulsarCode.AUTHENTICATION), "message": why}
        self._link.refuse([command("error", **about)], why)

    def _ping(self, _: Any) -> None:
        self._session.send(command("pong"))

    def _is_there(self) -> None:
        taken = (unsent_bytes := self._link.unsent_bytes) < self._unsent_bytes
        self._unsent_bytes = unsent_bytes
        self._heard |= self._session.holds_back or taken
        if self._asked and not self._heard:
            self._link.abort()
            return
        self._asked, self._heard = not self._heard, False
        if self._asked:
            self._session.send(command("ping"))
        self._keep_alive = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._is_there)

    def _end(self) -> None:
        self._keep_alive.cancel()
        self._authentication.end()
        self._lookups.end()
        self._memberships.end()
        self._producers.end()
        self._consumers.end()
        self._session.end()
