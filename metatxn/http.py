"""Requests to the services: problems become errors, redirects are followed, and requests are repeated where that is
allowed.

A failed attempt is one of three kinds, which alone decides whether there is another attempt:

    nothing happened       not sent; a problem that is retriable and definite                    always tried again
    anything may have      connection lost, no answer in time, OUTCOME_UNKNOWN, a gateway's 5xx  only if `idempotent`
    answered               every other problem                                                   never

When a request is given up, the error is `OutcomeUnknown` if one of the attempts may have had an effect, however
definite the last one was, unless the last one settles the others as well (`Call.settled_by`).

An address that a service has named, and that this client has never reached, is given up after `UNREACHED_S` seconds: it
is most likely one that cannot be reached from here, and no retry changes that. One that was reached before may be that
of a service that is being restarted.

The number of requests in flight at the same time is limited; further ones wait in the order in which they came. This
time does not count towards the timeout of a request, and a request that was never sent certainly had no effect. Time is
the event loop's, and the network and the randomness are parameters, so that a simulation can replace them.
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
from urllib.parse import quote, urljoin, urlsplit

from metatxn.answers import QUESTION, error_of
from metatxn.transport.api import Answer, BadUrl, Headers, NoAnswer, Request, Transport, Unsent
from metatxn.transport.pool import HttpTransport
from metatxn.wire.errors import InvalidArgument, MetatxnError, NotOwner, OutcomeUnknown, ServiceUnreachable
from metatxn.wire.listeners import LISTENER_HEADER

MAX_REDIRECTS = 5
MAX_ON_THEIR_WAY = 100
"""The most requests in flight in each of the `QUEUES`."""
QUEUES = ("calls", "long polls", "directory")
CONNECT_TIMEOUT_S = 5.0
UNREACHED_S = 2.5
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


class Endpoint(Protocol):
    """Where a request goes. It is asked again before every attempt."""

    async def url(self) -> str: ...

    def failed(self, url: str) -> None:
        """Nothing answered at `url`."""

    def unavailable(self, url: str) -> bool:
        """The service at `url` cannot serve this now. Returns whether another one can be asked at once."""

    def answered(self, url: str) -> None:
        """The service at `url` has done what was asked, perhaps after a redirect."""


@dataclass(frozen=True, slots=True)
class FixedEndpoint:
    """An endpoint that is always the same URL."""

    base: str

    async def url(self) -> str:
        return self.base

    def failed(self, url: str) -> None: ...

    def unavailable(self, url: str) -> bool:
        return False

    def answered(self, url: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Call:
    """One request, before its destination is known.  `path` is already encoded (see `path_of`)."""

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
    """Whether others wait for its answer to know where to go; then it does not wait for them."""

    @property
    def queue(self) -> str:
        """The queue in which the call waits for its turn. A request that is held back for a second must not delay a
        commit."""
        if self.for_directory:
            return "directory"
        return "long polls" if self.wait_s else "calls"


def path_of(*parts: str) -> str:
    """`/v1/…` with every part percent-encoded as one path segment."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def base_of(url: str) -> str:
    """The service that a URL leads to."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def json_body(body: Mapping[str, Any]) -> bytes:
    """The body without the fields that are None: in every request, absent and null mean the same."""
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


@dataclass(slots=True)
class Earlier:
    """What an earlier request for the same thing leaves to the next one: the time that is left, without waiting for a
    turn, and the error of an attempt that may have had an effect."""

    left_s: float
    unanswered: MetatxnError | None = None


@dataclass(slots=True)
class _Attempts:
    """A call with all of its attempts. `end` is the time at which it is given up."""

    endpoint: Endpoint
    call: Call
    end: float
    unanswered: MetatxnError | None = None
    """The error of the first attempt that may have had an effect."""
    last: MetatxnError | None = None
    """The error of the previous attempt."""
    elsewhere: bool = False
    """Whether the next attempt goes to a service that has not been asked yet."""
    unreached_since: float | None = None
    """When an address that was never reached was first tried, if nothing else has been wrong since."""

    @property
    def left_s(self) -> float:
        return self.end - _now()

    def failed(self, error: MetatxnError) -> None:
        self.last = error
        if "named_by" not in error.members:
            self.unreached_since = None
        if not error.definite:
            self.unanswered = self.unanswered or error

    def is_hopeless(self, pause_s: float) -> bool:
        """Whether the next attempt would begin too late to retry an address that was never reached."""
        return self.unreached_since is not None and _now() + pause_s - self.unreached_since >= UNREACHED_S

    def outcome(self) -> MetatxnError:
        """What the caller is told after the last attempt."""
        first, last = self.unanswered, self.last
        assert last is not None
        if first is None or not last.definite or isinstance(last, self.call.settled_by):
            return last
        unknown = OutcomeUnknown(f"{first.detail}; then: {last.detail}", **last.members)
        unknown.__cause__ = last
        return unknown


class Http:
    """The HTTP layer of a client, for one event loop."""

    def __init__(
        self,
        token: str | None,
        request_timeout_s: float,
        transport: Transport | None,
        randomness: random.Random,
        *,
        ca: str | None = None,
        only_tls: bool = False,
        listener: str | None = None,
    ) -> None:
        """`ca` is a PEM file of authorities to trust in place of the usual ones. With `only_tls` nothing is sent to a
        URL without TLS, even if a service redirects there. Services are asked for their addresses of `listener`."""
        assert request_timeout_s > 0
        self.timeout_s = request_timeout_s
        self._only_tls = only_tls
        self._randomness = randomness
        self._turns = {queue: asyncio.Semaphore(MAX_ON_THEIR_WAY) for queue in QUEUES}
        self._headers = Headers({"Authorization": f"Bearer {token}"} if token else {})
        if listener is not None:
            self._headers[LISTENER_HEADER] = listener
        self._named_by: dict[str, str] = {}
        """Addresses that were never reached, and the services that have named them."""
        self._reached: set[str] = set()
        self._transport = transport or HttpTransport(_authorities(ca))
        self._closed = False

    def learned(self, base: str, named_by: str) -> None:
        """The service at `named_by` has named the address `base`."""
        if base != named_by and base not in self._reached:
            self._named_by[base] = named_by

    async def close(self) -> None:
        """Close. Requests in flight fail. Idempotent."""
        self._closed = True
        await self._transport.close()

    async def request(
        self, endpoint: Endpoint, call: Call, *, patient: bool = True, earlier: Earlier | None = None
    ) -> Answer:
        """Return a 2xx answer. Raises the `MetatxnError` of the last attempt once `request_timeout_s` is over; the time
        in which this waits for its turn does not count. With `patient=False` there is only one attempt. `earlier` is
        what other requests have left, and is told what this one leaves."""
        earlier = earlier or Earlier(self.timeout_s)
        attempts = _Attempts(endpoint, call, _now() + earlier.left_s + call.wait_s, earlier.unanswered)
        try:
            return await self._until_answered(attempts, patient=patient)
        finally:
            earlier.left_s = attempts.left_s

    async def _until_answered(self, attempts: _Attempts, *, patient: bool) -> Answer:
        call = attempts.call
        turns = self._turns[call.queue]
        number = 1
        while True:
            came = _now()
            async with turns:
                attempts.end += _now() - came
                try:
                    return await self._attempt(attempts)
                except MetatxnError as error:
                    failure = error
            attempts.failed(failure)
            if not patient or not _may_repeat(failure, call):
                raise attempts.outcome()
            pause = self._pause(attempts, failure, number)
            if pause >= attempts.left_s or attempts.is_hopeless(pause):
                raise attempts.outcome()
            await asyncio.sleep(pause)
            number += 1

    def _pause(self, attempts: _Attempts, error: MetatxnError, number: int) -> float:
        """A pause that doubles, with jitter, and is at least what `Retry-After` asks for, unless another service is
        asked next."""
        asked = None if attempts.elsewhere else error.retry_after_s
        return max(pause_s(number, self._randomness), asked or 0.0)

    async def _attempt(self, attempts: _Attempts) -> Answer:
        if self._closed:
            raise InvalidArgument("this client was closed", action="Connect again.")
        attempts.elsewhere = False
        call = attempts.call
        base = await self._where(attempts)
        url = _url(base, call)
        for _ in range(MAX_REDIRECTS):
            answer = await self._send(attempts, base, url)
            if answer.status != HTTPStatus.TEMPORARY_REDIRECT:
                break
            named_by, (base, url) = base, _redirect(answer, call)
            self.learned(base, named_by)
        else:
            raise NotOwner(f"{call.path} was redirected {MAX_REDIRECTS} times, the last time to {base}")
        if not answer.ok:
            if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                attempts.elsewhere = attempts.endpoint.unavailable(base)
            raise error_of(answer)
        attempts.endpoint.answered(base)
        return answer

    async def _where(self, attempts: _Attempts) -> str:
        try:
            async with asyncio.timeout_at(attempts.end):
                return await attempts.endpoint.url()
        except TimeoutError:
            raise ServiceUnreachable("no service provided the list of services in time") from None

    async def _send(self, attempts: _Attempts, base: str, url: str) -> Answer:
        call = attempts.call
        if self._only_tls and not url.startswith("https://"):
            raise ServiceUnreachable(
                f"{url} does not use TLS, but the client was given an https:// URL",
                action="Start every service with --tls-cert and --tls-key, and give https:// to --advertise-url.",
                retriable=False,
            )
        if attempts.left_s <= 0:
            raise attempts.last or ServiceUnreachable(f"there was no time left to send {call.path} to {base}")
        headers = self._headers
        if call.content is not None:
            headers = Headers({**headers, "Content-Type": call.content_type})
        connect_s = min(self.timeout_s / 4, UNREACHED_S if base in self._named_by else CONNECT_TIMEOUT_S)
        answer_s = self._time_for_an_answer_s(attempts)
        began = _now()
        try:
            answer = await self._transport.send(
                Request(call.method, url, headers, call.content, connect_s, answer_s, attempts.end)
            )
        except BadUrl as error:
            raise ServiceUnreachable(f"{base!r} is not a URL of a service: {error}", retriable=False) from error
        except Unsent as error:
            attempts.endpoint.failed(base)
            failure = _not_connected(error, base, self._named_by.get(base))
            if "named_by" in failure.members:
                attempts.unreached_since = began if attempts.unreached_since is None else attempts.unreached_since
            raise failure from error
        except NoAnswer as error:
            attempts.endpoint.failed(base)
            raise _no_answer(error, base, call) from error
        if base not in self._reached:
            self._reached.add(base)
            self._named_by.pop(base, None)
        return answer

    def _time_for_an_answer_s(self, attempts: _Attempts) -> float:
        """How long to wait for an answer. A request that can be repeated is given up half-way, so that a process that
        hangs leaves time to ask another one."""
        return self.timeout_s / 2 + attempts.call.wait_s if attempts.call.idempotent else attempts.left_s


def _now() -> float:
    return asyncio.get_running_loop().time()


def pause_s(attempt: int, randomness: random.Random) -> float:
    """The pause after this attempt, counted from 1: it doubles, with jitter."""
    doubled: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(1 << min(attempt - 1, 16)))
    return doubled * randomness.uniform(0.5, 1)


@functools.cache
def _authorities(ca: str | None) -> ssl.SSLContext | None:
    """The authorities to trust; None stands for the usual ones. Raises `InvalidArgument`."""
    if ca is None:
        return None
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


def _not_connected(error: Exception, base: str, named_by: str | None) -> MetatxnError:
    if (refused := _tls_failure(error)) is not None:
        return ServiceUnreachable(
            f"the certificate of {base} is not trusted: {refused}",
            action="Check the URL, and name the authority of the certificate: ca= in Python, --ca on the command line.",
            retriable=False,
        )
    if named_by is not None:
        return ServiceUnreachable(
            f"nothing answers at {base}, the address that {named_by} names: {_reason(error)}",
            action="Start that service, or, if this is not its address from here, give it one: "
            "--advertise-url URL for all, or --advertise-url NAME=URL for clients of a listener.",
            address=base,
            named_by=named_by,
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


def _redirect(answer: Answer, call: Call) -> tuple[str, str]:
    """The base URL and the full URL of a 307's target. A `Location` without a path means the same path there."""
    target = answer.header("Location")
    if not target:
        raise NotOwner(f"{answer.url} redirects without a Location")
    parts = urlsplit(urljoin(answer.url, quote(target, safe="!#$%&'()*+,/:;=?@[]~")))
    base = f"{parts.scheme}://{parts.netloc}"
    if parts.path in ("", "/"):
        return base, _url(base, call)
    query = parts.query or urlsplit(answer.url).query
    return base, f"{base}{parts.path}" + (f"?{query}" if query else "")


def _url(base: str, call: Call) -> str:
    query = "&".join([f"{name}={_text(value)}" for name, value in call.params.items() if value is not None])
    return f"{base}{call.path}?{query}" if query else base + call.path


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return quote(str(value), safe="")
