"""Tokens and keys for tests of security."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from metatxn.service.security.tokens import create_token

PrivateKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey
NEVER_S = 4_102_444_800  # the year 2100


class TokenFile:
    """A token file that principals are added to and taken from."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "tokens.toml"
        self._entries: dict[str, str] = {}
        self._write()

    def add(self, name: str, *, admin: bool = False, topics: Mapping[str, str] | None = None) -> str:
        """The token of a new principal."""
        token, self._entries[name] = create_token(name, admin=admin, topics=topics)
        self._write()
        return token

    def remove(self, name: str) -> None:
        del self._entries[name]
        self._write()

    def _write(self) -> None:
        """As an editor does: a new file in place of the old one."""
        new = self.path.with_suffix(".new")
        new.write_text("\n\n".join(self._entries.values()))
        new.replace(self.path)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def public_pem(key: PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def signed(key: Any, algorithm: str | None, **claims: Any) -> str:
    """A token that is good unless `claims` say otherwise; a claim that is None is left out."""
    whole = {"sub": "ada", "exp": NEVER_S, **claims}
    return jwt.encode({name: value for name, value in whole.items() if value is not None}, key, algorithm=algorithm)
