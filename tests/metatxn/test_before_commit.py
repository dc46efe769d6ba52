"""Goal: the client vouches that nobody had committed a transaction when it sent an entry inside, if nobody but itself
commits that transaction, and it has not tried to; and never otherwise (DESIGN §5.1, scenario 170).

Method: a fake cluster, which notes what is vouched for.
"""

from __future__ import annotations

import pytest

import metatxn
from metatxn import publishing
from metatxn.client import AsyncClient
from metatxn.transaction import AsyncTransaction
from tests.metatxn.fake_cluster import COORDINATOR, FakeCluster
from tests.metatxn.test_entry_groups import HIGH, LOW, entries_sent, two_segments


def connected(cluster: FakeCluster) -> AsyncClient:
    return metatxn.connect_async(COORDINATOR, transport=cluster.transport)


async def send(client: AsyncClient, txn: AsyncTransaction, *values: str) -> None:
    producer = client.producer("t")
    for value in values:
        await producer.send(value, key=value, txn=txn)
    await producer.flush()


@pytest.mark.parametrize("largest", [0, publishing.MAX_ENTRY_BYTES], ids=["alone", "together"])
async def test_170_it_vouches_for_what_it_sends_in_a_transaction_that_it_has_begun(
    largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "MAX_ENTRY_BYTES", largest)
    cluster = two_segments()
    async with connected(cluster) as client:
        await send(client, await client.begin(), LOW, HIGH)
    assert ("group" in entries_sent(cluster)) == (largest > 0)
    assert sorted(cluster.vouched) == sorted((LOW, HIGH))


async def test_170_one_entry_of_a_group_may_be_vouched_for() -> None:
    cluster = two_segments()
    async with connected(cluster) as client:
        txn = await client.begin()
        producer = client.producer("t")
        await producer.send(LOW, key=LOW, txn=txn)
        await producer.flush()
        await producer.send(LOW, key=LOW, txn=txn)
        await producer.send(HIGH, key=HIGH, txn=txn)
        await producer.flush()
        txn.leave_open()
        await producer.send(HIGH, key=HIGH, txn=txn)
        await producer.flush()
    assert sorted(cluster.vouched) == sorted((LOW, LOW, HIGH))


async def test_170_it_does_not_vouch_for_a_transaction_that_others_may_commit() -> None:
    cluster = FakeCluster()
    async with connected(cluster) as client:
        txn = await client.begin()
        await send(client, client.attach(txn.id), "attached")
        version = await client.begin(key="k", epoch=1, version=7)
        await send(client, version, "version")
        left = await client.begin()
        left.leave_open()
        await send(client, left, "left open")
        await send(client, await client.begin(key="k", epoch=1), "vouched")
    assert cluster.vouched == ["vouched"]


@pytest.mark.parametrize("how", ["commit", "prepare", "commit by another object", "commit without an answer"])
async def test_170_it_does_not_vouch_once_it_has_tried_to_end_it(how: str) -> None:
    cluster = FakeCluster()
    async with connected(cluster) as client:
        txn = await client.begin()
        await send(client, txn, "before")
        if how == "prepare":
            cluster.before.append(("/prepare", lambda request: cluster._header(txn.id)))
            await txn.prepare()
        elif how == "commit by another object":
            await client.attach(txn.id).commit()
        elif how == "commit":
            await txn.commit()
        else:
            cluster.before.append(("/commit", metatxn_is_away))
            with pytest.raises(metatxn.MetatxnError):
                await txn.commit()
        cluster.transactions[txn.id]["state"] = "OPEN"  # so that the fake takes what comes
        await send(client, txn, "after")
    assert cluster.vouched == ["before"] and cluster.segments["s-0"].entries[-1][1] == ["after"]


def metatxn_is_away(request: object) -> None:
    raise metatxn.MetatxnError("away", definite=True)


async def test_170_it_does_not_vouch_while_a_service_of_release_0_2_0_may_be_there() -> None:
    cluster = FakeCluster()
    cluster.version = None
    async with connected(cluster) as client:
        await send(client, await client.begin(), "1")
        cluster.version = 2
        await client.cluster()
        await send(client, await client.begin(), "2")
    assert cluster.vouched == ["2"]
