"""Goal: a reader that takes nothing of its answer costs a broker at most 8 MiB, however much there is to read, and gets
all of it once it goes on; one that waits for what does not come costs next to nothing.

Method: a broker process, 64 MiB in entries of 1 MiB, or one of 15 MiB, and sockets that are not read. What the process
holds is measured by its resident memory, over enough readers that nothing else counts.
"""

from __future__ import annotations

import base64
import json
import mmap
import os
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest

from metatxn.wire.frames import decode_frames
from tests.extent import usually
from tests.participants.processes.cluster import PATIENCE_S, BrokerProcess

READERS = 12
LIMIT_BYTES = 8 << 20
MIB = 1 << 20
PAYLOAD = os.urandom(MIB)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(
        f"sqlite:///{tmp_path / 'metadata.db'}", tmp_path / "log", {}, "--data-dir", str(tmp_path / "data")
    )
    try:
        yield process.start()
    finally:
        process.kill()


@pytest.fixture
def http(broker: BrokerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.url, timeout=PATIENCE_S) as client:
        yield client


def resident_bytes(broker: BrokerProcess) -> int:
    assert broker._process is not None
    status = Path(f"/proc/{broker._process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


def faults(broker: BrokerProcess) -> int:
    """How many pages the kernel has had to find for the process so far."""
    assert broker._process is not None
    stat = Path(f"/proc/{broker._process.pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[7])


def topic_of(http: httpx.Client, entry_bytes: int) -> str:
    """64 MiB in a topic of one segment; answers the path of its entries."""
    answer = http.post("/v1/topics", json={"name": "t"})
    assert answer.status_code == 201, answer.text
    path = f"/v1/segments/{quote(answer.json()['segments'][0]['segment'], safe='')}/entries"
    value = {"value_base64": base64.b64encode((PAYLOAD * (1 + entry_bytes // MIB))[:entry_bytes]).decode()}
    messages = json.dumps([value] * max(1, MIB // entry_bytes))
    headers = {"Content-Type": "application/vnd.metatxn.messages+json"}
    for _ in range(64 * MIB // len(messages)):
        assert http.post(path, content=messages, headers=headers).status_code == 200
    return path


def asking(stack: ExitStack, broker: BrokerProcess, path: str, body: object = None) -> socket.socket:
    """A connection whose answer has begun to arrive, and is not read. With a `body`, the answer to a post of it."""
    target = urlsplit(broker.url)
    assert target.hostname is not None and target.port is not None
    connection = stack.enter_context(socket.socket())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE_S)
    connection.connect((target.hostname, target.port))
    content = json.dumps(body).encode() if body is not None else b""
    head = f"{'POST' if content else 'GET'} {path} HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n" if content else ""
    connection.sendall(head.encode() + b"\r\n" + content)
    assert connection.recv(1, socket.MSG_PEEK)
    return connection


def body_of(connection: socket.socket) -> bytes:
    answer = bytearray()
    while part := connection.recv(MIB):
        answer += part
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    return body


FEW_ANSWERS = [("entries", 512 << 10, READERS), ("messages", 11 << 20, 4)]
"""What is read, the size of the entries in bytes, and by how many readers. `make test-all` has more."""
MORE_ANSWERS = [("entries", 1 << 10), ("messages", 512 << 10), ("messages", 1 << 10)]


@pytest.mark.parametrize(
    ("what", "entry_bytes", "count"),
    usually(FEW_ANSWERS, [*FEW_ANSWERS, *[(what, size, READERS) for what, size in MORE_ANSWERS]]),
)
def test_a_reader_that_does_not_read_costs_at_most_8_mib(
    broker: BrokerProcess, http: httpx.Client, what: str, entry_bytes: int, count: int
) -> None:
    entries = topic_of(http, entry_bytes)
    path = f"{entries}?max_bytes={16 * MIB}" if what == "entries" else "/v1/topics/t/messages?max=1000"
    expected = http.get(path)  # also what a read needs once is there now
    assert expected.status_code == 200
    before = resident_bytes(broker)
    with ExitStack() as stack:
        readers = [asking(stack, broker, path) for _ in range(count)]
        assert http.get(path).content == expected.content, "others are served meanwhile"
        grown = resident_bytes(broker) - before
        assert grown <= count * LIMIT_BYTES, f"{grown / count / MIB:.1f} MiB each"
        for reader in readers:
            assert body_of(reader) == expected.content
    if what == "entries":
        assert len(list(decode_frames(expected.content))) > 1


@pytest.mark.parametrize("entry_bytes", usually([11 << 20], [11 << 20, 512 << 10, 1 << 10]))
def test_a_consumer_that_does_not_read_costs_at_most_8_mib(
    broker: BrokerProcess, http: httpx.Client, entry_bytes: int
) -> None:
    """Each is a consumer of its own, who is given messages of his own."""
    topic_of(http, entry_bytes)
    path = "/v1/topics/t/subscriptions/s"
    assert http.put(path, json={"type": "shared", "initial": "earliest"}).status_code == 200
    first = http.post(f"{path}/receive", json={"consumer": "first", "max": 1000}).json()["messages"]
    readers = min(READERS, 64 * MIB // max(entry_bytes, 4 * MIB) - 2)
    before = resident_bytes(broker)
    with ExitStack() as stack:
        answers = [
            asking(stack, broker, f"{path}/receive", {"consumer": f"c{number}", "max": 1000})
            for number in range(readers)
        ]
        grown = resident_bytes(broker) - before
        assert grown <= readers * LIMIT_BYTES, f"{grown / readers / MIB:.1f} MiB each"
        ids = [message["message_id"] for answer in answers for message in json.loads(body_of(answer))["messages"]]
    assert first and len(ids) == len(set(ids)) >= readers


def test_a_reader_that_waits_costs_next_to_nothing(broker: BrokerProcess, http: httpx.Client) -> None:
    entries = topic_of(http, 512 << 10)
    end = http.get("/v1/topics/t/messages", params={"max": 1000})
    token = end.json()["next"]
    while (page := http.get("/v1/topics/t/messages", params={"max": 1000, "after": token}).json())["messages"]:
        token = page["next"]
    last = http.get(entries.removesuffix("/entries")).json()["last_position"]
    before = resident_bytes(broker)
    with ExitStack() as stack:
        target = urlsplit(broker.url)
        for number in range(200):
            path = [f"{entries}?after={last}&wait_ms=60000", f"/v1/topics/t/messages?after={token}&wait_ms=60000"]
            connection = stack.enter_context(socket.create_connection((target.hostname, target.port)))
            connection.sendall(f"GET {path[number % 2]} HTTP/1.1\r\nHost: broker\r\n\r\n".encode())
        assert http.get("/healthz").status_code == 200
        assert resident_bytes(broker) - before <= 200 * (64 << 10)


def test_an_entry_that_is_larger_costs_no_more(broker: BrokerProcess, http: httpx.Client) -> None:
    """It is checked as a whole, then let go, and read again as it is taken."""
    answer = http.post("/v1/topics", json={"name": "t"})
    path = f"/v1/segments/{quote(answer.json()['segments'][0]['segment'], safe='')}/entries"
    payload = PAYLOAD * 15
    assert http.post(path, content=payload, headers={"Content-Type": "application/octet-stream"}).status_code == 200
    expected = http.get(path)
    assert [frame.payload for frame in decode_frames(expected.content)] == [payload]
    before = resident_bytes(broker)
    with ExitStack() as stack:
        readers = [asking(stack, broker, path) for _ in range(READERS)]
        assert http.get(path).content == expected.content, "others are served meanwhile"
        grown = resident_bytes(broker) - before
        assert grown <= READERS * LIMIT_BYTES, f"{grown / READERS / MIB:.1f} MiB each"
        for reader in readers:
            assert body_of(reader) == expected.content


def test_an_entry_that_goes_while_it_is_taken_ends_the_connection(broker: BrokerProcess, http: httpx.Client) -> None:
    answer = http.post("/v1/topics", json={"name": "t"})
    path = f"/v1/segments/{quote(answer.json()['segments'][0]['segment'], safe='')}/entries"
    payload = PAYLOAD * 15
    assert http.post(path, content=payload, headers={"Content-Type": "application/octet-stream"}).status_code == 200
    with ExitStack() as stack:
        reader = asking(stack, broker, path)
        assert http.delete("/v1/topics/t").status_code == 204
        assert len(body_of(reader)) < len(payload), "not a byte in the place of those that are gone"
    assert http.get("/readyz").status_code == 200


def test_an_answer_is_read_into_the_memory_of_earlier_ones(broker: BrokerProcess, http: httpx.Client) -> None:
    """4 MiB are 1,024 pages; to have each of them zeroed again for each answer takes longer than to read them. The
    figures are those of glibc's allocator."""
    path = f"{topic_of(http, 512 << 10)}?max_bytes={16 * MIB}"
    answer_bytes = len(http.get(path).content)
    with ThreadPoolExecutor(READERS) as readers:
        list(readers.map(lambda _: http.get(path), range(5 * READERS)))
        before = faults(broker)
        list(readers.map(lambda _: http.get(path), range(5 * READERS)))
    assert faults(broker) - before < 5 * READERS * answer_bytes // mmap.PAGESIZE // 4
