"""One connection of a client that speaks Pulsar's binary protocol.

    size of the command · command              both ways
    size of the command · command · entry      SEND and MESSAGE

Commands are begun in the order in which they come. Their answers name the request, so they need no order, except for
the receipts of a producer. What takes time runs as a task, and ends with the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from metatxn.wire import errors
from metatxn.wire.frames import MAX_PAYLOAD_BYTES
from metatxn_gateways.listener import FrameConnection, MalformedRequest
from metatxn_gateways.pulsar.authentication import PulsarAuthentication
from metatxn_gateways.pulsar.codes import PulsarCode
from metatxn_gateways.pulsar.commands import command, read_command
from metatxn_gateways.pulsar.consumers import NONE, Consumers
from metatxn_gateways.pulsar.coordinators import Coordinators
from metatxn_gateways.pulsar.lookups import Lookups
from metatxn_gateways.pulsar.memberships import Memberships
from metatxn_gateways.pulsar.producers import PulsarProducers
from metatxn_gateways.pulsar.session import Context, PulsarSession

SERVER = "metatxn"
PROTOCOL_VERSION = 21
KEEP_ALIVE_S = 30.0
"""A peer that is silent for this long is asked whether it is there, and after as long again it counts as gone."""


class PulsarConnection:
    """See the module docstring. Used only from the event loop of its process."""

    def __init__(self, context: Context, link: FrameConnection) -> None:
        self._link = link
        self._session = session = PulsarSession(context, link)
        self._lookups = lookups = Lookups(session)
        self._producers = producers = PulsarProducers(session)
        self._memberships = memberships = Memberships(session)
        consumers, coordinators = Consumers(session), Coordinators(session)
        self._handlers: dict[str, Callable[[Any], None]] = {
            "ping": self._ping,
            "pong": lambda _: None,
            "lookup": lookups.lookup,
            "partition_metadata": lookups.partition_metadata,
            "scalable_topic_lookup": lookups.watch,
            "scalable_topic_close": lookups.unwatch,
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
        self._authentication = PulsarAuthentication(context.authenticator, link)
        self._connected = False
        self._heard = True
        self._asked = False
        self._keep_alive = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._is_there)
        link.on_lost = self._end

    def handle(self, request: memoryview) -> None:
        """Begin a command. Raises `MalformedRequest`, and `NotAuthenticated`."""
        self._heard = True
        name, content, entry = read_command(request)
        if not self._connected:
            self._connect(name, content)
            return
        self._session.principal = self._authentication.principal()
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
            about = {"request_id": NONE, "error": int(PulsarCode.AUTHENTICATION), "message": error.detail}
            self._link.refuse([command("error", **about)], error.detail)
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

    def _ping(self, _: Any) -> None:
        self._session.send(command("pong"))

    def _is_there(self) -> None:
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
        self._session.end()
