"""Goal: the broker process as a whole starts, answers on its port, stops whatever is broken, and frees what it held.

Method: a real server on a free port, over a store with faults.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx
import pytest

from metastore.errors import StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.processes import ProcessRecord
from metastore.versions import SPEAKS
from participants.broker.broker import NOT_IN_STORE
from participants.ledger.local import LocalStorage
from participants.ledger.storage import StorageLocked
from participants.ledger.watermark import Space
from participants.service import BrokerService
from tests.participants.segment.world import World

TOPIC = {"name": "t"}


async def test_a_topic_outlives_the_process_at_another_port(world: World, tmp_path: Path) -> None:
    for life in range(2):
        service = BrokerService(world.store, data_dir=tmp_path / "data", port=0)
        await service.start()
        async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:
            if life == 0:
                assert (await http.post("/v1/topics", json=TOPIC)).status_code == 201
                answer = await http.post("/v1/topics/t/messages", json={"messages": [{"value": 1}]})
                assert answer.status_code == 200
            else:
                while (await http.get("/readyz")).status_code != 200:
                    pass
                assert [m["value"] for m in (await http.get("/v1/topics/t/messages")).json()["messages"]] == [1]
                (segment,) = (await http.get("/v1/topics/t")).json()["segments"]
                assert segment["owner"] == service.url
            assert service.broker is not None
            for kafka, pulsar in ((None, None), ("broker.example:9092", "pulsar://broker.example:6650")):
                await service.broker.announcement.name_kafka(kafka)
                await service.broker.announcement.name_pulsar(pulsar)
                (broker,) = (await http.get("/v1/cluster")).json()["brokers"]
                assert (broker["url"], broker.get("kafka"), broker.get("pulsar")) == (service.url, kafka, pulsar)
        await service.stop()
        assert (await world.store.scan(paths.BROKERS)).records == []


async def test_it_is_announced_before_it_reads_the_cluster_version(world: World, tmp_path: Path) -> None:
    """So the one who raises the version meanwhile finds it (DESIGN §12)."""
    service = BrokerService(world.store, data_dir=tmp_path / "data", port=0)
    reading = world.store.hold_read(lambda wanted: paths.VERSION in wanted, unread=True)
    starting = asyncio.create_task(service.start())
    await reading.reached.wait()
    (announced,) = (await world.store.inner.scan(paths.PROCESSES)).records
    reading.go.set()
    await starting
    process = ProcessRecord.decode(announced.value)
    assert (process.service, process.url, process.speaks) == ("broker", service.url, SPEAKS)
    await service.stop()
    assert (await world.store.inner.scan(paths.PROCESSES)).records == []


async def test_a_disk_above_the_watermark_is_shown_and_the_broker_is_ready(world: World, tmp_path: Path) -> None:
    service = BrokerService(world.store, data_dir=tmp_path / "data", port=0)
    await service.start()
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:
        assert "warnings" not in (await http.get("/readyz")).json()
        assert service.broker is not None
        service.broker.watermark.measured(Space(9, 10))
        answer = await http.get("/readyz")
        assert answer.status_code == 200 and "9 of 10 bytes" in answer.json()["warnings"]["storage"]
    await service.stop()


async def test_it_is_not_ready_with_ledgers_of_a_segment_that_the_store_does_not_know(
    world: World, tmp_path: Path
) -> None:
    """Other topics are served meanwhile."""
    service = BrokerService(world.store, data_dir=tmp_path / "data", port=0)
    await service.start()
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:
        answer = await http.post("/v1/topics", json=TOPIC)
        assert (await http.post("/v1/topics/t/messages", json={"messages": [{"value": 1}]})).status_code == 200
    await service.stop()
    (unknown,) = (segment["segment"] for segment in answer.json()["segments"])
    await world.forget(unknown)
    again = BrokerService(world.store, data_dir=tmp_path / "data", port=0)
    await again.start()
    async with httpx.AsyncClient(base_url=again.url, timeout=60) as http:
        answer = await http.get("/readyz")
        assert answer.status_code == 503 and answer.json()["waiting_for"] == {unknown: NOT_IN_STORE}
        assert (await http.post("/v1/topics", json={"name": "other"})).status_code == 201
        assert (await http.post("/v1/topics/other/messages", json={"messages": [{"value": 1}]})).status_code == 200
    await again.stop()


async def test_it_stops_although_the_store_is_away_and_frees_the_directory(world: World, tmp_path: Path) -> None:
    service = BrokerService(world.store, data_dir=tmp_path / "data", port=0)
    await service.start()
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:
        await http.post("/v1/topics", json=TOPIC)
    assert service.broker is not None
    announcement = service.broker.announcement._record
    assert announcement is not None

    async def away() -> None:
        raise StoreUnavailable("gone")

    announcement.close = away  # type: ignore[method-assign]
    await service.stop()
    await LocalStorage.open(tmp_path / "data").close()


async def test_a_start_that_fails_frees_the_directory(world: World, tmp_path: Path) -> None:
    world.store.away = StoreUnavailable("gone")
    service = BrokerService(world.store, data_dir=tmp_path / "data", port=0)
    with pytest.raises(StoreUnavailable):
        await service.start()
    await LocalStorage.open(tmp_path / "data").close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        service = BrokerService(world.store, data_dir=tmp_path / "data", port=taken.getsockname()[1])
        with pytest.raises(OSError):
            await service.start()
    await LocalStorage.open(tmp_path / "data").close()


async def test_two_brokers_never_share_a_directory(world: World, tmp_path: Path) -> None:
    first = BrokerService(world.store, data_dir=tmp_path / "data", port=0)
    await first.start()
    with pytest.raises(StorageLocked):
        await BrokerService(world.store, data_dir=tmp_path / "data", port=0).start()
    await first.stop()
