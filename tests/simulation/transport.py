"""The network of a simulation as a transport, for production code that is a client itself.

In half of the seeds there is a gateway in front of the services: instead of an answer that does not come, its caller
may get a page of the gateway, with a status that says nothing of what has happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from metatxn.transport import api
from tests.simulation.network import Network, NoAnswer, Request, Unreachable

_UNAVAILABLE = 503


class Stays:
    """Whether a client tries a request again at a service that could not carry it out, such as a coordinator without
    its store, although it knows another one that has not refused anything since."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._refused: dict[str, float] = {}
        """When each service did so last."""
        self._tried: dict[tuple[str, str, bytes], tuple[str, float]] = {}

    def sends(self, request: api.Request, known: Sequence[str]) -> None:
        base, path = _divided(request.url)
        refused = self._tried.pop((request.method, path, request.body or b""), None)
        if refused is None or base != refused[0]:
            return
        better = [each for each in known if each != base and self._refused.get(each, -1.0) < refused[1]]
        if better:
            self.found.append(f"{request.method} {request.url} was tried again there, and not at {better[0]}")

    def answered(self, request: api.Request, answer: api.Answer, now: float) -> None:
        base, path = _divided(request.url)
        if answer.status == _UNAVAILABLE:
            self._refused[base] = now
            self._tried[request.method, path, request.body or b""] = base, now
        elif path == "/v1/cluster":
            self._tried.clear()  # from now on it has the services in another order


def _divided(url: str) -> tuple[str, str]:
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}", f"{slash}{path}"


class SimulatedTransport:
    def __init__(self, network: Network) -> None:
        self._network = network
        self.stays = Stays()
        self.known: Callable[[], Sequence[str]] = lambda: ()
        """The coordinators that the client knows."""

    async def send(self, request: api.Request) -> api.Answer:
        if request.url.startswith("http://coordinator-"):
            self.stays.sends(request, self.known())
        answer = await self._sent(request)
        self.stays.answered(request, answer, asyncio.get_running_loop().time())
        return answer

    async def _sent(self, request: api.Request) -> api.Answer:
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
