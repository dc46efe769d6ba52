"""The HTTP shell of a service: FastAPI with routing on the raw path and problem+json for every failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import unquote

import structlog
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from pydantic import AfterValidator, BeforeValidator
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from metastore.errors import InvalidBatch, MetastoreError, OutcomeUnknown, StoreFull
from metatxn.service.answers import problem_response
from metatxn.service.audited import Audit
from metatxn.service.exposure import Exposure
from metatxn.service.gate import CALLER, Gate
from metatxn.service.listeners import listener_of
from metatxn.service.openapi import documented_app
from metatxn.service.openapi import problems as problems
from metatxn.service.quotas.quotas import Quotas
from metatxn.service.request_metrics import RequestMetrics
from metatxn.service.security.principal import Principal
from metatxn.service.shortcuts import Shortcuts
from metatxn.wire import errors
from metatxn.wire.coordinator import TXN_ID_FIELD
from metatxn.wire.errors import BY_CODE, ErrorCode
from metatxn.wire.ids import TxnId
from metatxn.wire.listeners import Listeners, address_for
from metatxn.wire.problems import Problem, problem_of
from metatxn.wire.text import no_control_characters

_BROKEN_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
CONTENT_TYPE = b"content-type"
JSON = b"application/json"
_NOT_CHOSEN = (b"", b"application/x-www-form-urlencoded")
log = structlog.get_logger()


def _unquote_segment(value: object) -> object:
    """Decode a path parameter: they arrive percent-encoded (see `RawPath`)."""
    if isinstance(value, str):
        if _BROKEN_ESCAPE.search(value):
            raise ValueError("has a % without two hexadecimal digits after it; send a % itself as %25")
        try:
            return unquote(value, errors="strict")
        except UnicodeDecodeError:
            raise ValueError("is not percent-encoded UTF-8") from None
    return value


UNQUOTED = BeforeValidator(_unquote_segment)
PathText = Annotated[str, UNQUOTED, AfterValidator(no_control_characters)]
"""A path parameter: any UTF-8 name, percent-encoded as one path segment."""
TxnIdPath = Annotated[TxnId, UNQUOTED, TXN_ID_FIELD]


async def _caller(request: Request) -> Principal:
    caller = request.scope[CALLER]
    assert isinstance(caller, Principal)
    return caller


Caller = Annotated[Principal, Depends(_caller)]
"""The sender of this request, as determined by the gate."""


class RawPath:
    """ASGI middleware that routes on the path as it was sent, so that an encoded `/` stays inside its parameter.

    A body without a type, or with the type that `curl -d` sends by default, is treated as JSON.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope.get("raw_path"):
            scope = dict(scope, path=scope["raw_path"].decode("latin-1"), headers=_json_unless_named(scope["headers"]))
        await self._app(scope, receive, send)


def _json_unless_named(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    types = [value for name, value in headers if name == CONTENT_TYPE]
    chosen = [(CONTENT_TYPE, value) for value in types if value not in _NOT_CHOSEN]
    if types and len(chosen) == len(types):
        return headers
    others = [header for header in headers if header[0] != CONTENT_TYPE] if types else headers
    return [*others, *(chosen or [(CONTENT_TYPE, JSON)])]


def from_store(error: MetastoreError) -> errors.MetatxnError:
    """The HTTP error for a store failure that was not handled elsewhere."""
    if isinstance(error, OutcomeUnknown):
        return errors.OutcomeUnknown(str(error))
    if isinstance(error, StoreFull):
        return errors.StorageFull(str(error))
    if isinstance(error, InvalidBatch):
        return errors.PayloadTooLarge(str(error))
    return errors.StoreUnavailable(str(error))


def _field_of(error: dict[str, Any], body: object) -> str:
    """The name of the offending field, without FastAPI's `body`/`query`/`path` prefix and union tags."""
    if error["type"] == "json_invalid":
        return "body"  # The rest of `loc` is the position of a character.
    kind, *where = error["loc"]
    if kind == "body":
        where = _without_union_tags(where, body)
    if error["type"].startswith("union_tag_"):
        where.append(error["ctx"]["discriminator"].strip("'"))
    return ".".join(map(str, where)) or str(kind)


def _without_union_tags(where: list[Any], value: object) -> list[Any]:
    """Between an object and its field, pydantic names the shape, of several, that it tried for the object."""
    kept = []
    for number, part in enumerate(where):
        last = number == len(where) - 1
        if isinstance(value, dict) and part not in value and not last:
            continue
        kept.append(part)
        value = value[part] if isinstance(value, dict | list) and not last else None
    return kept


def create_app(
    title: str,
    description: str,
    version: str,
    registry: CollectorRegistry,
    exposure: Exposure | None = None,
    requests: RequestMetrics | None = None,
    open_below: Sequence[str] = (),
    quotas: Quotas | None = None,
) -> FastAPI:
    """An application whose every error is a `Problem`, with `/metrics` and the OpenAPI page at `/docs`.
    `requests` measures its requests. Paths at and below `open_below` need no token. `quotas` say what callers may use.

    Every request passes the gate, which is the outermost layer: the middleware that is added last.
    """
    exposure = exposure or Exposure()
    app = documented_app(title, description, version, needs_token=exposure.authenticator is not None)
    app.state.listeners = Listeners()
    app.add_middleware(Shortcuts, served=app)
    app.add_middleware(RawPath)
    requests = requests or RequestMetrics(CollectorRegistry())
    audit = Audit(app.router.routes)
    app.add_middleware(
        Gate,
        limits=exposure.limits,
        authenticator=exposure.authenticator,
        metrics=requests,
        audit=audit,
        open_below=open_below,
        quotas=quotas,
    )

    _answer_errors(app)

    @app.get("/metrics", tags=["operations"], response_class=Response)
    async def metrics(request: Request) -> Response:
        """Prometheus metrics, as text, or as OpenMetrics if that is asked for: it has exemplars, too."""
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": media_type})

    return app


def _answer_errors(app: FastAPI) -> None:
    app.exception_handler(errors.MetatxnError)(_service_error)
    app.exception_handler(MetastoreError)(_store_error)
    app.exception_handler(RequestValidationError)(_validation_error)
    app.exception_handler(HTTPException)(_http_error)
    app.exception_handler(Exception)(_bug)


def problem_for(request: Request, error: errors.MetatxnError | MetastoreError) -> Problem:
    """An error in an answer to this request. The address of another owner is the one at which its sender reaches it."""
    if isinstance(error, MetastoreError):
        error = from_store(error)
    if isinstance(error, errors.NotOwner):
        error.members["owner_url"] = address_for(listener_of(request), error.owner_url, error.listeners)
    return problem_of(error)


async def _service_error(request: Request, error: errors.MetatxnError) -> Response:
    problem = problem_for(request, error)
    headers = None
    if isinstance(error, errors.NotOwner):
        query = request.scope["query_string"].decode("latin-1")
        path = request.scope["path"] + (f"?{query}" if query else "")
        headers = {"Location": f"{error.members['owner_url']}{path}"}
    return problem_response(problem, headers)


async def _store_error(request: Request, error: MetastoreError) -> Response:
    return problem_response(problem_for(request, error))


async def _validation_error(request: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    field = _field_of(first, error.body)
    message = str(first["msg"]).removeprefix("Value error, ")
    media_type = request.headers.get("content-type", "")
    if field == "body" and isinstance(first["input"], bytes):  # FastAPI parses nothing but JSON
        message = f"JSON is expected: send it with Content-Type: application/json instead of {media_type}"
    return problem_response(problem_of(errors.InvalidArgument(f"{field}: {message}", field=field)))


async def _http_error(_: Request, error: HTTPException) -> Response:
    if error.status_code == 400:
        # FastAPI's answer to a body that cannot be parsed at all: not UTF-8, nested too deeply, too many digits.
        detail = f"body: {error.detail}"
        return problem_response(problem_of(errors.InvalidArgument(detail, field="body")))
    code = ErrorCode.NOT_FOUND if error.status_code == 404 else ErrorCode.INVALID_ARGUMENT
    kind = BY_CODE[code]
    problem = Problem(
        status=error.status_code,
        title=str(error.detail),
        detail=str(error.detail),
        code=code,
        retriable=False,
        definite=True,
        action="See /docs for the paths and methods of this service."
        if error.status_code in (404, 405)
        else kind.action,
    )
    return problem_response(problem, dict(error.headers or {}))


async def _bug(request: Request, error: Exception) -> Response:
    log.error("unhandled error", path=request.url.path, exc_info=error)
    problem = Problem(
        status=500,
        title="Internal error",
        detail="the service failed to answer; its log contains the reason",
        code=ErrorCode.OUTCOME_UNKNOWN,
        retriable=False,
        definite=False,
        action="Read the transaction again to learn what happened, and report the log.",
    )
    return problem_response(problem)
