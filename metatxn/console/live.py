"""Pages that follow what changes: server-sent events, each of which is the whole live part of a page.

The browser swaps it in, and keeps what its reader has focused, opened or chosen. The services are asked again and again
as long as the page is visible; the stream of a page in the background is closed. While nothing changes, or a look takes
long, an event without content is sent now and then: it reveals a reader that has gone, and a page that misses it says
that the coordinator does not answer. A process that is frozen or cut off closes no connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

EVENTS = "text/event-stream"
LOOK_EVERY_S = 2.0
STILL_EVERY_S = 10.0
"""After this time without news, `STILL_HERE` is sent. A page waits two and a half times as long (`console.js`)."""
STILL_HERE = "event: still-here\ndata:\n\n"

Look = Callable[[], Awaitable[str]]
"""Make the live part of a page as it is now."""


def is_live(request: Request) -> bool:
    """Whether the events of a page are asked for, and not the page."""
    return EVENTS in request.headers.get("accept", "")


def live_response(look: Look, closing: asyncio.Event) -> Response:
    return StreamingResponse(_looks(look, closing), media_type=EVENTS)


def events(texts: Iterable[str]) -> Response:
    """A stream of these events that ends after them. The browser asks again after a while."""
    return Response("".join(map(event, texts)), media_type=EVENTS)


async def _looks(look: Look, closing: asyncio.Event) -> AsyncIterator[str]:
    now = asyncio.get_running_loop().time
    before, sent = None, now()
    while not closing.is_set():
        looking = asyncio.ensure_future(look())
        try:
            while not (await asyncio.wait([looking], timeout=STILL_EVERY_S))[0]:
                sent = now()
                yield STILL_HERE
            seen = looking.result()
        finally:
            looking.cancel()
        if seen != before or now() - sent >= STILL_EVERY_S:
            yield event(seen) if seen != before else STILL_HERE
            before, sent = seen, now()
        await _pause(closing)


async def _pause(closing: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(closing.wait(), LOOK_EVERY_S)
    except TimeoutError:
        return


def event(text: str) -> str:
    """An event without a name, which htmx swaps into the page. Every line of the text needs its field."""
    return "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
