"""The gate in front of a service: which requests may pass, and how large they may be.

    head: count and size    431       a request that is refused here has had no effect
    token                   401       `/healthz`, `/readyz` and `/docs` need none
    rate, requests at once  429       and the principal's quota
    `/admin/…`              403       requires the right admin, whatever the rest of the path is
    body: size, time        413, 408
    answer in time          504       the work continues, because cancelling it half-way would not settle its outcome

This is plain ASGI: a request that has no body and a known token costs some microseconds here. Without authentication
and without a rate nothing is hashed, and only the requests in progress are counted.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metatxn.service.answers import problem_response
from metatxn.service.audited import Audit
from metatxn.service.departure import ASKED
from metatxn.service.limits import Limits, RateLimit
from metatxn.service.quotas.quotas import Charge, Quotas
from metatxn.service.request_metrics import RequestMetrics
from metatxn.service.security.authentication import Authenticator
from metatxn.service.security.principal import ANYONE
from metatxn.service.slow_requests import SlowRequests
from metatxn.service.tracing import traced_request
from metatxn.wire import errors
from metatxn.wire.problems import Problem, problem_of

CALLER = "metatxn.caller"
"""The key of the principal in the scope of a request."""
BODY = "metatxn.body"
"""The key of the whole body in the scope of a request."""
LOST_BODY = "metatxn.lost_body"
"""The key in the scope of a request that names the type of a body and sends none, not even an empty one: something on
its way has lost the body, and for endpoints with an optional body the request now means something else."""
ADMIN_PATHS = "/admin/"
_OPEN_PATHS = frozenset({"/healthz", "/readyz", "/docs", "/openapi.json"})
_OPEN_ASSETS = "/docs-assets/"
log = structlog.get_logger()


class Gate:
    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        authenticator: Authenticator | None,
        metrics: RequestMetrics,
        audit: Audit | None = None,
        clock: Callable[[], float] = time.monotonic,
        open_below: Sequence[str] = (),
        quotas: Quotas | None = None,
    ) -> None:
        """Paths at or below `open_below` ask for tokens themselves, if they need any."""
        self._app = app
        self._open_paths = _OPEN_PATHS.union(open_below)
        self._open_below = (_OPEN_ASSETS, *(f"{path}/" for path in open_below))
        self._limits = limits
        self._authenticator = authenticator
        self._rate = RateLimit(limits.requests_per_second) if limits.requests_per_second else None
        self._metrics = metrics
        self._audit = audit or Audit()
        self._slow = SlowRequests(limits.slow_request_ms, metrics.clock)
        self._clock = clock
        self._quotas = quotas
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        measured = self._metrics.begin(scope)
        traced = traced_request(scope)
        try:
            await self._answer(scope, receive, measured.measuring(send))
        except Exception:
            measured.failed()
            raise
        finally:
            self._metrics.end(measured, scope["method"], traced.end(scope, measured) if traced else None)
            caller = scope.get(CALLER, ANYONE).name
            body = scope.pop(BODY, b"")  # an idle connection keeps its last scope
            self._audit.end(scope, measured.route, measured.status, caller, body)
            self._slow.end(scope, measured, caller, body)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            _check_head(scope, self._limits)
            charge = self._charged(scope) if self._admit(scope) else None
            self._enter()
        except Refused as refused:
            await refused.answer(scope, receive, send)
            return
        try:
            await self._let_through(scope, receive, send if charge is None else charge.counting(send), charge)
        finally:
            self._under_way -= 1

    # -- who ---------------------------------------------------------------------------------------------------

    def _admit(self, scope: Scope) -> bool:
        """Set the caller, also of a request that is refused because it lacks a right. Returns whether quotas apply to
        the request."""
        address = f"address {scope['client'][0] if scope.get('client') else ''}"
        path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")  # as the routes see it
        is_open = path in self._open_paths or path.startswith(self._open_below)
        if self._authenticator is None or is_open:
            self._count(address)
            scope[CALLER] = ANYONE
            return not is_open
        try:
            caller = self._authenticator.principal(scope["headers"])
        except errors.MetatxnError as error:
            self._count(address)
            log.info("request refused", path=path, client=address, reason=error.detail)
            raise Refused(problem_of(error), {"WWW-Authenticate": "Bearer"}) from None
        scope[CALLER] = caller
        self._count(f"principal {caller.name}")
        if path.startswith(ADMIN_PATHS) and not caller.superuser:
            raise Refused(problem_of(caller.lacks("the right admin", right="admin")))
        return True

    # -- how much ----------------------------------------------------------------------------------------------

    def _count(self, caller: str) -> None:
        if self._rate is not None and (wait_s := self._rate.wait_s(caller, self._clock())):
            raise Refused(
                _problem(errors.RateLimited, f"more than {self._limits.requests_per_second:g} requests per second"),
                {"Retry-After": str(math.ceil(wait_s))},
            )

    def _charged(self, scope: Scope) -> Charge | None:
        if self._quotas is None or not self._quotas.active:
            return None
        try:
            return self._quotas.begin(scope[CALLER].name, scope)
        except errors.RateLimited as error:
            raise Refused(problem_of(error), {"Retry-After": str(math.ceil(error.retry_after_s or 1))}) from None

    def _enter(self) -> None:
        if self._under_way >= self._limits.max_requests:
            raise Refused(_problem(errors.RateLimited, f"{self._under_way} requests are already in progress"))
        self._under_way += 1

    # -- through -----------------------------------------------------------------------------------------------

    async def _let_through(self, scope: Scope, receive: Receive, send: Send, charge: Charge | None) -> None:
        ASKED.set(receive)
        scope[BODY] = b""
        if _has_body(scope):
            try:
                body = await self._body(scope, receive)
            except Refused as refused:
                await refused.answer(scope, receive, send)
                return
            if body is None:
                return  # the client has disconnected
            scope[BODY] = body
            if charge is not None:
                charge.body(len(body))
            receive = _replayed(body, receive)
        elif _header(scope, b"content-type") is not None and _header(scope, b"content-length") is None:
            scope[LOST_BODY] = True
        await _InTime(scope, send).run(self._app, receive, self._limits.request_timeout_ms / 1000)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body, or None if the client disconnected before its end.

        Its length is counted as it arrives: `Content-Length` only helps to refuse early.
        """
        declared = _header(scope, b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > self._limits.max_body_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.body_timeout_ms / 1000):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if size > self._limits.max_body_bytes:
                        raise self._too_large()
                    chunks.append(chunk)
                    if not message.get("more_body", False):
                        return b"".join(chunks)
        except TimeoutError:
            detail = f"body: it did not arrive within {self._limits.body_timeout_ms} ms"
            action = "Send it again over a faster connection, or in smaller pieces."
            late = _problem(errors.InvalidArgument, detail, status=408, title="Request timeout", action=action)
            raise Refused(late.model_copy(update={"retriable": True}), {"Connection": "close"}) from None

    def _too_large(self) -> Refused:
        limit = self._limits.max_body_bytes
        return Refused(_problem(errors.PayloadTooLarge, f"a body may have at most {limit} bytes", limit_bytes=limit))


class Refused(Exception):
    """The request was answered at the gate."""

    def __init__(self, problem: Problem, headers: dict[str, str] | None = None) -> None:
        super().__init__(problem.detail)
        self._problem = problem
        self._headers = headers

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await problem_response(self._problem, self._headers)(scope, receive, send)


class _InTime:
    """Answers in place of an application that takes too long, without ending it; a later answer of the application is
    dropped."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._begun = False
        self._answering: asyncio.Task[None] | None = None

    async def run(self, app: ASGIApp, receive: Receive, timeout_s: float) -> None:
        timer = asyncio.get_running_loop().call_later(timeout_s, self._give_up, receive, timeout_s)
        try:
            await app(self._scope, receive, self._send_unless_late)
        finally:
            timer.cancel()
            if self._answering is not None:
                await self._answering

    async def _send_unless_late(self, message: Message) -> None:
        if self._answering is None:
            self._begun = True
            await self._send(message)

    def _give_up(self, receive: Receive, timeout_s: float) -> None:
        if self._begun:
            return
        log.warning("no answer in time", method=self._scope["method"], path=self._scope["path"], seconds=timeout_s)
        late = Refused(_problem(errors.OutcomeUnknown, f"there was no answer within {timeout_s:g} s"))
        self._answering = asyncio.create_task(late.answer(self._scope, receive, self._send))


def _check_head(scope: Scope, limits: Limits) -> None:
    headers = scope["headers"]
    size = 0
    for name, value in headers:
        size += len(name) + len(value)
    if len(headers) > limits.max_headers or size > limits.max_header_bytes:
        detail = f"headers: at most {limits.max_headers} with {limits.max_header_bytes} bytes together are accepted"
        raise Refused(_problem(errors.InvalidArgument, detail, status=431, title="Too many headers", field="headers"))


def _has_body(scope: Scope) -> bool:
    """Whether the request has a body: one without either header ends with its head (RFC 9112 §6.3)."""
    for name, value in scope["headers"]:
        if name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            return True
    return False


def _header(scope: Scope, wanted: bytes) -> bytes | None:
    return next((value for name, value in scope["headers"] if name == wanted), None)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The `receive` of a request whose body has already been read."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _problem(
    kind: type[errors.MetatxnError],
    detail: str,
    *,
    status: int | None = None,
    title: str | None = None,
    action: str | None = None,
    **members: Any,
) -> Problem:
    """The problem of an error, or of a case that has its own HTTP status but no code in the contract."""
    problem = problem_of(kind(detail, action=action, **members))
    return problem.model_copy(update={"status": status or problem.status, "title": title or problem.title})
