"""Goal: while segments are split and merged under transactions, and the server is killed in between, every committed
message arrives once, in the order in which its key was written, and no aborted one does.

Method: real processes, real clients. Each writer owns some keys and numbers its messages; it counts on a transaction
once its header says COMMITTED, and does it again, with the same numbers, when it says ABORTED. Nothing but a kill may
make one fail, and then only with an unknown outcome: of splits and merges a writer hears nothing. Scenarios 26, 89-91,
118; DESIGN §5.13-14.
"""

from __future__ import annotations

import random
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

import metatxn
from tests.extent import usually
from tests.metatxn.dev_server import COMMAND, DevServer
from tests.metatxn.waiting import eventually
from tests.servers import EtcdServer, ZooKeeperServer

WRITERS = 3
KEYS_EACH = 4
TOPIC = "live"
PATIENCE_S = 120
CHANGES = usually(8, 12)
FEW_STORIES = [("sqlite", 0), ("etcd", 1)]
"""The store, and how often the server is killed. `make test-all` has more."""


class Kills:
    """When the server was down. Even: it runs."""

    def __init__(self) -> None:
        self.turn = 0

    def excuse(self, error: metatxn.MetatxnError, since: int) -> bool:
        """Whether a kill in this time is the reason of `error`: it leaves unknown what became of a request, and makes
        nobody refuse one."""
        return not error.definite and (since % 2 == 1 or self.turn != since)


class Writer(threading.Thread):
    """Transactions of a few messages, some aborted on purpose, until it is told to stop. An error without an excuse
    ends it."""

    def __init__(self, url: str, number: int, kills: Kills) -> None:
        super().__init__(name=f"writer {number}")
        self.keys = [f"{number}/{key}" for key in range(KEYS_EACH)]
        self.committed: defaultdict[str, int] = defaultdict(int)
        self.transactions = 0
        """Those that were committed."""
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self._url = url
        self._kills = kills
        self._random = random.Random(number)

    def run(self) -> None:
        try:
            with metatxn.connect(self._url, request_timeout_s=PATIENCE_S) as client:
                while not self.stopping.is_set():
                    self._once(client)
        except BaseException as failure:  # noqa: BLE001  the test raises it
            self.failure = failure

    def _once(self, client: metatxn.Client) -> None:
        producer = client.producer(TOPIC, max_entry_messages=3)
        written: defaultdict[str, int] = defaultdict(int)
        since = self._kills.turn
        txn = client.begin(timeout_ms=PATIENCE_S * 1_000)
        doomed = self._random.random() < 0.2
        excused = False
        try:
            for key in self._random.choices(self.keys, k=self._random.randint(1, 12)):
                number = self.committed[key] + written[key]
                producer.send("never" if doomed else number, key=key, txn=txn)
                written[key] += 1
            if doomed:
                txn.abort()
            else:
                txn.commit()
        except metatxn.MetatxnError as error:
            if not self._kills.excuse(error, since):
                raise
            excused = True
        ended = self._ended(txn)
        assert ended == ("ABORTED" if doomed else "COMMITTED") or (excused and not doomed), f"{txn}: nothing failed"
        if ended == "COMMITTED":
            for key, count in written.items():
                self.committed[key] += count
            self.transactions += 1

    def _ended(self, txn: metatxn.Transaction) -> str:
        """What became of it; aborted if nothing has yet."""
        while txn.refresh().state == "OPEN":
            with suppress(metatxn.MetatxnError):
                txn.abort()
        return txn.state


def change_layout(client: metatxn.Client, dice: random.Random) -> None:
    """Split an active segment, or merge two neighbours."""
    active = sorted((s for s in client.topic(TOPIC).segments if s.state == "active"), key=lambda s: s.range)
    if len(active) < 2 or (len(active) < 5 and dice.random() < 0.6):
        wide = [segment for segment in active if segment.range[0] < segment.range[1]]
        client.split_segment(dice.choice(wide).segment)
    else:
        at = dice.randrange(len(active) - 1)
        client.merge_segments(active[at].segment, active[at + 1].segment)


def progressed(writer: Writer, before: int) -> bool:
    return writer.transactions > before or writer.failure is not None


def orders(client: metatxn.Client) -> dict[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for message in client.reader(TOPIC):
        assert message.key is not None
        found[message.key].append(message.value)
    return dict(found)


@contextmanager
def store(kind: str, directory: Path) -> Iterator[str]:
    """The URL of a metadata store."""
    if kind == "sqlite":
        yield f"sqlite:///{directory / 'metadata.db'}"
    elif kind == "etcd":
        with EtcdServer(directory / kind) as etcd:
            yield f"etcd://{etcd.endpoint}"
    else:
        with ZooKeeperServer(directory / kind) as zookeeper:
            yield f"zk://{zookeeper.endpoint}"


def assert_lawful(url: str) -> None:
    """Nothing in the store contradicts the layout, while it is being served."""
    done = subprocess.run([*COMMAND, "store", "check", "--store", url], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("kind", "restarts"), usually(FEW_STORIES, [*FEW_STORIES, ("sqlite", 3), ("zookeeper", 3)]))
def test_89_91_118_writers_go_on_while_segments_are_split_and_merged(tmp_path: Path, kind: str, restarts: int) -> None:
    with store(kind, tmp_path) as url:
        story(tmp_path / "data", url, restarts)


def story(data_dir: Path, url: str, restarts: int) -> None:
    dice = random.Random(restarts)
    server = DevServer(data_dir, "--store", url)
    server.start()
    ports = [int(url.rpartition(":")[2]) for url in (server.coordinator_url, server.broker_url)]
    with metatxn.connect(server.coordinator_url, request_timeout_s=PATIENCE_S) as client:
        client.create_topic(TOPIC, segments=2)
        kills = Kills()
        writers = [Writer(server.coordinator_url, number, kills) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        try:
            for change in range(CHANGES):
                seen = [writer.transactions for writer in writers]
                change_layout(client, dice)
                if change % 4 == 3 and change // 4 < restarts:
                    kills.turn += 1
                    server.stop(signal.SIGKILL)
                    server = DevServer(data_dir, "--store", url, port=ports[0], broker_port=ports[1])
                    server.start()
                    kills.turn += 1
                for writer, before in zip(writers, seen, strict=True):
                    eventually(partial(progressed, writer, before), True, PATIENCE_S)
        finally:
            for writer in writers:
                writer.stopping.set()
            for writer in writers:
                writer.join()
        assert [writer.failure for writer in writers] == [None] * WRITERS
        expected = {key: list(range(count)) for writer in writers for key, count in writer.committed.items() if count}
        eventually(lambda: orders(client), expected, PATIENCE_S)
        assert len(client.topic(TOPIC).segments) > CHANGES
        assert_lawful(url)
        client.delete_topic(TOPIC)
        assert_lawful(url)
    assert server.stop() == 0
