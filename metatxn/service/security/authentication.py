"""From a token, or the `Authorization` header with it, to a principal."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from metatxn.service.security import tokens
from metatxn.service.security.principal import Principal
from metatxn.service.security.watched_file import WatchedFile
from metatxn.wire import errors
from metatxn.wire.access import AcceptedToken

if TYPE_CHECKING:
    from metatxn.service.security.signed_tokens import SignedTokens

MAX_TOKEN_LENGTH = 8192
_ACTION = "Send a valid token as `Authorization: Bearer <token>`; it is not read anywhere else."


class Authenticator:
    """Recognizes the tokens of a file, signed tokens, or both. A change of a file takes effect within a second."""

    def __init__(self, token_file: Path | None, signed: SignedTokens | None) -> None:
        """Raises `InvalidSecurityFile`."""
        self._listed = WatchedFile(token_file, tokens.parse_tokens) if token_file else None
        self._signed = signed

    def principal(self, headers: Iterable[tuple[bytes, bytes]]) -> Principal:
        """The principal of this token. Raises UNAUTHENTICATED with the reason, which contains nothing of the token."""
        return self.verified(_bearer_token(headers))[0]

    def verified(self, token: str) -> tuple[Principal, float | None]:
        """The principal of a token, and when that expires, in seconds since the epoch, if it does. Raises as
        `principal`."""
        if len(token) > MAX_TOKEN_LENGTH or not token.isascii():
            raise _unauthenticated("the token has a form that is not known here")
        if token.startswith(tokens.PREFIX):
            found = tokens.find_token(self._listed.current(), token) if self._listed else None
            if found is None:
                raise _unauthenticated("the token is not known here, or was revoked")
            return found, None
        if self._signed is None:
            raise _unauthenticated("the token is not known here")
        try:
            return self._signed.verified(token)
        except tokens.InvalidToken as error:
            raise _unauthenticated(f"the token is refused: {error}") from None

    def accepted(self) -> list[AcceptedToken]:
        """The tokens that are accepted: signed ones by their keys, and then the listed ones, without their hashes, by
        principal."""
        listed = self._listed.current() if self._listed else {}
        entries = [
            AcceptedToken(kind="listed", id=token_id, **principal.access().model_dump())
            for token_id, (_, principal) in listed.items()
        ]
        signed = self._signed.accepted() if self._signed else []
        return signed + sorted(entries, key=lambda entry: (entry.principal or "", entry.id or ""))


def _bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str:
    values = [value for name, value in headers if name == b"authorization"]
    if not values:
        raise _unauthenticated("there is no Authorization header")
    if len(values) > 1:
        raise _unauthenticated("there is more than one Authorization header")
    scheme, _, token = values[0].partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token:
        raise _unauthenticated("the Authorization header does not contain a bearer token")
    return token.decode("latin-1")


def _unauthenticated(detail: str) -> errors.MetatxnError:
    return errors.Unauthenticated(detail, action=_ACTION)
