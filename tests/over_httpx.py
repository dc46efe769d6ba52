"""A transport of ours over one of httpx's, so that tests can answer, lose and refuse requests with
`httpx.MockTransport`, and call applications with `httpx.ASGITransport`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx

from metatxn.transport.api import Answer, NoAnswer, Request, Unsent


class OverHttpx:
    """`transport` gets every request, or those of `mounts` get the requests to their URLs. What is raised after a
    connection was there may have happened."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        mounts: Mapping[str, httpx.AsyncBaseTransport] | None = None,
    ) -> None:
        self._client = httpx.AsyncClient(
            transport=transport, mounts=mounts, trust_env=False, timeout=None, verify=False
        )

    async def send(self, request: Request) -> Answer:
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(min(request.end, now + request.answer_s)):
                answer = await self._client.request(
                    request.method, request.url, content=request.body, headers=dict(request.headers)
                )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Unsent(str(error)) from error
        except (httpx.TransportError, TimeoutError) as error:
            raise NoAnswer(str(error) or type(error).__name__) from error
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return Answer(request.method, request.url, answer.status_code, headers, answer.content)

    async def close(self) -> None:
        await self._client.aclose()
