"""Who is at the other end of a connection: SASL, whose proof is one of our tokens.

    SaslHandshake     which mechanism: PLAIN or OAUTHBEARER
    SaslAuthenticate  PLAIN: `\\0user\\0token`; OAUTHBEARER (RFC 7628): `n,,\\1auth=Bearer token\\1\\1`

Both mechanisms take every token that REST takes. The name of the user is not looked at: the token says who it is. A
token is looked at again with every request, so one that is revoked, or that expires, ends its connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import structlog

from metastore.clock import Clock
from metatxn.service.security.authentication import Authenticator
from metatxn.service.security.principal import ANYONE, Principal
from metatxn.wire import errors
from metatxn_gateways.kafka.codes import KafkaCode, error_code
from metatxn_gateways.kafka.requests import KafkaRequest
from metatxn_gateways.kafka.schemas import CallRequest, CallResponse
from metatxn_gateways.listener import (
    AUTHENTICATED_WITHIN_S,
    MAX_BYTES_BEFORE,
    MAX_REQUEST_BYTES,
    FrameConnection,
    NotAuthenticated,
)

MECHANISMS = ("PLAIN", "OAUTHBEARER")
_FOREVER = timedelta(0)
log = structlog.get_logger()


class SaslSession:
    """The authentication of one connection. Without an `authenticator` everyone may do everything."""

    def __init__(self, authenticator: Authenticator | None, clock: Clock, link: FrameConnection | None = None) -> None:
        self._authenticator = authenticator
        self._clock = clock
        self._link = link
        self._mechanism: str | None = None
        self._token: str | None = None
        self._name: str | None = None
        if authenticator is not None and link is not None:
            link.max_request_bytes = MAX_BYTES_BEFORE
            timer = asyncio.get_running_loop().call_later(AUTHENTICATED_WITHIN_S, self._too_late, link)
            link.on_lost = timer.cancel

    @property
    def calls(self) -> dict[int, Callable[[CallRequest, CallResponse], Awaitable[Any]]]:
        """The calls that need no token."""
        return {KafkaRequest.SASL_HANDSHAKE: self.handshake, KafkaRequest.SASL_AUTHENTICATE: self.authenticate}

    @property
    def address(self) -> str | None:
        return self._link.peer.rpartition(":")[0] if self._link is not None else None

    def caller(self) -> Principal:
        """The principal of the connection. Raises `NotAuthenticated`."""
        if self._authenticator is None:
            return ANYONE
        if self._token is None:
            raise NotAuthenticated("a request came before a token")
        try:
            return self._authenticator.verified(self._token)[0]
        except errors.MetatxnError as error:
            raise NotAuthenticated(error.detail) from None

    async def handshake(self, request: CallRequest, response: CallResponse) -> Any:
        code = KafkaCode.NONE
        if self._authenticator is None:
            code = KafkaCode.ILLEGAL_SASL_STATE
        elif request.mechanism not in MECHANISMS:
            code = KafkaCode.UNSUPPORTED_SASL_MECHANISM
        else:
            self._mechanism = request.mechanism
        return response.make("SaslHandshakeResponse", error_code=error_code(code), mechanisms=MECHANISMS)

    async def authenticate(self, request: CallRequest, response: CallResponse) -> Any:
        """Check a token. A client may show its next token on the same connection, if it belongs to the same
        principal."""
        mechanism, self._mechanism = self._mechanism, None
        if self._authenticator is None or mechanism is None:
            return _refused(response, KafkaCode.ILLEGAL_SASL_STATE, "SaslHandshake comes first")
        try:
            token = _TOKENS[mechanism](request.auth_bytes)
            caller, expires_s = self._authenticator.verified(token)
            if self._name not in (None, caller.name):
                raise errors.Unauthenticated("the token belongs to a principal other than that of the connection")
        except (errors.MetatxnError, ValueError) as error:
            why = error.detail if isinstance(error, errors.MetatxnError) else str(error)
            log.info("connection refused", client=self._link.peer if self._link is not None else None, reason=why)
            self._token = None
            return _refused(response, KafkaCode.SASL_AUTHENTICATION_FAILED, why)
        self._token, self._name = token, caller.name
        if self._link is not None:
            self._link.max_request_bytes = MAX_REQUEST_BYTES
        left = _FOREVER if expires_s is None else timedelta(seconds=max(expires_s - self._clock() / 1000, 1))
        return response.make(
            "SaslAuthenticateResponse",
            error_code=error_code(KafkaCode.NONE),
            error_message=None,
            auth_bytes=b"",
            session_lifetime=left,
        )

    def _too_late(self, link: FrameConnection) -> None:
        if self._token is None:
            link.refuse(None, "no token came in time")


def _refused(response: CallResponse, code: KafkaCode, why: str) -> Any:
    return response.make(
        "SaslAuthenticateResponse",
        error_code=error_code(code),
        error_message=why,
        auth_bytes=b"",
        session_lifetime=_FOREVER,
    )


def _plain(shown: bytes) -> str:
    """Raises `ValueError`."""
    parts = shown.split(b"\0")
    if len(parts) != 3 or not parts[2]:
        raise ValueError("PLAIN needs a user and, as its password, a token")
    return parts[2].decode("latin-1")


def _bearer(shown: bytes) -> str:
    """Raises `ValueError`."""
    head, *pairs = shown.split(b"\1")
    values = [value for name, _, value in (pair.partition(b"=") for pair in pairs) if name.lower() == b"auth"]
    scheme, _, token = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
    if not head.startswith(b"n,") or scheme.lower() != b"bearer" or not token.strip():
        raise ValueError("OAUTHBEARER needs a bearer token")
    return token.strip().decode("latin-1")


_TOKENS: dict[str, Callable[[bytes], str]] = {"PLAIN": _plain, "OAUTHBEARER": _bearer}
