"""Routes that refuse query parameters they do not know, and requests that have lost their body; and that say of no
change "nothing happened" if something did.

A change of the layout, a policy or a subscription takes several applies, or reads what it answers behind the apply. If
that fails, the error itself is definite: that read, or that apply, had no effect. The request had.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import Any
from urllib.parse import unquote_plus

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from metastore.errors import MetastoreError
from metastore.measured import EFFECTS, Effects
from metatxn.service.audited import mark_of
from metatxn.service.gate import LOST_BODY
from metatxn.wire import errors

_Handle = Callable[[Request], Coroutine[Any, Any, Response]]


class StrictRoute(APIRoute):
    """A route that refuses unknown query parameters. A misspelt `txn_id` must not turn a publish into one outside
    transactions. Nor may the `writers` of a commit be ignored because they were put into the URL or were in a body that
    was lost: then all writers would count."""

    def get_route_handler(self) -> _Handle:
        handle = super().get_route_handler()
        known = set(self._query_names())
        takes_body = self.body_field is not None or "requestBody" in (self.openapi_extra or {})
        if mark_of(self) is not None:
            handle = _telling_of_effects(handle)

        async def strict(request: Request) -> Response:
            if takes_body and LOST_BODY in request.scope:
                raise _lost_body()
            _check_query(request.scope["query_string"].decode("latin-1"), known)
            return await handle(request)

        return strict

    def _query_names(self) -> Iterable[str]:
        for parameter in self.dependant.query_params:
            kind = parameter.field_info.annotation
            if inspect.isclass(kind) and issubclass(kind, BaseModel):
                yield from kind.model_fields
            else:
                yield parameter.alias


def _telling_of_effects(handle: _Handle) -> _Handle:
    async def handle_change(request: Request) -> Response:
        effects = Effects()
        EFFECTS.set(effects)
        try:
            return await handle(request)
        except errors.NotOwner:
            raise  # the other broker does it, whatever was done here
        except (errors.MetatxnError, MetastoreError) as error:
            if not effects.any or not error.definite:
                raise
            if isinstance(error, errors.MetatxnError) and not isinstance(error, errors.StoreUnavailable):
                raise error.not_definite() from error
            raise errors.OutcomeUnknown(
                f"the change was made, wholly or in part, and then: {error}",
                action="Look at what is there now, and send the whole request again if it is not done.",
            ) from error
        finally:
            EFFECTS.set(None)  # this may be another context, if the loop has ended

    return handle_change


def _check_query(query: str, known: set[str]) -> None:
    """Check that every parameter is known to the endpoint, is given once, and is UTF-8, because bytes that are not
    UTF-8 would be replaced silently."""
    seen: set[str] = set()
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        name = unquote_plus(name)
        problem = None
        try:
            unquote_plus(value, errors="strict")
        except UnicodeDecodeError:
            problem = "is not percent-encoded UTF-8"
        if name not in known:
            problem = "is not a query parameter of this endpoint"
        elif name in seen:
            problem = "is given twice"
        if problem:
            raise errors.InvalidArgument(f"{name}: {problem}", field=name)
        seen.add(name)


def _lost_body() -> errors.MetatxnError:
    return errors.InvalidArgument(
        "body: the request has a Content-Type but no body",
        action="Send the body with Content-Length, or leave out Content-Type.",
        field="body",
    )
