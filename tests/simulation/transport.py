"""The network of a simulation as a transport, for production code that is a client itself.

In half of the seeds there is a gateway in front of the services: instead of an answer that does not come, its caller
may get a page of the gateway, with a status that says nothing of what has happened.
"""

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
            if (status := self._network.status_of_gateway()) is not None:
                return api.Answer(request.method, request.url, status, {}, b"<html>no answer</html>")
            raise api.NoAnswer(str(error)) from error
        return api.Answer(request.method, request.url, answer.status, answer.headers, answer.body)

    async def close(self) -> None: ...
