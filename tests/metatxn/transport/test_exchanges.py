"""Goal: a request is written at once, and its answer is what comes back for it and nothing else. When there is none,
the request may have been carried out; it is never sent again from here.

Method: sockets that lead nowhere, in a real loop, and in the simulation's loop for what depends on time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import pytest

from metatxn.transport import reading
from metatxn.transport.api import Answer, BadUrl, NoAnswer, Unsent
from metatxn.transport.pool import IDLE_S, HttpTransport
from tests.metatxn.transport.sockets import Socket, Sockets, answer, request
from tests.simulation.loop import SimulationLoop

T = TypeVar("T")


def transport() -> tuple[HttpTransport, Sockets]:
    sockets = Sockets()
    return HttpTransport(dialer=sockets), sockets


async def exchanged(http: HttpTransport, sockets: Sockets, count: int = 1) -> Socket:
    """The socket over which a request, the `count`th of it, was answered."""
    sending = asyncio.create_task(http.send(request()))
    socket = await sockets.sent(count)
    socket.receive(answer())
    assert (await sending).ok
    return socket


async def test_headers_and_body_leave_together_and_the_connection_stays() -> None:
    http, sockets = transport()
    for count in (1, 2):
        await exchanged(http, sockets, count)
    (socket,) = sockets.opened
    expected = (
        b"POST /v1/things HTTP/1.1\r\nHost: service\r\nUser-Agent: metatxn\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert socket.sends == [expected, expected]
    await http.close()


async def test_a_large_body_leaves_with_its_headers() -> None:
    http, sockets = transport()
    sending = asyncio.create_task(http.send(request(bytes(1 << 20))))
    socket = await sockets.sent()
    assert len(socket.sends) == 1 and socket.sends[0].endswith(bytes(1 << 20))
    socket.receive(answer())
    await sending
    await http.close()


UNTIL_THE_END = b"HTTP/1.1 200 OK\r\nX-Of: a\r\nx-of: b\r\n\r\nbody"
FORMS = {
    "with a length": b"HTTP/1.1 200 OK\r\nX-Of: a\r\nx-of: b\r\nContent-Length: 4\r\n\r\nbody",
    "in chunks": b"HTTP/1.1 200 OK\r\nX-Of: a\r\nx-of: b\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"1\r\nb\r\n3\r\nody\r\n0\r\n\r\n",
    "after a hint": b"HTTP/1.1 103 Early Hints\r\nX-Of: c\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nX-Of: a\r\nx-of: b\r\nContent-Length: 4\r\n\r\nbody",
    "until the end": UNTIL_THE_END,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
async def test_an_answer_is_the_same_however_it_is_cut(form: bytes) -> None:
    http, sockets = transport()
    for cut in range(1, len(form)):
        sending = asyncio.create_task(http.send(request(None)))
        socket = await sockets.sent()
        socket.receive(form[:cut])
        await asyncio.sleep(0)
        assert not sending.done()
        socket.receive(form[cut:])
        if form == UNTIL_THE_END:
            socket.lose(None)
        got = await sending
        assert (got.status, got.header("X-OF"), got.body) == (200, "a, b", b"body")
        assert socket.closed == (form == UNTIL_THE_END)
        socket.abort()
        await asyncio.sleep(0)
        sockets.opened.clear()


@pytest.mark.parametrize("ahead_bytes", [1 << 20, 10])
async def test_long_bodies_come_whole_one_after_the_other(ahead_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger than what is received at once; above `ahead_bytes` no memory is given to what is only announced."""
    monkeypatch.setattr(reading, "_LONGEST_AHEAD_BYTES", ahead_bytes)
    http, sockets = transport()
    for count, size in enumerate((100_000, 3, 200_001, 0, 40_000), start=1):
        body = bytes(number % 251 for number in range(size))
        sending = asyncio.create_task(http.send(request(None)))
        socket = await sockets.sent(count)
        socket.receive(answer(body)[:50])
        socket.receive(answer(body)[50:])
        assert (await sending).body == body
    assert len(sockets.opened) == 1
    await http.close()


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("error", [None, ConnectionResetError("reset")])
@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 200 OK\r\n", answer(b"half")[:-2]])
async def test_what_was_sent_and_not_answered_may_have_happened_and_is_not_sent_again(
    reused: bool, error: Exception | None, before: bytes
) -> None:
    """A service that closes an idle connection looks the same as one that dies over the request."""
    http, sockets = transport()
    if reused:
        await exchanged(http, sockets)
    sending = asyncio.create_task(http.send(request()))
    socket = await sockets.sent(1 + reused)
    if before:
        socket.receive(before)
    socket.lose(error)
    with pytest.raises(NoAnswer):
        await sending
    assert [len(each.sends) for each in sockets.opened] == [1 + reused]
    await http.close()


@pytest.mark.parametrize("said", [b"SSH-2.0-x\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 101 So\r\nUpgrade: x\r\n\r\n"])
async def test_what_is_no_answer_leaves_it_open_what_happened(said: bytes) -> None:
    http, sockets = transport()
    sending = asyncio.create_task(http.send(request()))
    socket = await sockets.sent()
    socket.receive(said)
    socket.lose(None)
    with pytest.raises(NoAnswer):
        await sending
    assert socket.closed
    await http.close()


async def refused(socket: Socket) -> None:
    socket.receive(answer(b"", "Connection: close", status="503 Gone"))


async def still_taking(socket: Socket) -> None:
    socket.unsent = 1
    socket.receive(answer())


async def said_more(socket: Socket) -> None:
    socket.receive(answer() + answer(b"[]"))


async def said_more_later(socket: Socket) -> None:
    socket.receive(answer())
    await asyncio.sleep(0)
    socket.receive(answer(b"[]"))


@pytest.mark.parametrize("happens", [refused, still_taking, said_more, said_more_later])
async def test_a_connection_of_which_more_may_come_is_not_used_again(
    happens: Callable[[Socket], Awaitable[None]],
) -> None:
    """The next request would get an answer that is none of its."""
    http, sockets = transport()
    sending = asyncio.create_task(http.send(request()))
    socket = await sockets.sent()
    await happens(socket)
    assert (await sending).body in (b"", b"{}")
    assert socket.closed
    sockets.opened.clear()
    assert await exchanged(http, sockets) is not socket
    await http.close()


async def test_a_connection_whose_request_was_cancelled_is_used_no_more() -> None:
    http, sockets = transport()
    sending = asyncio.create_task(http.send(request()))
    socket = await sockets.sent()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert socket.closed
    await http.close()


async def test_an_idle_connection_that_ended_is_not_tried() -> None:
    http, sockets = transport()
    (await exchanged(http, sockets)).lose(None)
    sockets.opened.clear()
    await exchanged(http, sockets)
    await http.close()


async def test_closing_ends_what_waits_and_nothing_begins_after_it() -> None:
    http, sockets = transport()
    idle = await exchanged(http, sockets)
    sending = [asyncio.create_task(http.send(request())) for _ in range(2)]
    while len(sockets.opened) < 2 or not sockets.opened[1].sends:
        await asyncio.sleep(0)
    await http.close()
    for each in sending:
        with pytest.raises(NoAnswer):
            await each
    assert idle.closed and sockets.opened[1].closed
    with pytest.raises(Unsent):
        await http.send(request())


@pytest.mark.parametrize(
    "url", ["service/v1", "ftp://service/v1", "http:///v1", "http://service:x/", "http://a:99999/"]
)
async def test_what_is_no_url_of_http_goes_nowhere(url: str) -> None:
    http, sockets = transport()
    with pytest.raises(BadUrl):
        await http.send(request(url=url))
    assert sockets.opened == []


@pytest.mark.parametrize("url", ["http://service/a b", "http://service/a\r\nX: y", "http://service/ä"])
async def test_no_url_becomes_another_header(url: str) -> None:
    http, sockets = transport()
    with pytest.raises(BadUrl):
        await http.send(request(url=url))
    assert sockets.opened == []


@pytest.mark.parametrize(
    ("url", "target", "host"),
    [
        ("http://service", b"/", b"service"),
        ("http://service?a=/b", b"/?a=/b", b"service"),
        ("HTTP://Service:80/a?b#c", b"/a?b", b"service"),
        ("http://service:8470/a%2Fb", b"/a%2Fb", b"service:8470"),
        ("http://[::1]:8470/", b"/", b"[::1]:8470"),
        ("http://bücher.example/", b"/", b"xn--bcher-kva.example"),
    ],
)
async def test_a_url_is_taken_apart(url: str, target: bytes, host: bytes) -> None:
    http, sockets = transport()
    sending = asyncio.create_task(http.send(request(None, url)))
    socket = await sockets.sent()
    assert socket.sends[0].startswith(b"GET %b HTTP/1.1\r\nHost: %b\r\n" % (target, host))
    socket.receive(answer())
    await sending
    await http.close()


# -- in virtual time -------------------------------------------------------------------------------------------


def in_virtual_time(story: Awaitable[T]) -> tuple[T, float]:
    loop = SimulationLoop(Random(0), 1, lambda: 0.0)
    try:
        return loop.run_until_complete(story), loop.time()
    finally:
        loop.close()


async def raised(http: HttpTransport, times: dict[str, float]) -> type[BaseException]:
    try:
        await http.send(request(**times))  # type: ignore[arg-type]
    except (Unsent, NoAnswer) as error:
        await http.close()
        return type(error)
    raise AssertionError("it was answered")


@pytest.mark.parametrize(
    ("times", "error", "after_s"),
    [
        ({"connect_s": 2}, Unsent, 2),
        ({"answer_s": 1}, NoAnswer, 4),  # which begins when it is sent
        ({"answer_s": 9, "end": 5}, NoAnswer, 5),
        ({"end": 1}, Unsent, 1),
        ({"end": 0}, Unsent, 0),
    ],
)
def test_time_is_over(times: dict[str, float], error: type[Exception], after_s: float) -> None:
    """It takes three seconds to connect."""
    assert in_virtual_time(raised(HttpTransport(dialer=Sockets(takes_s=3)), times)) == (error, after_s)


async def _two_requests(apart_s: float) -> list[Socket]:
    http, sockets = transport()
    await exchanged(http, sockets)
    await asyncio.sleep(apart_s)
    sending = asyncio.create_task(http.send(request()))
    while sum(len(socket.sends) for socket in sockets.opened) < 2:
        await asyncio.sleep(0)
    sockets.opened[-1].receive(answer())
    got: Answer = await sending
    assert got.ok
    await http.close()
    return sockets.opened


@pytest.mark.parametrize(("apart_s", "connections"), [(IDLE_S - 1, 1), (IDLE_S + 1, 2)])
def test_a_connection_that_was_idle_for_long_is_not_trusted(apart_s: float, connections: int) -> None:
    opened, _ = in_virtual_time(_two_requests(apart_s))
    assert len(opened) == connections and all(socket.closed for socket in opened)
