"""The way of a request from the gate to its endpoint without the layers between them.

Behind the gate, FastAPI has a layer for errors with an object for each request, one for files, a router of two
functions, and a layer for errors around the endpoint. Together they cost more than reading and checking the arguments
of an endpoint that is called thousands of times a second. A route that can tell by itself whether a request fits is
asked here; it answers, and errors become the same problems. All other requests take the long way, as if this were not
here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from itertools import takewhile
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from metatxn.service.request_metrics import REQUEST
from metatxn.service.strict import StrictRoute

PreparedCalls = list[tuple[Callable[..., Any], dict[str, Any]]]
"""An endpoint after the dependencies of its route, each with its arguments."""
_Handler = Callable[[Request, Exception], Awaitable[Response]]
_RESPONSE = "metatxn.response"
"""The key, in the scope of a request, of the response that is about to be sent."""


class ShortcutRoute(StrictRoute):
    @abstractmethod
    def fitting(self, scope: Scope) -> PreparedCalls | None:
        """What a request calls, or None if FastAPI has to handle it."""

    @abstractmethod
    async def answer(self, calls: PreparedCalls) -> Response:
        """The answer to a request that fits. Raises the errors of the endpoint."""


class Shortcuts:
    """ASGI middleware, the innermost one. A request gets to the route that the router would choose: routes are tried in
    the same order."""

    def __init__(self, app: ASGIApp, served: FastAPI) -> None:
        self._app = app
        self._served = served
        self._known = 0
        self._routes: list[Route] = []
        handlers = {kind: handle for kind, handle in served.exception_handlers.items() if kind is not Exception}
        self._sending = ExceptionMiddleware(_send_response, handlers)
        self._handlers = cast(dict[Any, _Handler], handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._route(scope) if scope["type"] == "http" and not scope.get("root_path") else None
        calls = route.fitting(scope) if route is not None else None
        if route is None or calls is None:
            try:
                await self._app(scope, receive, send)
            finally:
                _found(scope, scope.get("route"))
            return
        _found(scope, route)
        try:
            response = await route.answer(calls)
        except Exception as error:
            handle = next((self._handlers[kind] for kind in type(error).__mro__ if kind in self._handlers), None)
            if handle is None:
                raise
            response = await handle(Request(scope), error)
        if type(response) is Response:
            await response(scope, receive, send)
        else:  # it reads while it is sent, and may still fail
            scope[_RESPONSE] = response
            await self._sending(scope, receive, send)

    def _route(self, scope: Scope) -> ShortcutRoute | None:
        if self._known != len(self._served.router.routes):
            self._learn()
        path, method = scope["path"], scope["method"]
        for route in self._routes:
            if (found := route.path_regex.match(path)) is None or method not in (route.methods or ()):
                continue
            if not isinstance(route, ShortcutRoute):
                return None
            convertors = route.param_convertors
            scope["path_params"] = {name: convertors[name].convert(value) for name, value in found.groupdict().items()}
            return route
        return None

    def _learn(self) -> None:
        """Collect the routes up to the last shortcut. One of another kind that is tried earlier may match the same
        request."""
        routes = self._served.router.routes
        self._known = len(routes)
        first = [route for route in takewhile(lambda each: isinstance(each, Route), routes) if isinstance(route, Route)]
        while first and not isinstance(first[-1], ShortcutRoute):
            first.pop()
        self._routes = first


def _found(scope: Scope, route: Any) -> None:
    """This is the route of the request, for its metrics."""
    if REQUEST in scope:
        scope[REQUEST].route = route


async def _send_response(scope: Scope, receive: Receive, send: Send) -> None:
    await scope[_RESPONSE](scope, receive, send)
