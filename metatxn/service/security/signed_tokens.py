"""Signed tokens (JWT, RFC 7519): their issuer vouches for the caller, and this service only has public keys.

    claim      meaning
    sub        the principal; required
    exp        the time at which the token expires; required
    nbf, iat   the token is not valid before; checked if present
    aud        must be the configured audience; if none is configured, a token with any audience is refused
    metatxn    its grants, in the form of the token file: {"admin": false, "topics": {"public/default/*": ["consume"]}}

The algorithm follows from the key and never from the token: RSA means RS256, P-256 ES256, Ed25519 EdDSA. So neither
`alg: none` nor an HMAC keyed with a public key is possible (RFC 8725 §2.1, §3.1).
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import TypeAdapter, ValidationError

from metatxn.service.security.principal import Grants, Principal, PrincipalName
from metatxn.service.security.tokens import InvalidToken, first_problem
from metatxn.service.security.watched_file import WatchedFile
from metatxn.wire.access import AcceptedToken

LEEWAY_S = 30
"""The maximum difference between the clock of the issuer and ours."""
REMEMBERED = 4096
SMALLEST_RSA_BITS = 2048

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey
_PEM = re.compile(rb"-----BEGIN [A-Z ]+-----.*?-----END [A-Z ]+-----", re.DOTALL)
_NAME: TypeAdapter[str] = TypeAdapter(PrincipalName)


def parse_public_keys(data: bytes) -> Sequence[tuple[str, PublicKey]]:
    """The keys of a PEM file, each with its one algorithm; there are several while one key replaces another.

    Raises `ValueError`.
    """
    keys = [_public_key(pem) for pem in _PEM.findall(data)]
    if not keys:
        raise ValueError("contains no public key in PEM form")
    return keys


def _public_key(pem: bytes) -> tuple[str, PublicKey]:
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("contains something other than public keys in PEM form") from None
    match key:
        case RSAPublicKey() if key.key_size >= SMALLEST_RSA_BITS:
            return "RS256", key
        case EllipticCurvePublicKey() if isinstance(key.curve, SECP256R1):
            return "ES256", key
        case Ed25519PublicKey():
            return "EdDSA", key
    raise ValueError(f"a key must be RSA of at least {SMALLEST_RSA_BITS} bits, P-256 or Ed25519")


class SignedTokens:
    """Verifies signed tokens. Verified tokens are remembered by their hash until they expire or the keys change,
    because verifying a signature takes 0.1 ms."""

    def __init__(self, keys: Path, audience: str | None = None, now: Callable[[], float] = time.time) -> None:
        """Raises `InvalidSecurityFile`. `now` is in seconds since the epoch."""
        self._keys = WatchedFile(keys, parse_public_keys)
        self._audience = audience
        self._now = now
        self._verified: OrderedDict[bytes, tuple[Principal, float]] = OrderedDict()
        self._version = self._keys.version

    def accepted(self) -> list[AcceptedToken]:
        """What is shown of each key."""
        keys = self._keys.current()
        return [AcceptedToken(kind="signed", algorithm=each, audience=self._audience) for each, _ in keys]

    def principal(self, token: str) -> Principal:
        """The principal of a token. Raises `InvalidToken`."""
        return self.verified(token)[0]

    def verified(self, token: str) -> tuple[Principal, float]:
        """The principal of a token, and when that expires, in seconds since the epoch. Raises `InvalidToken`."""
        keys = self._keys.current()
        if self._version != self._keys.version:
            self._version = self._keys.version
            self._verified.clear()
        digest = sha256(token.encode()).digest()
        if (known := self._verified.get(digest)) is not None and self._now() < known[1]:
            self._verified.move_to_end(digest)
            return known
        claims = self._claims(token, keys)
        verified = self._verified[digest] = _principal(claims), float(claims["exp"])
        if len(self._verified) > REMEMBERED:
            self._verified.popitem(last=False)
        return verified

    def _claims(self, token: str, keys: Sequence[tuple[str, PublicKey]]) -> dict[str, Any]:
        failed: Exception | None = None
        for algorithm, key in keys:
            try:
                return jwt.decode(
                    token,
                    key,
                    algorithms=[algorithm],
                    audience=self._audience,
                    leeway=LEEWAY_S,
                    options={"require": ["exp", "sub"]},
                )
            except (jwt.PyJWTError, ValueError, RecursionError) as error:  # the last one for a header such as [[[[…
                if not isinstance(failed, jwt.ExpiredSignatureError):
                    failed = error
        raise InvalidToken(_reason(failed)) from None


def _reason(failed: Exception | None) -> str:
    """The reason in our own words, because a library's message might contain a part of the token."""
    match failed:
        case jwt.ExpiredSignatureError():
            return "it has expired"
        case jwt.ImmatureSignatureError():
            return "it is not valid yet"
        case jwt.InvalidAudienceError():
            return "it is for another audience"
        case jwt.MissingRequiredClaimError():
            return f"it lacks the claim {failed.claim}"
        case jwt.InvalidAlgorithmError() | jwt.InvalidSignatureError():
            return "it is not signed with a key of this service"
    return "it is not a signed token"


def _principal(claims: dict[str, Any]) -> Principal:
    try:
        return Principal(_NAME.validate_python(claims["sub"]), Grants.model_validate(claims.get("metatxn", {})))
    except ValidationError as error:
        raise InvalidToken(f"its claims do not fit: {first_problem(error)}") from None
