"""Routes for what is asked thousands of times a second: a request that fits reaches its endpoint at once.

FastAPI solves a tree of dependencies for each request and validates each answer again, which costs more than beginning
a transaction. The endpoint of a `QuickRoute` is one of FastAPI's all the same: its signature makes the OpenAPI page,
and whatever is not exactly as it says goes FastAPI's way, which refuses it in the same words as everywhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from fastapi import APIRouter, FastAPI
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.types import Receive, Scope, Send

from service.answers import model_response
from service.gate import BODY, CALLER
from service.http import CONTENT_TYPE, JSON, Caller

Reader = Callable[[Scope], Any]
"""One argument of an endpoint, from a request. Raises `Unfit` or `ValidationError`."""


class Unfit(Exception):
    """FastAPI may know what to do with this request."""


class QuickRoute(APIRoute):
    """Its endpoint takes parameters of the path, the `caller`, and a `body` in JSON.

    It returns a model, which is answered without the fields that it lacks, or a response.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        assert self.response_model_exclude_none, "both ways must answer alike"
        hints = get_type_hints(endpoint, include_extras=True)
        self._readers = {
            name: _reader(name, hints[name], parameter, in_path=name in self.param_convertors)
            for name, parameter in inspect.signature(endpoint).parameters.items()
        }

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["method"] not in (self.methods or ()):
                raise Unfit
            arguments = {name: read(scope) for name, read in self._readers.items()}
        except (Unfit, ValidationError):
            await super().handle(scope, receive, send)
            return
        answer = await self.endpoint(**arguments)
        response = answer if isinstance(answer, Response) else model_response(answer, self.status_code or 200)
        await response(scope, receive, send)


def _reader(name: str, hint: Any, parameter: inspect.Parameter, *, in_path: bool) -> Reader:
    if hint is Caller:
        return lambda scope: scope[CALLER]
    validated = TypeAdapter(hint)
    if in_path:
        return lambda scope: validated.validate_python(scope["path_params"][name])
    assert name == "body", f"{name} is neither in the path, nor the caller, nor the body"

    def body(scope: Scope) -> Any:
        sent = scope[BODY]
        if not sent and parameter.default is not inspect.Parameter.empty:
            return parameter.default
        if next(value for header, value in scope["headers"] if header == CONTENT_TYPE) != JSON:
            raise Unfit
        return validated.validate_json(sent)

    return body


def add_routes(app: FastAPI, router: APIRouter, *, first: bool = False) -> None:
    """`app.include_router`, which has every request matched twice: by the router and by its route.

    Routes are asked one after another; `first` puts these in front of all others.
    """
    at = 0 if first else len(app.router.routes)
    app.router.routes[at:at] = router.routes
