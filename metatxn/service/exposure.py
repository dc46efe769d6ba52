"""How a service is exposed to the network: who may connect, with or without TLS, and how much they may send.

authentication   address      result
off              loopback     the default: only this machine may connect, and everyone on it may do everything
off              any other    refused, unless `allow_anonymous` says that this is intended
on               any          every request needs a token; without TLS there is a warning, as tokens can be read
"""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from metatxn.service.limits import Limits
from metatxn.service.security.authentication import Authenticator

if TYPE_CHECKING:
    from metatxn.service.security.signed_tokens import SignedTokens

log = structlog.get_logger()


class InvalidExposure(ValueError):
    """The message says what is wrong and what to do, in the words of the command line's options."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """Made by `open_exposure`. Several services of a process may share one."""

    authenticator: Authenticator | None = None
    tls: ssl.SSLContext | None = None
    allow_anonymous: bool = False
    limits: Limits = field(default_factory=Limits)

    def check(self, host: str) -> None:
        """Raises `InvalidExposure` if a service must not listen on `host` with these settings."""
        if self.authenticator is None and not self.allow_anonymous and not is_loopback(host):
            raise InvalidExposure(
                f"--host {host} can be reached from other machines, but there is no authentication. "
                "Give --token-file or --jwt-public-key, or --allow-anonymous if everyone may do everything."
            )
        if self.authenticator is not None and self.tls is None and not is_loopback(host):
            log.warning(
                "tokens are sent unencrypted; give --tls-cert and --tls-key, or put a TLS proxy in front", host=host
            )

    def describe(self, host: str) -> str:
        """One line for the person who starts a service."""
        if self.authenticator is not None:
            return "with a token" + (", over TLS" if self.tls else ", without TLS")
        if is_loopback(host):
            return "from this machine only: there is no authentication"
        return "by everyone who can reach it: there is no authentication"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine only. Names other than `localhost` may resolve to any address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def open_exposure(
    *,
    token_file: Path | None = None,
    jwt_public_key: Path | None = None,
    jwt_audience: str | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    allow_anonymous: bool = False,
    **limits: Any,
) -> Exposure:
    """Read the files that the options name; `limits` are fields of `Limits`. Raises `InvalidExposure`."""
    if allow_anonymous and (token_file or jwt_public_key):
        raise InvalidExposure("--allow-anonymous contradicts --token-file and --jwt-public-key. Give one or the other.")
    if jwt_audience is not None and jwt_public_key is None:
        raise InvalidExposure("--jwt-audience needs --jwt-public-key.")
    authenticator = None
    if token_file or jwt_public_key:
        try:
            signed = _signed_tokens(jwt_public_key, jwt_audience) if jwt_public_key else None
            authenticator = Authenticator(token_file, signed)
        except ValueError as error:
            raise InvalidExposure(f"{error}. Correct the file.") from None
    return Exposure(authenticator, _tls_context(tls_cert, tls_key), allow_anonymous, Limits(**limits))


def _signed_tokens(public_key: Path, audience: str | None) -> SignedTokens:
    """Signed tokens. Their libraries (jwt, cryptography) take a tenth of a start, so they are loaded only when
    needed."""
    from metatxn.service.security.signed_tokens import SignedTokens

    return SignedTokens(public_key, audience)


def _tls_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise InvalidExposure("--tls-cert and --tls-key go together. Give both.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise InvalidExposure(
            f"--tls-cert {cert}, --tls-key {key}: {error}. Give PEM files of a certificate and its key."
        ) from None
    return context


def _no_password() -> str:
    """Refuse an encrypted key. Without this, OpenSSL asks for the password on the terminal."""
    raise ValueError("the key is encrypted")
