"""The network of a simulation as a transport, for production code that is a client itself."""

from __future__ import annotations

import asyncio

from metatxn.transport import api
from tests.simulation.network import Network, NoAnswer, Request, Unreachable


class SimulatedTransport:
    def __init__(self, network: Network) -> None:
        self._network = network

    async def send(self, request: api.Request) -> api.Answer:
        left_s = request.end - asyncio.get_running_loop().time()
        sent = Request(request.method, request.url, request.body or b"", dict(request.headers))
        try:
            answer = await self._network.request(sent, min(request.answer_s, left_s))
        except Unreachable as error:
            raise api.Unsent(str(error)) from error
        except NoAnswer as error:
            raise api.NoAnswer(str(error)) from error
        return api.Answer(request.method, request.url, answer.status, answer.headers, answer.body)

    async def close(self) -> None: ...
