"""Which requests the audit log records, and what it shows of them.

An endpoint is marked with `audited`. The gate has the line written once it knows the status of the answer, so no way
to an endpoint, and none that ends before it, goes without. A line has the names of the path, and those members of query
and body that the mark lists: no header, no other member, no message.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote
from weakref import WeakKeyDictionary

from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from metatxn.service import audit
from metatxn.wire import errors

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Mark:
    """What is recorded of the requests to an endpoint. With `only_if`, only those count whose body has a true member of
    that name. `topic` is the member of the body that names the topic, if the path does not."""

    verb: str
    query: Sequence[str]
    body: Sequence[str]
    only_if: str | None
    topic: str | None


_MARKS: WeakKeyDictionary[Callable[..., Any], Mark] = WeakKeyDictionary()


def audited(
    verb: str,
    *,
    query: Sequence[str] = (),
    body: Sequence[str] = (),
    only_if: str | None = None,
    topic: str | None = None,
) -> Callable[[Endpoint], Endpoint]:
    """Mark an endpoint. `query` and `body` list the members that a line may show."""

    def mark(endpoint: Endpoint) -> Endpoint:
        _MARKS[endpoint] = Mark(verb, query, body, only_if, topic)
        return endpoint

    return mark


def mark_of(route: Any) -> Mark | None:
    endpoint = getattr(route, "endpoint", None)
    return _MARKS.get(endpoint) if endpoint is not None else None


class Audit:
    """Writes the lines of the requests to a service. Its routes may be added to."""

    def __init__(self, routes: Sequence[BaseRoute] = ()) -> None:
        self._routes = routes

    def end(self, scope: Scope, route: Any, status: int, principal: str | None, body: bytes) -> None:
        """The request was answered. A redirect has done nothing; the service that it leads to has a line.

        `route` is None if the gate has answered. It looks for the route only if the caller lacks a right: refusals for
        other reasons (no token, too many requests) are not limited in number, and no principal stands behind them."""
        if not audit.is_on() or status == errors.NotOwner.status:
            return
        if route is None and status == errors.NotAllowed.status:
            route = self._found(scope)
        if (mark := mark_of(route)) is None:
            return
        sent = _members(body) if mark.body or mark.only_if else {}
        if mark.only_if and not _is_true(sent, mark.only_if, status):
            return
        sent = sent or {}
        asked = dict(parse_qsl(scope["query_string"].decode("latin-1"))) if mark.query else {}
        audit.record(
            mark.verb,
            _names(route, scope) | _listed(asked, mark.query) | _topic(sent, mark.topic),
            status,
            principal=principal,
            address=address_of(scope),
            arguments=_listed(sent, mark.body),
        )

    def _found(self, scope: Scope) -> Route | None:
        path, method = _path(scope), scope["method"]
        for route in self._routes:
            if isinstance(route, Route) and method in (route.methods or ()) and route.path_regex.match(path):
                return route
        return None


def address_of(scope: Scope) -> str | None:
    """The address of the connection, which is a proxy's if there is one."""
    return scope["client"][0] if scope.get("client") else None


def _path(scope: Scope) -> str:
    """The path as the routes see it."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("latin-1")


def _names(route: Route, scope: Scope) -> dict[str, Any]:
    found = route.path_regex.match(_path(scope))
    return {name: unquote(value) for name, value in found.groupdict().items()} if found else {}


def _members(body: bytes) -> dict[str, Any] | None:
    """The members of a JSON body; None if it cannot be read. This reads every encoding that the framework reads, so no
    one can hide a member from the log in one that only the endpoint knows."""
    try:
        value = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_true(sent: Mapping[str, Any] | None, name: str, status: int) -> bool:
    """Whether a member is true. A body that was accepted and could only be read by the endpoint counts, too."""
    return status < 300 if sent is None else sent.get(name) is True


def _topic(sent: Mapping[str, Any], name: str | None) -> dict[str, str]:
    return {"topic": sent[name]} if name is not None and isinstance(sent.get(name), str) else {}


def _listed(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}
