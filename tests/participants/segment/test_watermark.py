"""Goal: a disk that is used up to the watermark takes no new messages, and everything else goes on.

Method: a broker in this process on local files, whose disk says how much of it is used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
import structlog.testing

from metatxn.wire.errors import ErrorCode
from participants.ledger.watermark import Space, Watermark
from tests.participants.devices import LocalDevice, only
from tests.participants.ledger.faults import broken
from tests.participants.segment.world import World
from tests.participants.subscription.consuming import Consuming

device = only("local", "An object store is never full.")


@pytest.fixture
async def topic(world: World) -> AsyncIterator[Consuming]:
    found = await Consuming.start(world, 1)
    yield found
    await found.process.stop()


async def fill(topic: Consuming, used: int) -> None:
    """Of a disk of 100 bytes."""
    assert isinstance(topic.process.device, LocalDevice)
    topic.process.device.disk.measured = Space(used, 100)
    await topic.process.broker.measure()


async def published(topic: Consuming, value: str, inside: str = "", **more: object) -> str | None:
    body = {"messages": [{"value": value}], **more}
    answer = await topic.ask("POST", f"/messages{inside}", body)
    assert answer.status_code in (200, 507), answer.text
    if answer.status_code == 200:
        return None
    problem = answer.json()
    assert problem["definite"] and problem["retriable"] and "Retry-After" in answer.headers
    return str(problem["code"])


async def test_new_messages_are_refused_and_everything_else_goes_on(topic: Consuming) -> None:
    await topic.subscribe("s")
    await topic.publish("a")
    txn, lost = await topic.world.begin(), await topic.world.begin()
    await topic.publish("b", txn_id=txn)
    await topic.publish("c", txn_id=lost)
    await fill(topic, 90)
    assert await published(topic, "d") == ErrorCode.STORAGE_FULL
    metrics = topic.process.metrics
    assert (metrics.storage_used._value.get(), metrics.storage_capacity._value.get()) == (90, 100)
    assert metrics.storage_refuses._value.get() == 1
    (first,) = await topic.receive("s")
    await topic.acked([first["message_id"]], txn, name="s")
    await topic.commit(txn)
    await topic.abort(lost)
    assert await topic.values("s") == ["b"]
    segment = topic.segments[0].replace("/", "%2F")
    trimmed = await topic.process.http.post(f"/v1/segments/{segment}/trim", json={"before": "1:1"})
    assert trimmed.status_code in (200, 204), trimmed.text
    for each in list(topic.process.broker.served.values()):
        each.roll()
    await topic.idle()
    await fill(topic, 89)
    assert metrics.storage_refuses._value.get() == 0
    assert await published(topic, "d") is None


async def test_a_disk_that_cannot_be_measured_counts_as_full_as_it_was(topic: Consuming) -> None:
    await fill(topic, 95)
    topic.process.disk.space_error = broken()
    with structlog.testing.capture_logs() as said:
        await topic.process.broker.measure()
    assert "the disk cannot be measured" in [line["event"] for line in said]
    assert await published(topic, "a") == ErrorCode.STORAGE_FULL
    assert topic.process.metrics.storage_used._value.get() == 95
    topic.process.disk.space_error = None
    await fill(topic, 89)
    assert await published(topic, "a") is None


async def test_a_refused_publish_of_a_transaction_leaves_no_intent(topic: Consuming) -> None:
    txn = await topic.world.begin()
    await fill(topic, 95)
    before = await topic.world.store.inner.current_revision()
    assert await published(topic, "a", f"?txn_id={txn}") == ErrorCode.STORAGE_FULL
    assert await topic.world.store.inner.current_revision() == before


async def test_a_retry_of_what_was_appended_is_answered(topic: Consuming) -> None:
    assert await published(topic, "a", producer="p", sequence=1) is None
    await fill(topic, 95)
    assert await published(topic, "a", producer="p", sequence=1) is None
    assert await published(topic, "b", producer="p", sequence=2) == ErrorCode.STORAGE_FULL


# -- the pure part -----------------------------------------------------------------------------------------------------


def test_what_was_admitted_since_the_last_measurement_counts() -> None:
    watermark = Watermark(50)
    assert watermark.admits(10**9), "nothing was measured"
    watermark.measured(Space(10, 100))
    assert watermark.admits(39) and watermark.admits(1000) and not watermark.admits(1)
    assert watermark.refusal is not None
    watermark.measured(Space(49, 100))
    assert watermark.admits(1) and not watermark.admits(1)
    watermark.measured(None)
    assert watermark.admits(10**9)


def test_a_watermark_of_100_percent_refuses_nothing() -> None:
    watermark = Watermark(100)
    watermark.measured(Space(100, 100))
    assert watermark.admits(1)


async def test_a_disk_is_measured(tmp_path: Path) -> None:
    async with await LocalDevice(tmp_path / "data").open() as storage:
        space = await storage.space()
    assert 0 < space.used_bytes < space.capacity_bytes
