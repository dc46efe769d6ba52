"""What a client and the gateway have said to each other: recorded frame by frame, and played again.

connection · who · frame in base64        one line for each frame, in the order in which they were seen
"""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metatxn.service.exposure import Exposure
from metatxn_gateways.listener import FrameConnection, Handler, Reply
from metatxn_gateways.pulsar.commands import read_command
from metatxn_gateways.pulsar.service import PulsarListener
from tests.gateways.conftest import Serving
from tests.gateways.pulsar.client import PulsarClient
from tests.gateways.pulsar.conftest import PulsarGateway

CLIENT, SERVER = "client", "server"
_VOLATILE = {
    "lookup_response": ("broker_url",),
    "producer_success": ("producer_name",),
    "scalable_topic_update": ("layout",),
    "watch_tc_assignments_update": ("snapshot",),
}
"""What is another thing each time."""


@dataclass(frozen=True, slots=True)
class Said:
    connection: int
    who: str
    frame: bytes


def read(path: Path) -> list[Said]:
    parts = [line.split() for line in path.read_text().splitlines()]
    return [Said(int(number), who, base64.b64decode(frame)) for number, who, frame in parts]


def write(path: Path, said: Iterable[Said]) -> None:
    lines = [f"{each.connection} {each.who} {base64.b64encode(each.frame).decode()}" for each in said]
    path.write_text("\n".join(lines) + "\n")


class RecordingListener(PulsarListener):
    """Remembers what is said."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.said: list[Said] = []
        self._connections = 0

    def _connect(self, link: FrameConnection) -> Handler:
        number, self._connections = self._connections, self._connections + 1
        send = link.send

        def recorded(*frames: Reply) -> None:
            self.said += [Said(number, SERVER, b"".join(map(bytes, each))) for each in frames]
            send(*frames)

        link.send = recorded  # type: ignore[method-assign]
        handle = super()._connect(link)

        def heard(request: memoryview) -> Any:
            self.said.append(Said(number, CLIENT, bytes(request)))
            return handle(request)

        return heard


async def recorded(gateway: PulsarGateway, *topics: str, exposure: Exposure | None = None) -> RecordingListener:
    """A listener that remembers what is said, with these topics."""
    for topic in topics:
        await gateway.create(topic, 2)
    await gateway.listener.stop()
    gateway.listener = listener = RecordingListener(
        gateway.world.store, service=Serving(gateway.broker), port=gateway.port, exposure=exposure
    )
    await listener.start()
    return listener


def keep(listener: RecordingListener, name: str) -> None:
    """Write down what was said, for `test_conversation`, if METATXN_RECORD names a directory."""
    if directory := os.environ.get("METATXN_RECORD"):
        write(Path(directory) / f"{name}.conversation", listener.said)


async def play(url: str, said: list[Said]) -> tuple[Counter[str], Counter[str]]:
    """Say what the client has said, each time once everything was heard that it had heard by then. Returns what was
    heard from the gateway when it was recorded, and now."""
    clients: dict[int, PulsarClient] = {}
    expected: Counter[int] = Counter()
    try:
        for each in said:
            if each.connection not in clients:
                clients[each.connection] = await PulsarClient.opened(url)
            client = clients[each.connection]
            if each.who == SERVER:
                expected[each.connection] += not _is_keep_alive(each.frame)
            else:
                await client.until_heard(expected[each.connection])
                client.raw(each.frame)
        for number, client in clients.items():
            await client.until_heard(expected[number])
        heard = [frame for client in clients.values() for frame in client.heard]
    finally:
        for client in clients.values():
            await client.close()
    then = [each.frame for each in said if each.who == SERVER]
    return _told(then), _told(heard)


def _told(frames: Iterable[bytes]) -> Counter[str]:
    return Counter(_lasting(frame) for frame in frames if not _is_keep_alive(frame))


def _lasting(frame: bytes) -> str:
    name, fields, entry = read_command(memoryview(frame))
    for volatile in _VOLATILE.get(name, ()):
        fields.ClearField(volatile)
    if "assignment" in fields.DESCRIPTOR.fields_by_name:
        fields.assignment.ClearField("layout_epoch")
    return f"{name}: {str(fields).split()} {bytes(entry)!r}"


def _is_keep_alive(frame: bytes) -> bool:
    return read_command(memoryview(frame))[0] in ("ping", "pong")
