"""The four-letter commands, which a ZooKeeper server answers to anyone if its settings allow them."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable

from metastore.backends.credentials import Tls

WITHIN_S = 3.0
MOST_BYTES = 1 << 20


async def stored_bytes(hosts: Iterable[tuple[str, int]], tls: Tls | None) -> list[int]:
    """The bytes of snapshots and logs, of each server that reports them by `conf`."""
    asked = [asyncio.to_thread(ask, host, port, b"conf", tls) for host, port in hosts]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    told = [numbers_in(answer) for answer in answers if isinstance(answer, str)]
    return [each["dataDirSize"] + each["dataLogSize"] for each in told if {"dataDirSize", "dataLogSize"} <= each.keys()]


def numbers_in(conf: str) -> dict[str, int]:
    """The numbers in an answer to `conf`."""
    return {name: int(value) for name, value in re.findall(r"^(\w+)=(\d+)$", conf, re.MULTILINE)}


def ask(host: str, port: int, request: bytes, tls: Tls | None) -> str:
    """Ask a server. The answer ends with the connection, which some servers close without a TLS close notification."""
    with socket.create_connection((host, port), timeout=WITHIN_S) as plain:
        plain.settimeout(WITHIN_S)
        if tls is None:
            return _answer(plain, request)
        with tls.context().wrap_socket(plain, server_hostname=host) as secured:
            return _answer(secured, request)


def _answer(connection: socket.socket, request: bytes) -> str:
    connection.sendall(request)
    with connection.makefile("rb") as answer:
        return answer.read(MOST_BYTES).decode(errors="replace")
