"""Routes for endpoints that are called thousands of times a second: a request that fits reaches its endpoint directly.

FastAPI solves a tree of dependencies for each request and validates each answer again, which costs more than beginning
a transaction, and so do its layers before that (`metatxn/service/shortcuts.py`). The endpoint of a `DirectRoute` is
still an endpoint of FastAPI: its signature determines the OpenAPI page, and a request that does not match it exactly is
passed to FastAPI, which refuses it with the same words as everywhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints
from urllib.parse import unquote_plus

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from pydantic import TypeAdapter, ValidationError
from starlette.types import Scope

from metatxn.service.answers import model_response
from metatxn.service.gate import BODY, CALLER, LOST_BODY
from metatxn.service.http import CONTENT_TYPE, JSON, Caller
from metatxn.service.shortcuts import PreparedCalls, ShortcutRoute

ArgumentReader = Callable[[Scope, Mapping[str, str]], Any]
"""Make one argument of an endpoint from a request and its query. Raises `Unfit` or `ValidationError`."""


class Unfit(Exception):
    """The request does not fit, but FastAPI may be able to handle it."""


class DirectRoute(ShortcutRoute):
    """A route whose endpoint takes parameters of the path and of the query, the `caller`, the `request`, and a `body`
    in JSON. So do the dependencies that are named with the route, which are called first.

    The endpoint returns a response, or a model, which is answered without the fields that it lacks.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        assert self.response_model_exclude_none, "both ways must answer alike"
        self._asked = {parameter.alias for parameter in self.dependant.query_params}
        required = [dependency.dependency for dependency in self.dependencies]
        self._calls = [(call, self._readers(call)) for call in (*required, endpoint) if call is not None]

    def _readers(self, call: Callable[..., Any]) -> dict[str, ArgumentReader]:
        hints = get_type_hints(call, include_extras=True)
        return {
            name: self._reader(name, hints[name], parameter)
            for name, parameter in inspect.signature(call).parameters.items()
        }

    def _reader(self, name: str, hint: Any, parameter: inspect.Parameter) -> ArgumentReader:
        if hint is Caller:
            return lambda scope, _: scope[CALLER]
        if hint is Request:
            return lambda scope, _: Request(scope)
        validated = TypeAdapter(hint)
        if name in self.param_convertors:
            return lambda scope, _: validated.validate_python(scope["path_params"][name])
        if name in self._asked:
            return lambda _, query: validated.validate_python(query[name]) if name in query else parameter.default
        assert name == "body", f"{name} is neither in the path, nor the query, nor the caller, nor the body"
        return _body_reader(validated, parameter.default)

    def fitting(self, scope: Scope) -> PreparedCalls | None:
        """What a request calls, or None if FastAPI has to handle it."""
        if LOST_BODY in scope:
            return None
        try:
            query = _query(scope["query_string"], self._asked) if scope["query_string"] else {}
            return [
                (call, {name: read(scope, query) for name, read in readers.items()}) for call, readers in self._calls
            ]
        except (Unfit, ValidationError):
            return None

    async def answer(self, calls: PreparedCalls) -> Response:
        answer: Any = None
        for call, arguments in calls:
            answer = await call(**arguments)
        return answer if isinstance(answer, Response) else model_response(answer, self.status_code or 200)


def _body_reader(validated: TypeAdapter[Any], default: Any) -> ArgumentReader:
    def body(scope: Scope, _: Mapping[str, str]) -> Any:
        sent = scope[BODY]
        if not sent and default is not inspect.Parameter.empty:
            return default
        if next(value for header, value in scope["headers"] if header == CONTENT_TYPE) != JSON:
            raise Unfit
        return validated.validate_json(sent)

    return body


def _query(sent: bytes, asked: set[str]) -> dict[str, str]:
    """The parameters of a query. Raises `Unfit` unless each is known, is given once, and is UTF-8."""
    query: dict[str, str] = {}
    for pair in filter(None, sent.decode("latin-1").split("&")):
        name, _, value = pair.partition("=")
        if name not in asked or name in query:
            raise Unfit
        try:
            query[name] = unquote_plus(value, errors="strict")
        except UnicodeDecodeError:
            raise Unfit from None
    return query


def add_routes(app: FastAPI, router: APIRouter, *, first: bool = False) -> None:
    """Like `app.include_router`, which would match every request twice: by the router and by its route.

    Routes are tried one after another; with `first` these come before all others.
    """
    at = 0 if first else len(app.router.routes)
    app.router.routes[at:at] = router.routes
