"""The console of a coordinator, loaded when someone opens it: most coordinators never show a page, and its libraries
take as long to load as those of the coordinator itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from metatxn.cli import services

MakeLateConsole = Callable[[str, Callable[..., None]], "LateConsole"]


def late_console(no_console: bool, read_only: bool) -> MakeLateConsole | None:
    """What a coordinator makes its console with; None if it has no console."""
    if no_console:
        return None
    return lambda url, record: LateConsole(url, record, read_only)


class LateConsole:
    """An ASGI application that takes the place of the console."""

    def __init__(self, url: str, record: Callable[..., None], read_only: bool) -> None:
        self._url = url
        self._record = record
        self._read_only = read_only
        self._loading: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._loading is None:
            self._loading = asyncio.create_task(self._load())
        console = await asyncio.shield(self._loading)
        await console(scope, receive, send)

    async def close(self) -> None:
        if self._loading is not None:
            await (await self._loading).close()

    async def _load(self) -> Any:
        create = await asyncio.to_thread(services.load, "console")
        return create(self._url, record=self._record, read_only=self._read_only)
