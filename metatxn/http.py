"""Requests to the services: problems become errors, redirects are followed, what may be repeated is.

A failed attempt is one of three things, and that alone decides about the next one:

    nothing happened       connection refused; a problem that is retriable and definite    always tried again
    anything may have      connection lost, no answer in time, OUTCOME_UNKNOWN             only if `Call.idempotent`
    answered               every other problem                                             never

An `Http` may be used from any number of threads. It does not survive a fork.
"""

from __future__ import annotations

import functools
import json
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception

from metatxn.errors import InvalidArgument, MetatxnError, NotOwner, OutcomeUnknown, ServiceUnreachable, from_problem

MAX_REDIRECTS = 5
KEEPALIVE_S = 30
"""Shorter than the services' own 75 s, so that an idle connection is dropped here first."""
MAX_CONNECTIONS = 100
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


class Endpoint(Protocol):
    """Where a request goes. Asked again before every attempt."""

    def url(self) -> str: ...

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

    def url(self) -> str:
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
    def __init__(
        self,
        token: str | None,
        request_timeout_s: float,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        *,
        ca: str | None = None,
        only_tls: bool = False,
    ) -> None:
        """`ca` is a PEM file of authorities to trust in place of the usual ones. With `only_tls` nothing is sent to a
        URL without TLS, wherever a service sends us."""
        assert request_timeout_s > 0
        self._only_tls = only_tls
        self.sleep = sleep
        self._timeout_s = request_timeout_s
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {token}"} if token else {},
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=KEEPALIVE_S),
            verify=_ssl_context(ca),
            transport=transport,
        )

    def close(self) -> None:
        self._client.close()

    def request(self, endpoint: Endpoint, call: Call, *, patient: bool = True) -> httpx.Response:
        """A 2xx answer. Raises `MetatxnError`, the last attempt's, when `request_timeout_s` is over; impatient: the
        only attempt's."""
        deadline = time.monotonic() + self._timeout_s + call.wait_s

        def over(state: RetryCallState) -> bool:
            return not patient or time.monotonic() + state.upcoming_sleep >= deadline

        retrying = Retrying(
            retry=retry_if_exception(lambda error: _may_repeat(error, call)),
            wait=_pause,
            stop=over,
            sleep=self.sleep,
            reraise=True,
        )
        return retrying(self._attempt, endpoint, call, deadline)

    def _attempt(self, endpoint: Endpoint, call: Call, deadline: float) -> httpx.Response:
        base, location = endpoint.url(), None
        for _ in range(MAX_REDIRECTS):
            response = self._send(endpoint, base, location, call, deadline)
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

    def _send(self, endpoint: Endpoint, base: str, location: str | None, call: Call, deadline: float) -> httpx.Response:
        if self._only_tls and not (location or base).startswith("https://"):
            raise ServiceUnreachable(
                f"{location or base} has no TLS, and the services were asked for over TLS",
                action="Start every service with --tls-cert and --tls-key, and give https:// to --advertise-url.",
                retriable=False,
            )
        params = {name: value for name, value in call.params.items() if value is not None}
        try:
            return self._client.request(
                call.method,
                location or base + call.path,
                params=params if location is None else None,
                content=call.content,
                headers={"Content-Type": call.content_type} if call.content is not None else None,
                timeout=self._attempt_timeout(call, deadline),
            )
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ServiceUnreachable(f"{base!r} is not a URL of a service: {error}", retriable=False) from error
        except httpx.TransportError as error:
            endpoint.failed(base)
            raise _transport_failure(error, base, call) from error
        except RuntimeError as error:
            if not self._client.is_closed:
                raise
            raise InvalidArgument("this client was closed", action="Connect again.") from error

    def _attempt_timeout(self, call: Call, deadline: float) -> httpx.Timeout:
        """What can be repeated is given up half-way, so that a process that hangs leaves time to ask another one."""
        left = max(deadline - time.monotonic(), 0.001)
        share = min(left, self._timeout_s / 2 + call.wait_s) if call.idempotent else left
        return httpx.Timeout(share, connect=min(share, 5))


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


def _pause(state: RetryCallState) -> float:
    """Doubling with jitter, and at least what `Retry-After` asks for."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after_s if isinstance(error, MetatxnError) else None
    doubled: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(1 << min(state.attempt_number - 1, 16)))
    return max(doubled * random.uniform(0.5, 1), asked or 0.0)


def _transport_failure(error: httpx.TransportError, base: str, call: Call) -> MetatxnError:
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
