"""Who is at the other end of a connection: the `token` that its handshake shows, and those that follow it.

    CONNECT        with a token ─▶ its principal
    AUTH_CHALLENGE when the token expires ─▶ AUTH_RESPONSE with the next one, of the same principal

Every token is taken that REST takes, and a principal may do what it may do over REST. The token is looked at again with
everything that is done by it: with every command when that is begun, also if it has waited before, and with everything
that is sent unasked. So one that is revoked ends its connections, and what the rights of the next one do not allow is
closed; a client comes again with its next one. A client that only receives is asked for a sign of life now and then,
which is a command, too.

A token that expires ends its connection, unless its client knows how to go on: that one is asked for the next token.
REST takes a token for some seconds more, because clocks differ, and so does a connection, which is asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from metastore.clock import Clock
from metatxn.service.security.authentication import Authenticator
from metatxn.service.security.principal import ANYONE, Principal
from metatxn.wire import errors
from metatxn_gateways.listener import (
    AUTHENTICATED_WITHIN_S,
    MAX_BYTES_BEFORE,
    FrameConnection,
    MalformedRequest,
    NotAuthenticated,
)
from metatxn_gateways.pulsar.commands import MAX_FRAME_BYTES

METHOD = "token"
REFRESH = b"PulsarAuthRefresh"
"""A challenge with these bytes asks for the next token."""
ANSWERED_WITHIN_S = 30.0
"""How long a client may take to answer a challenge, and a token that cannot be followed by another one still counts."""
ASK_AGAIN_S = 5.0
"""The least time between two challenges, also if the next token has expired, too."""
_LONGEST_TIMER_S = 3600.0
"""Whether a token has expired is looked at this often: the clock of timers is another one than that of tokens."""


class PulsarAuthentication:
    """The authentication of one connection. Without an `authenticator` everyone may do everything. `challenge` sends a
    challenge."""

    def __init__(
        self, authenticator: Authenticator | None, link: FrameConnection, clock: Clock, challenge: Callable[[], None]
    ) -> None:
        self._authenticator = authenticator
        self._link = link
        self._clock = clock
        self._challenge = challenge
        self._token: str | None = None
        self._name: str | None = None
        self._can_refresh = False
        self._challenged = False
        self._timer: asyncio.TimerHandle | None = None
        if authenticator is not None:
            link.max_request_bytes = MAX_BYTES_BEFORE
            self._call_later(AUTHENTICATED_WITHIN_S, self._too_late, "no token came in time")

    def begin(self, handshake: Any) -> None:
        """Take the token of the handshake. Raises UNAUTHENTICATED."""
        if self._authenticator is None:
            return
        self._can_refresh = handshake.feature_flags.supports_auth_refresh
        self._take(self._authenticator, handshake.auth_method_name, handshake.auth_data)
        self._link.max_request_bytes = MAX_FRAME_BYTES

    def go_on(self, answer: Any) -> Principal:
        """Take the token that answers a challenge. Raises UNAUTHENTICATED, and `MalformedRequest` if there was no
        challenge."""
        if self._authenticator is None or not self._challenged:
            raise MalformedRequest("a token came without a challenge")
        self._challenged = False
        return self._take(self._authenticator, answer.response.auth_method_name, answer.response.auth_data)

    def _take(self, authenticator: Authenticator, method: str, shown: bytes) -> Principal:
        if method != METHOD:
            raise errors.Unauthenticated("a token is needed: set AuthenticationFactory.token")
        try:
            token = shown.decode("ascii")
        except UnicodeDecodeError:
            raise errors.Unauthenticated("the token has a form that is not known here") from None
        principal, expires_s = authenticator.verified(token)
        if self._token is not None and principal.name != self._name:
            raise errors.Unauthenticated("the token belongs to a principal other than that of the connection")
        self._token, self._name = token, principal.name
        self._stop_timer()
        if expires_s is not None:
            self._wait_until_expired(expires_s, ASK_AGAIN_S if self._can_refresh else 0.0)
        return principal

    def principal(self) -> Principal:
        """The principal of the connection. Raises `NotAuthenticated`."""
        if self._authenticator is None:
            return ANYONE
        if self._token is None:
            raise NotAuthenticated("a command came before a token")
        try:
            return self._authenticator.verified(self._token)[0]
        except errors.MetatxnError as error:
            raise NotAuthenticated(error.detail) from None

    def _wait_until_expired(self, expires_s: float, least_s: float) -> None:
        left_s = max(expires_s - self._clock() / 1000, least_s)
        if left_s <= 0:
            if self._can_refresh:
                self._challenged = True
                self._challenge()
            self._call_later(ANSWERED_WITHIN_S, self._too_late, "the token has expired, and no other one came in time")
        else:
            self._call_later(min(left_s, _LONGEST_TIMER_S), self._wait_until_expired, expires_s, 0.0)

    def _too_late(self, why: str) -> None:
        self._link.refuse(None, why)

    def _call_later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, call, *arguments)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        self._stop_timer()
