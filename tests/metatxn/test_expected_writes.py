"""Goal: a program that writes to the same segments in each transaction has their brokers told before it writes there
(DESIGN §5.1, "Announced ahead"), and nobody else does. Whatever becomes of that, the program notices nothing.

Method: as in `test_begun_ahead`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import metatxn
from metatxn.expected_writes import ALIKE, ASK_AGAIN_S, MOST_WRITING, ExpectedWrites
from metatxn.wire.broker import MAX_ANNOUNCED_SEGMENTS
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.ids import TxnId
from tests.metatxn.fake_cluster import Fault, answering, lost
from tests.metatxn.test_begun_ahead import PAUSE_S, Timed, run
from tests.metatxn.test_entry_groups import HIGH, LOW

TRANSACTIONS = 60
INTENTS = "POST /v1/intents"


async def write(client: metatxn.AsyncClient, count: int = TRANSACTIONS, key: Any = lambda number: "k") -> list[str]:
    """Transactions of one message each. Returns their ids."""
    producer, found = client.producer("t"), []
    for number in range(count):
        async with client.transaction() as txn:
            await producer.send(number, key=key(number), txn=txn)
        found.append(txn.id)
        await asyncio.sleep(PAUSE_S)
    return found


def test_the_next_transactions_are_announced_where_the_last_ones_wrote() -> None:
    timed, written = Timed(), list[str]()

    async def story(client: metatxn.AsyncClient) -> None:
        written.extend(await write(client))
        await client.close()

    run(story, timed)
    announced = timed.cluster.announced
    assert all(each["segments"] == ["s-0"] for each in announced)
    found = [txn_id for each in announced for txn_id in each["txn_ids"]]
    assert len(set(found)) == len(found) > TRANSACTIONS // 2
    assert set(written[TRANSACTIONS // 2 :]) <= set(found)
    assert timed.count(INTENTS) < TRANSACTIONS // 2, "many at once"


def test_who_writes_elsewhere_each_time_announces_nothing() -> None:
    timed = Timed()
    timed.cluster.split("s-0")

    async def story(client: metatxn.AsyncClient) -> None:
        await write(client, key=lambda number: (LOW, HIGH)[number % 2])
        await client.close()

    run(story, timed)
    assert timed.cluster.announced == []


def test_a_program_that_begins_to_write_elsewhere_is_believed_after_some_transactions() -> None:
    timed = Timed()
    timed.cluster.split("s-0")

    async def story(client: metatxn.AsyncClient) -> None:
        await write(client, key=lambda number: LOW)
        before = len(timed.cluster.announced)
        await write(client, key=lambda number: HIGH)
        assert len({str(each["segments"]) for each in timed.cluster.announced[:before]}) == 1
        assert timed.cluster.announced[-1]["segments"] != timed.cluster.announced[0]["segments"]
        await client.close()

    run(story, timed)


@pytest.mark.parametrize(
    "fault",
    [answering(ErrorCode.STORE_UNAVAILABLE), answering(ErrorCode.NOT_ALLOWED), answering(ErrorCode.NOT_OWNER), lost],
)
def test_whatever_becomes_of_an_announcement_the_program_notices_nothing(fault: Fault) -> None:
    timed = Timed()
    timed.cluster.after = [(INTENTS, fault)] * 1_000

    async def story(client: metatxn.AsyncClient) -> None:
        await write(client)
        await client.close()

    run(story, timed)
    assert len(timed.cluster.visible()) == TRANSACTIONS


def test_a_broker_of_an_earlier_release_is_asked_once_in_a_while() -> None:
    timed = Timed()
    timed.cluster.knows_announcements = False

    async def story(client: metatxn.AsyncClient) -> None:
        await write(client)
        assert timed.count(INTENTS) == 1
        await asyncio.sleep(ASK_AGAIN_S)
        await write(client)
        assert timed.count(INTENTS) == 2
        await client.close()

    run(story, timed)


def test_an_unknown_transaction_does_not_make_a_broker_one_of_an_earlier_release() -> None:
    timed = Timed()
    timed.cluster.before = [(INTENTS, answering(ErrorCode.TXN_NOT_FOUND))]

    async def story(client: metatxn.AsyncClient) -> None:
        await write(client)
        await client.close()

    run(story, timed)
    assert timed.count(INTENTS) > 1 and timed.cluster.announced


def test_entries_of_a_writer_announce_nothing() -> None:
    """Writers are new each time, and an announcement covers only entries without one."""
    timed = Timed()

    async def story(client: metatxn.AsyncClient) -> None:
        connection = client._connection
        await connection.layout("t")
        connection._publishing.publish = published  # type: ignore[method-assign]
        for _ in range(TRANSACTIONS):
            txn = await client.begin()
            await connection.publish("s-0", Entry(b"", PayloadKind.BYTES, 1, TxnId.parse(txn.id), "w"))
            await txn.commit()
            await asyncio.sleep(PAUSE_S)
        await client.close()

    async def published(segment: str, entry: Entry) -> str:
        return "0:0"

    run(story, timed)
    assert timed.cluster.announced == []


def expected_after(*written: set[str]) -> int:
    """How many segments are expected of the next transaction after these."""
    writes = ExpectedWrites(None, None)  # type: ignore[arg-type]  # nothing is sent
    for number, segments in enumerate(written):
        for segment in segments:
            writes.writes(str(number), segment)
        writes.ended(str(number))
    return len(writes.expected())


def test_only_what_each_of_the_last_transactions_wrote_to_is_expected() -> None:
    assert expected_after(*[{"a"}] * (ALIKE - 1)) == 0
    assert expected_after(*[{"a"}] * ALIKE) == 1
    assert expected_after({"b"}, *[{"a", "b"}] * (ALIKE - 2), {"b", "c"}) == 1
    assert expected_after({"x"}, *[{"a", "b"}] * ALIKE) == 2
    assert expected_after(*[{"a"}] * ALIKE, set()) == 1, "one that wrote nothing says nothing"
    most = {str(number) for number in range(MAX_ANNOUNCED_SEGMENTS)}
    assert expected_after(*[most] * ALIKE) == MAX_ANNOUNCED_SEGMENTS
    assert expected_after(*[most | {"one more"}] * ALIKE) == 0


def test_what_never_ends_is_forgotten() -> None:
    """And of a wide transaction no more than tells that it is one."""
    wide = ExpectedWrites(None, None)  # type: ignore[arg-type]  # nothing is sent
    for number in range(1_000):
        wide.writes("1", str(number))
    assert len(wide._writing["1"]) == MAX_ANNOUNCED_SEGMENTS + 1
    writes = ExpectedWrites(None, None)  # type: ignore[arg-type]  # nothing is sent
    for number in range(2 * MOST_WRITING):
        writes.writes(str(number), "a")
    assert len(writes._writing) == MOST_WRITING
