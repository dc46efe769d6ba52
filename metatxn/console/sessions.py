"""Who is signed in, and from where a change may come.

The browser keeps the session in a cookie that no script can read and no other site can send. It holds the caller's
token, so that any coordinator can serve any page and nothing is lost when one dies; and a random secret. Every form has
a number that is derived from the secret, and no other site can know it. The token itself is never in a page.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

PATH = "/console"
MAX_TOKEN_LENGTH = 3_800
"""A browser keeps no larger cookie than 4,096 bytes."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)
"""The characters of a bearer token (RFC 6750 §2.1). None of them has a meaning in a cookie."""
_SECRET = re.compile("[0-9a-f]{32}", re.ASCII)
_SAME = "same-origin"


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A session. `token` is None if no one is signed in: then the services are asked without one."""

    secret: str
    token: str | None = None

    @classmethod
    def begin(cls, token: str | None = None) -> Self:
        return cls(secrets.token_hex(16), token)

    @classmethod
    def of(cls, request: Request) -> Self | None:
        """The session in the cookie of a request, if there is one."""
        secret, _, token = request.cookies.get(cookie_name(request), "").partition(".")
        if not _SECRET.fullmatch(secret):
            return None
        return cls(secret, token if token and is_token(token) else None)

    @property
    def form_token(self) -> str:
        """The number that every form sends back."""
        return hmac.digest(self.secret.encode(), b"form", "sha256").hex()

    def sent(self, form_token: str) -> bool:
        return hmac.compare_digest(self.form_token.encode(), form_token.encode())

    def keep(self, request: Request, response: Response) -> None:
        """Have the browser keep the session until it is closed, or until its user signs out."""
        value = self.secret if self.token is None else f"{self.secret}.{self.token}"
        set_cookie(request, response, cookie_name(request), value)


def is_token(text: str) -> bool:
    """Whether a text may be a token that fits into the cookie."""
    return len(text) <= MAX_TOKEN_LENGTH and _TOKEN.fullmatch(text) is not None


def set_cookie(request: Request, response: Response, name: str, value: str, max_age_s: int | None = None) -> None:
    response.set_cookie(
        name, value, max_age=max_age_s, path=PATH, secure=is_secure(request), httponly=True, samesite="strict"
    )


def is_secure(request: Request) -> bool:
    """Whether the browser has come over TLS, which may end at a proxy."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "").strip().lower() == "https"


def cookie_name(request: Request) -> str:
    """The name of the cookie: browsers send the cookies of all ports of a machine to each of them, so consoles
    differ."""
    return f"metatxn-console-{request.url.port or 0}"


def local_url(url: str) -> str:
    """The URL if it is a page of this console, and not of another site."""
    parts = urlsplit(url)
    is_here = not parts.scheme and not parts.netloc and (parts.path + "/").startswith(f"{PATH}/")
    return url if is_here else f"{PATH}/"


def url_before(request: Request) -> str:
    """The page that a form was on, as the browser says it; the first one if it does not."""
    parts = urlsplit(request.headers.get("referer", ""))
    if parts.netloc != request.headers.get("host"):
        return f"{PATH}/"
    return local_url(parts._replace(scheme="", netloc="", fragment="").geturl())


def comes_from_here(request: Request) -> bool:
    """Whether a change was asked for by a page of this console. Browsers say so themselves, and no page can change what
    they say; without either header the caller is not a browser, or a very old one."""
    said = request.headers.get("sec-fetch-site")
    if said is not None:
        return said == _SAME
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc == request.headers.get("host")


def comes_from_elsewhere(request: Request) -> bool:
    """Whether a link from another site was followed, so that the browser has kept the cookie to itself."""
    said = request.headers.get("sec-fetch-site", _SAME)
    return request.headers.get("sec-fetch-mode") == "navigate" and said not in (_SAME, "none")
