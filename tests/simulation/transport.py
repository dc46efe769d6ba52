"""The network of a simulation as a transport of httpx, for production code that is a client itself."""

from __future__ import annotations

import httpx

from tests.simulation.network import Network, NoAnswer, Request, Unreachable

_DEFAULT_TIMEOUT_S = 5.0


class SimulatedTransport(httpx.AsyncBaseTransport):
    def __init__(self, network: Network) -> None:
        self._network = network

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        timeout = request.extensions.get("timeout", {}).get("read") or _DEFAULT_TIMEOUT_S
        sent = Request(request.method, str(request.url), await request.aread(), dict(request.headers))
        try:
            answer = await self._network.request(sent, timeout)
        except Unreachable as error:
            raise httpx.ConnectError(str(error)) from error
        except NoAnswer as error:
            raise httpx.ReadError(str(error)) from error
        return httpx.Response(answer.status, headers=answer.headers, content=answer.body)
