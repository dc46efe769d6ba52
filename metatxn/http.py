"""Requests to the services: problems become errors, redirects are followed, what may be repeated is.

A failed attempt is one of three things, and that alone decides about the next one:

    nothing happened       connection refused; a problem that is retriable and definite    always tried again
    anything may have      connection lost, no answer in time, OUTCOME_UNKNOWN             only if `Call.idempotent`
    answered               every other problem                                             never

Giving up says `OutcomeUnknown` when one of the attempts may have done something, however definite the last one was.
Time is the event loop's, and the network and the randomness are handed in: a simulation brings its own.
"""

from __future__ import annotations

import asyncio
import functools
import json
import random
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from metatxn.errors import (
    InvalidArgument,
    MetatxnError,
    NotAllowed,
    NotOwner,
    OutcomeUnknown,
    ServiceUnreachable,
    Unauthenticated,
    from_problem,
)

MAX_REDIRECTS = 5
KEEPALIVE_S = 30
"""Shorter than the services' own 75 s, so that an idle connection is dropped here first."""
MAX_CONNECTIONS = 100
CONNECT_TIMEOUT_S = 5.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


class Endpoint(Protocol):
    """Where a request goes. Asked again before every attempt."""

    async def url(self) -> str: ...

    def failed(self, url: str) -> None:
        """Nothing answered at `url`."""

    def unavailable(self, url: str) -> None:
        """What answers at `url` cannot serve this now; somebody else may."""

    def moved(self, url: str) -> None:
        """The services sent us on to `url`, and it answered."""


@dataclass(frozen=True, slots=True)
class FixedEndpoint:
    """One URL, whatever happens."""

    base: str

    async def url(self) -> str:
        return self.base

    def failed(self, url: str) -> None: ...

    def unavailable(self, url: str) -> None: ...

    def moved(self, url: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Call:
    """One request, before it is known where it goes. `path` is encoded already (see `path_of`)."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    content: bytes | None = None
    content_type: str = "application/json"
    idempotent: bool = True
    wait_s: float = 0
    """How long the service may hold the answer back (a long poll)."""


def path_of(*parts: str) -> str:
    """`/v1/…` with every part percent-encoded as one path segment."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def json_body(body: Mapping[str, Any]) -> bytes:
    """Without the fields that are None: absent and null mean the same in every request."""
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


class Http:
    """For one event loop."""

    def __init__(
        self,
        token: str | None,
        request_timeout_s: float,
        transport: httpx.AsyncBaseTransport | None,
        randomness: random.Random,
        *,
        ca: str | None = None,
        only_tls: bool = False,
    ) -> None:
        """`ca` is a PEM file of authorities to trust in place of the usual ones. With `only_tls` nothing is sent to a
        URL without TLS, wherever a service sends us."""
        assert request_timeout_s > 0
        self._only_tls = only_tls
        self._timeout_s = request_timeout_s
        self._randomness = randomness
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {token}"} if token else {},
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=KEEPALIVE_S),
            verify=_ssl_context(ca),
            transport=transport,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def request(self, endpoint: Endpoint, call: Call, *, patient: bool = True) -> httpx.Response:
        """A 2xx answer. Raises `MetatxnError`, the last attempt's, when `request_timeout_s` is over; impatient: the
        only attempt's."""
        deadline = _now() + self._timeout_s + call.wait_s
        unanswered: list[MetatxnError] = []

        def over(state: RetryCallState) -> bool:
            return not patient or _now() + state.upcoming_sleep >= deadline

        async def attempt() -> httpx.Response:
            try:
                return await self._attempt(endpoint, call, deadline)
            except MetatxnError as error:
                if not error.definite:
                    unanswered.append(error)
                raise

        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: _may_repeat(error, call)),
            wait=self._pause,
            stop=over,
            sleep=asyncio.sleep,
            reraise=True,
        )
        try:
            return await retrying(attempt)
        except MetatxnError as error:
            if unanswered and error.definite and (self._client.is_closed or _says_nothing_of_earlier_attempts(error)):
                raise OutcomeUnknown(f"{unanswered[0].detail}; and then: {error.detail}", **error.members) from error
            raise

    def _pause(self, state: RetryCallState) -> float:
        """Doubling with jitter, and at least what `Retry-After` asks for."""
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after_s if isinstance(error, MetatxnError) else None
        doubled: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(1 << min(state.attempt_number - 1, 16)))
        return max(doubled * self._randomness.uniform(0.5, 1), asked or 0.0)

    async def _attempt(self, endpoint: Endpoint, call: Call, deadline: float) -> httpx.Response:
        if self._client.is_closed:
            raise InvalidArgument("this client was closed", action="Connect again.")
        base, location = await endpoint.url(), None
        for _ in range(MAX_REDIRECTS):
            response = await self._send(endpoint, base, location, call, deadline)
            if response.status_code != HTTPStatus.TEMPORARY_REDIRECT:
                break
            base, location = _redirect(response, call)
        else:
            raise NotOwner(f"{call.path} was redirected {MAX_REDIRECTS} times, at last to {base}")
        if not response.is_success:
            if response.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
                endpoint.unavailable(base)
            raise _error_of(response)
        if location is not None:
            endpoint.moved(base)
        return response

    async def _send(
        self, endpoint: Endpoint, base: str, location: str | None, call: Call, deadline: float
    ) -> httpx.Response:
        if self._only_tls and not (location or base).startswith("https://"):
            raise ServiceUnreachable(
                f"{location or base} has no TLS, and the services were asked for over TLS",
                action="Start every service with --tls-cert and --tls-key, and give https:// to --advertise-url.",
                retriable=False,
            )
        params = {name: value for name, value in call.params.items() if value is not None}
        time_s = self._attempt_time_s(call, deadline)
        # Until there is a connection nothing was sent, so that must fail before the time of the attempt is over.
        connecting_s = min(time_s / 2, CONNECT_TIMEOUT_S)
        try:
            async with asyncio.timeout(time_s):
                return await self._client.request(
                    call.method,
                    location or base + call.path,
                    params=params if location is None else None,
                    content=call.content,
                    headers={"Content-Type": call.content_type} if call.content is not None else None,
                    timeout=httpx.Timeout(None, connect=connecting_s, pool=connecting_s),
                )
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ServiceUnreachable(f"{base!r} is not a URL of a service: {error}", retriable=False) from error
        except (httpx.TransportError, TimeoutError) as error:
            endpoint.failed(base)
            raise _transport_failure(error, base, call) from error

    def _attempt_time_s(self, call: Call, deadline: float) -> float:
        """What can be repeated is given up half-way, so that a process that hangs leaves time to ask another one."""
        left = max(deadline - _now(), 0.001)
        return min(left, self._timeout_s / 2 + call.wait_s) if call.idempotent else left


def _now() -> float:
    return asyncio.get_running_loop().time()


@functools.cache
def _ssl_context(ca: str | None) -> ssl.SSLContext:
    """Loading the certificates costs 20 ms: once per process, not once per client. Raises `InvalidArgument`."""
    if ca is None:
        return httpx.create_ssl_context()
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidArgument(
            f"ca: {ca} cannot be used: {error}", action="Give a PEM file of certificates.", field="ca"
        ) from None


def _may_repeat(error: BaseException, call: Call) -> bool:
    if not isinstance(error, MetatxnError):
        return False
    if error.definite:
        return error.retriable
    return call.idempotent and error.members.get("status") != HTTPStatus.INTERNAL_SERVER_ERROR


def _says_nothing_of_earlier_attempts(error: MetatxnError) -> bool:
    """It was refused at the door. Every other problem is the answer of somebody who looked: a segment knows the
    sequences it has seen, a header its state."""
    return error.retriable or isinstance(error, NotAllowed | Unauthenticated)


def _transport_failure(error: httpx.TransportError | TimeoutError, base: str, call: Call) -> MetatxnError:
    reason = str(error) or type(error).__name__
    if (refused := _tls_failure(error)) is not None:
        return ServiceUnreachable(
            f"the certificate of {base} is not trusted: {refused}",
            action="Check the URL, and name the authority that signed it: ca= in Python, --ca on the command line.",
            retriable=False,
        )
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return ServiceUnreachable(f"nothing answers at {base}: {reason}")
    if call.method == "GET":
        return ServiceUnreachable(f"{base} did not answer {call.path}: {reason}")
    return OutcomeUnknown(f"{base} did not answer {call.method} {call.path}: {reason}")


def _tls_failure(error: BaseException) -> str | None:
    """What was wrong with the server's certificate, when that was it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        cause = cause.__cause__ or cause.__context__
    return None


def _redirect(response: httpx.Response, call: Call) -> tuple[str, str | None]:
    """Base URL and full URL of where a 307 sends us. A `Location` without a path means the same path there."""
    target = response.headers.get("Location")
    if not target:
        raise NotOwner(f"{response.url} redirects nowhere")
    url = response.url.join(target)
    base = f"{url.scheme}://{url.netloc.decode('ascii')}"
    if urlsplit(str(url)).path in ("", "/"):
        params = {name: value for name, value in call.params.items() if value is not None}
        url = httpx.URL(base + call.path, params=params)
    elif not url.query:
        url = url.copy_with(query=response.url.query)
    return base, str(url)


def _error_of(response: httpx.Response) -> MetatxnError:
    try:
        error = from_problem(response.json(), _retry_after(response))
        error.members.setdefault("status", response.status_code)
    except (ValueError, KeyError, TypeError):
        base = f"{response.url.scheme}://{response.url.netloc.decode('ascii')}"
        return ServiceUnreachable(
            f"{base} answered {response.status_code} to {response.url.path}, and not as a metatxn service",
            retriable=response.status_code in (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE),
        )
    return error


def _retry_after(response: httpx.Response) -> float | None:
    try:
        return max(0.0, float(response.headers.get("Retry-After", "")))
    except ValueError:
        return None


def json_of(response: httpx.Response) -> Any:
    """The JSON of a 2xx answer. Raises `ServiceUnreachable` when it is none: some other server listens there."""
    try:
        return response.json()
    except ValueError:
        raise ServiceUnreachable(
            f"{response.url} answered no JSON, so it is no metatxn service", retriable=False
        ) from None
