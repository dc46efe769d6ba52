"""Which listener a request has used, see `metatxn.wire.listeners`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from metatxn.wire.listeners import LISTENER_HEADER, Listeners


def listener_of(request: Request) -> str | None:
    announced: Listeners = request.app.state.listeners
    return announced.used_by(request.headers.get(LISTENER_HEADER), request.headers.get("host", ""))


async def _listener(request: Request) -> str | None:
    return listener_of(request)


UsedListener = Annotated[str | None, Depends(_listener)]
"""The listener that the sender of this request has used; None for the addresses of services among each other."""
