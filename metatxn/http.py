"""Requests to the services: problems become errors, redirects are followed, what may be repeated is.

A failed attempt is one of three things, and that alone decides about the next one:

    nothing happened       not sent; a problem that is retriable and definite                    always tried again
    anything may have      connection lost, no answer in time, OUTCOME_UNKNOWN, a gateway's 5xx  only if `idempotent`
    answered               every other problem                                                   never

Giving up says `OutcomeUnknown` when one of the attempts may have done something, however definite the last one was,
unless that one is the last word on the others as well (`Call.settled_by`).

So many requests are on their way at once and no more; the next ones wait in the order in which they came. That time
is nobody's fault but ours, so the clock of a request stands still meanwhile, and what never left was certainly not
done. Time is the event loop's, and the network and the randomness are handed in: a simulation brings its own.
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
"""Requests at once in each of the `QUEUES`."""
QUEUES = ("calls", "long polls", "directory")
CONNECT_TIMEOUT_S = 5.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


class Endpoint(Protocol):
    """Where a request goes. Asked again before every attempt."""

    async def url(self) -> str: ...

    def failed(self, url: str) -> None:
        """Nothing answered at `url`."""

    def unavailable(self, url: str) -> bool:
        """What answers at `url` cannot serve this now. Whether somebody else can be asked at once."""

    def moved(self, url: str) -> None:
        """The services sent us on to `url`, and it answered."""


@dataclass(frozen=True, slots=True)
class FixedEndpoint:
    """One URL, whatever happens."""

    base: str

    async def url(self) -> str:
        return self.base

    def failed(self, url: str) -> None: ...

    def unavailable(self, url: str) -> bool:
        return False

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
    settled_by: tuple[type[MetatxnError], ...] = ()
    """Refusals that are also the last word on earlier attempts which nobody has answered: none of them has done
    anything, nor will it."""
    for_directory: bool = False
    """Others wait for its answer to know where to go, so it does not wait behind them."""

    @property
    def queue(self) -> str:
        """Where it waits for its turn. What is held back for a second must not hold up a commit."""
        if self.for_directory:
            return "directory"
        return "long polls" if self.wait_s else "calls"


def path_of(*parts: str) -> str:
    """`/v1/…` with every part percent-encoded as one path segment."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def json_body(body: Mapping[str, Any]) -> bytes:
    """Without the fields that are None: absent and null mean the same in every request."""
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


@dataclass(slots=True)
class _Request:
    """A call with all of its attempts. `end`: when its time is over."""

    endpoint: Endpoint
    call: Call
    end: float
    unanswered: MetatxnError | None = None
    """The first attempt that may have done something."""
    last: MetatxnError | None = None
    """What became of the attempt before."""
    elsewhere: bool = False
    """The next attempt goes to somebody who has not been asked yet."""

    @property
    def left_s(self) -> float:
        return self.end - _now()


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
        self.timeout_s = request_timeout_s
        self._only_tls = only_tls
        self._randomness = randomness
        self._turns = {queue: asyncio.Semaphore(MAX_ON_THEIR_WAY) for queue in QUEUES}
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connections = Connections(headers, _ssl_context(ca), transport)

    async def close(self) -> None:
        await self._connections.close()

    async def request(self, endpoint: Endpoint, call: Call, *, patient: bool = True) -> httpx.Response:
        """A 2xx answer. Raises `MetatxnError`, the last attempt's, when `request_timeout_s` is over, without the time
        in which this waits for others; impatient: the only attempt's."""
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
                raise OutcomeUnknown(f"{first.detail}; and then: {error.detail}", **error.members) from error
            raise

    @contextlib.asynccontextmanager
    async def _turn(self, request: _Request) -> AsyncIterator[None]:
        came = _now()
        async with self._turns[request.call.queue]:
            request.end += _now() - came
            yield

    def _pause(self, request: _Request, state: RetryCallState) -> float:
        """Doubling with jitter, and at least what `Retry-After` asks for, unless it is somebody else's turn."""
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
            raise NotOwner(f"{request.call.path} was redirected {MAX_REDIRECTS} times, at last to {base}")
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
            raise ServiceUnreachable("no service has told in time which others there are") from None

    async def _send(self, request: _Request, base: str, location: str | None) -> httpx.Response:
        call = request.call
        if self._only_tls and not (location or base).startswith("https://"):
            raise ServiceUnreachable(
                f"{location or base} has no TLS, and the services were asked for over TLS",
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
        """What can be repeated is given up half-way, so that a process that hangs leaves time to ask another one."""
        return self.timeout_s / 2 + request.call.wait_s if request.call.idempotent else request.left_s


class _Sent:
    """Whether a request has begun to leave. From then on its answer is waited for no longer than `wait_s`.

    It has, unless the transport tells that it still connects, as httpx's own does: by this `trace`.
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
    """Before the attempt behind this one, counted from 1: doubling, with jitter."""
    doubled: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(1 << min(attempt - 1, 16)))
    return doubled * randomness.uniform(0.5, 1)


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
    status = error.members.get("status")
    if status is not None and status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return False  # a part of it was refused for good, and another part may have been carried out
    return call.idempotent and status != HTTPStatus.INTERNAL_SERVER_ERROR


def _not_connected(error: Exception, base: str) -> MetatxnError:
    if (refused := _tls_failure(error)) is not None:
        return ServiceUnreachable(
            f"the certificate of {base} is not trusted: {refused}",
            action="Check the URL, and name the authority that signed it: ca= in Python, --ca on the command line.",
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
        url = httpx.URL(base + call.path, params=_given(call.params))
    elif not url.query:
        url = url.copy_with(query=response.url.query)
    return base, str(url)


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}
