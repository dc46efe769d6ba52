"""A listener that asks for tokens, over TLS."""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from metatxn.service.exposure import open_exposure
from tests.certificates import Authority
from tests.gateways.pulsar.client import Refused
from tests.service.security import TokenFile, public_pem, signed

TOPIC = "public/default/t"


class Secured:
    """A listener that asks for tokens, over TLS."""

    def __init__(self, directory: Path, authority: Authority, host: str = "127.0.0.1") -> None:
        self.authority = authority
        self.key = ed25519.Ed25519PrivateKey.generate()
        self.tokens = TokenFile(directory)
        public_key, certificate = directory / "jwt.pem", authority.sign("broker", host=host)
        public_key.write_bytes(public_pem(self.key))
        self.exposure = open_exposure(
            token_file=self.tokens.path, jwt_public_key=public_key, tls_cert=certificate.cert, tls_key=certificate.key
        )
        self.tls = ssl.create_default_context(cafile=str(authority.ca))

    def token(self, name: str, *rights: str) -> str:
        return self.tokens.add(name, topics={TOPIC: ", ".join(rights)} if rights else None)

    def signed(self, name: str, *rights: str, for_s: float = 600) -> str:
        claims = {"topics": {TOPIC: rights}}
        return signed(self.key, "EdDSA", sub=name, exp=time.time() + for_s, metatxn=claims)


async def refusal(asked: Any) -> int:
    with pytest.raises(Refused) as refused:
        await asked
    return refused.value.code
