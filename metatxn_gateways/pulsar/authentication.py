"""Who is at the other end of a connection: the `token` that its handshake shows.

Every token is taken that REST takes, and a principal may do what it may do over REST. The token is looked at again with
every command, so one that is revoked, or that expires, ends its connections; a client comes again with its next one. A
client that only receives is asked for a sign of life now and then, which is a command, too.
"""

from __future__ import annotations

import asyncio
from typing import Any

from metatxn.service.security.authentication import Authenticator
from metatxn.service.security.principal import ANYONE, Principal
from metatxn.wire import errors
from metatxn_gateways.listener import (
    AUTHENTICATED_WITHIN_S,
    MAX_BYTES_BEFORE,
    MAX_REQUEST_BYTES,
    FrameConnection,
    NotAuthenticated,
)

METHOD = "token"


class PulsarAuthentication:
    """The authentication of one connection. Without an `authenticator` everyone may do everything."""

    def __init__(self, authenticator: Authenticator | None, link: FrameConnection) -> None:
        self._authenticator = authenticator
        self._link = link
        self._token: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        if authenticator is not None:
            link.max_request_bytes = MAX_BYTES_BEFORE
            self._timer = asyncio.get_running_loop().call_later(AUTHENTICATED_WITHIN_S, self._too_late)

    def begin(self, handshake: Any) -> None:
        """Take the token of the handshake. Raises UNAUTHENTICATED."""
        if self._authenticator is None:
            return
        if handshake.auth_method_name != METHOD:
            raise errors.Unauthenticated("a token is needed: set AuthenticationFactory.token")
        try:
            token = handshake.auth_data.decode("ascii")
        except UnicodeDecodeError:
            raise errors.Unauthenticated("the token has a form that is not known here") from None
        self._authenticator.verified(token)
        self._token = token
        self._link.max_request_bytes = MAX_REQUEST_BYTES

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

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _too_late(self) -> None:
        if self._token is None:
            self._link.refuse(None, "no token came in time")
