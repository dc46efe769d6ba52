"""Requests to the services: problems become errors, redirects are followed, and requests are repeated where that is
allowed.

A failed attempt is one of three kinds, which alone decides whether there is another attempt:

    nothing happened       not sent; a problem that is retriable and definite                    always tried again
    anything may have      connection lost, no answer in time, OUTCOME_UNKNOWN, a gateway's 5xx  only if `idempotent`
    answered               every other problem                                                   never

When a request is given up, the error is `OutcomeUnknown` if one of the attempts may have had an effect, however
definite the last one was, unless the last one settles the others as well (`Call.settled_by`).

The number of requests in flight at the same time is limited; further ones wait in the order in which they came. This
time does not count towards the timeout of a request, and a request that was never sent certainly had no effect. Time is
the event loop's, and the network and the randomness are parameters, so that a simulation can replace them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from metatxn.answers import QUESTION, error_of
from metatxn.transport import Connections
from metatxn.wire.errors import InvalidArgument, MetatxnError, NotOwner, OutcomeUnknown, ServiceUnreachable

MAX_REDIRECTS = 5
MAX_ON_THEIR_WAY = 100
"""The most requests in flight in each of the `QUEUES`."""
QUEUES = ("calls", "long polls", "directory")
CONNECT_TIMEOUT_S = 5.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


class Endpoint(Protocol):
    """Where a request goes. It is asked again before every attempt."""

    async def url(self) -> str: ...

    def failed(self, url: str) -> None:
        """Nothing answered at `url`."""

    def unavailable(self, url: str) -> bool:
        """The service at `url` cannot serve this now. Returns whether another one can be asked at once."""

    def moved(self, url: str) -> None:
        """The services redirected the client to `url`, and it answered."""


@dataclass(frozen=True, slots=True)
class FixedEndpoint:
    """An endpoint that is always the same URL."""

    base: str

    async def url(self) -> str:
        return self.base

    def failed(self, url: str) -> None: ...

    def unavailable(self, url: str) -> bool:
        return False

    def moved(self, url: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Call:
    """One request, before it is known where it goes. `path` is already encoded (see `path_of`)."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    content: bytes | None = None
    content_type: str = "application/json"
    idempotent: bool = True
    wait_s: float = 0
    """How long the service may hold the answer back (a long poll)."""
    settled_by: tuple[type[MetatxnError], ...] = ()
    """Refusals that also settle earlier attempts without an answer: none of them had an effect, nor will have one."""
    for_directory: bool = False
    """Others wait for its answer to know where to go, so it does not wait for them."""

    @property
    def queue(self) -> str:
        """The queue in which it waits for its turn. A request that is held back for a second must not delay a
        commit."""
        if self.for_directory:
            return "directory"
        return "long polls" if self.wait_s else "calls"


def path_of(*parts: str) -> str:
    """`/v1/…` with every part percent-encoded as one path segment."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def json_body(body: Mapping[str, Any]) -> bytes:
    """The body without the fields that are None: in every request, absent and null mean the same."""
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


@dataclass(slots=True)
class _Request:
    """A call with all of its attempts. `end` is the time at which it is given up."""

    endpoint: Endpoint
    call: Call
    end: float
    unanswered: MetatxnError | None = None
    """The error of the first attempt that may have had an effect."""
    last: MetatxnError | None = None
    """The error of the previous attempt."""
    elsewhere: bool = False
    """The next attempt goes to a service that has not been asked yet."""

    @property
    def left_s(self) -> float:
        return self.end - _now()


class Http:
    """The HTTP layer of a client, for one event loop."""

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
        URL without TLS, even if a service redirects there."""
        assert request_timeout_s > 0
        self.timeout_s = request_timeout_s
        self._only_tls = only_tls
        self._randomness = randomness
        self._turns = {queue: asyncio.Semaphore(MAX_ON_THEIR_WAY) for queue in QUEUES}
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connections = Connections(headers, _ssl_context(ca), transport)

    async def close(self) -> None:
        await self._connections.close()

    async def request(self, endpoint: Endpoint, call: Call, *, patient: bool = True) -> httpx.Response:
        """A 2xx answer. Raises the `MetatxnError` of the last attempt once `request_timeout_s` is over; the time in
        which this waits for its turn does not count. With `patient=False` there is only one attempt."""
        request = _Request(endpoint, call, _now() + self.timeout_s + call.wait_s)

        def over(state: RetryCallState) -> bool:
            return not patient or state.upcoming_sleep >= request.left_s

        async def attempt() -> httpx.Response:
            async with self._turn(request):
                try:
                    return await self._attempt(request)
                except MetatxnError as error:
                    request.last = error
                    if not error.definite:
                        request.unanswered = request.unanswered or error
                    raise

        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: _may_repeat(error, call)),
            wait=functools.partial(self._pause, request),
            stop=over,
            sleep=asyncio.sleep,
            reraise=True,
        )
        try:
            return await retrying(attempt)
        except MetatxnError as error:
            first = request.unanswered
            if first is not None and error.definite and not isinstance(error, call.settled_by):
                raise OutcomeUnknown(f"{first.detail}; then: {error.detail}", **error.members) from error
            raise

    @contextlib.asynccontextmanager
    async def _turn(self, request: _Request) -> AsyncIterator[None]:
        came = _now()
        async with self._turns[request.call.queue]:
            request.end += _now() - came
            yield

    def _pause(self, request: _Request, state: RetryCallState) -> float:
        """A pause that doubles, with jitter, and is at least what `Retry-After` asks for, unless another service is
        asked next."""
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after_s if isinstance(error, MetatxnError) and not request.elsewhere else None
        return max(pause_s(state.attempt_number, self._randomness), asked or 0.0)

    async def _attempt(self, request: _Request) -> httpx.Response:
        if self._connections.closed:
            raise InvalidArgument("this client was closed", action="Connect again.")
        request.elsewhere = False
        base, location = await self._where(request), None
        for _ in range(MAX_REDIRECTS):
            response = await self._send(request, base, location)
            if response.status_code != HTTPStatus.TEMPORARY_REDIRECT:
                break
            base, location = _redirect(response, request.call)
        else:
            raise NotOwner(f"{request.call.path} was redirected {MAX_REDIRECTS} times, the last time to {base}")
        if not response.is_success:
            if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                request.elsewhere = request.endpoint.unavailable(base)
            raise error_of(response)
        if location is not None:
            request.endpoint.moved(base)
        return response

    async def _where(self, request: _Request) -> str:
        try:
            async with asyncio.timeout_at(request.end):
                return await request.endpoint.url()
        except TimeoutError:
            raise ServiceUnreachable("no service provided the list of services in time") from None

    async def _send(self, request: _Request, base: str, location: str | None) -> httpx.Response:
        call = request.call
        if self._only_tls and not (location or base).startswith("https://"):
            raise ServiceUnreachable(
                f"{location or base} does not use TLS, but the client was given an https:// URL",
                action="Start every service with --tls-cert and --tls-key, and give https:// to --advertise-url.",
                retriable=False,
            )
        if request.left_s <= 0:
            raise request.last or ServiceUnreachable(f"there was no time left to send {call.path} to {base}")
        connecting_s = min(self.timeout_s / 4, CONNECT_TIMEOUT_S)
        try:
            async with self._connections.one() as client, asyncio.timeout_at(request.end) as clock:
                sent = _Sent(clock, request.end, self._time_for_an_answer_s(request))
                return await client.request(
                    call.method,
                    location or base + call.path,
                    params=_given(call.params) if location is None else None,
                    content=call.content,
                    headers={"Content-Type": call.content_type} if call.content is not None else None,
                    timeout=httpx.Timeout(None, connect=connecting_s, pool=connecting_s),
                    extensions={"trace": sent},
                )
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ServiceUnreachable(f"{base!r} is not a URL of a service: {error}", retriable=False) from error
        except (httpx.TransportError, TimeoutError) as error:
            request.endpoint.failed(base)
            if not sent.yes or isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
                raise _not_connected(error, base) from error
            raise _no_answer(error, base, call) from error

    def _time_for_an_answer_s(self, request: _Request) -> float:
        """A request that can be repeated is given up half-way, so that a process that hangs leaves time to ask another
        one."""
        return self.timeout_s / 2 + request.call.wait_s if request.call.idempotent else request.left_s


class _Sent:
    """Whether a request has begun to leave. From then on its answer is waited for no longer than `wait_s`.

    It has, unless the transport reports that it is still connecting, as httpx's own does through this `trace`.
    """

    def __init__(self, clock: asyncio.Timeout, end: float, wait_s: float) -> None:
        self._clock = clock
        self._end = end
        self._wait_s = wait_s
        self._now()

    async def __call__(self, event: str, _: Mapping[str, Any]) -> None:
        if event.endswith(".connect_tcp.started"):
            self.yes = False
            self._clock.reschedule(self._end)
        elif event.endswith(".send_request_headers.started"):
            self._now()

    def _now(self) -> None:
        self.yes = True
        self._clock.reschedule(min(self._end, _now() + self._wait_s))


def _now() -> float:
    return asyncio.get_running_loop().time()


def pause_s(attempt: int, randomness: random.Random) -> float:
    """The pause after this attempt, counted from 1: it doubles, with jitter."""
    doubled: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(1 << min(attempt - 1, 16)))
    return doubled * randomness.uniform(0.5, 1)


@functools.cache
def _ssl_context(ca: str | None) -> ssl.SSLContext:
    """Loading the certificates takes 20 ms, so they are loaded once per process instead of once per client. Raises
    `InvalidArgument`."""
    if ca is None:
        return httpx.create_ssl_context()
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # ssl.SSLError is an OSError
        raise InvalidArgument(
            f"ca: {ca} cannot be used: {error}", action="Give a PEM file of certificates.", field="ca"
        ) from None


def _may_repeat(error: BaseException, call: Call) -> bool:
    if not isinstance(error, MetatxnError):
        return False
    if error.definite:
        return error.retriable
    status = error.members.get("status")
    if status is not None and status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return False  # one part was refused finally, and another part may have been carried out
    return call.idempotent and status != HTTPStatus.INTERNAL_SERVER_ERROR


def _not_connected(error: Exception, base: str) -> MetatxnError:
    if (refused := _tls_failure(error)) is not None:
        return ServiceUnreachable(
            f"the certificate of {base} is not trusted: {refused}",
            action="Check the URL, and name the authority of the certificate: ca= in Python, --ca on the command line.",
            retriable=False,
        )
    return ServiceUnreachable(f"nothing answers at {base}: {_reason(error)}")


def _no_answer(error: Exception, base: str, call: Call) -> MetatxnError:
    if call.method == QUESTION:
        return ServiceUnreachable(f"{base} did not answer {call.path}: {_reason(error)}")
    return OutcomeUnknown(f"{base} did not answer {call.method} {call.path}: {_reason(error)}")


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _tls_failure(error: BaseException) -> str | None:
    """The reason why the server's certificate was refused, if that was the cause."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        cause = cause.__cause__ or cause.__context__
    return None


def _redirect(response: httpx.Response, call: Call) -> tuple[str, str | None]:
    """The base URL and the full URL of a 307's target. A `Location` without a path means the same path there."""
    target = response.headers.get("Location")
    if not target:
        raise NotOwner(f"{response.url} redirects without a Location")
    url = response.url.join(target)
    base = f"{url.scheme}://{url.netloc.decode('ascii')}"
    if urlsplit(str(url)).path in ("", "/"):
        url = httpx.URL(base + call.path, params=_given(call.params))
    elif not url.query:
        url = url.copy_with(query=response.url.query)
    return base, str(url)


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}
