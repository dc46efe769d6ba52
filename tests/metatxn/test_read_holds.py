"""Goal: a program holds a topic while it reads; operators see it; a hold that has ended is told.

Method: a cluster in one process. DESIGN §5.24; scenario 130.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

import metatxn
from metatxn import read_hold
from metatxn.http import Call
from tests.metatxn.command_line import run_here
from tests.metatxn.dev_server import DevServer

NewTopic = Callable[..., str]


def test_a_topic_is_held_while_the_block_runs(client: metatxn.Client, new_topic: NewTopic, dev: DevServer) -> None:
    topic, other = new_topic(2), new_topic()
    with client.transaction() as txn, client.producer(topic) as producer:
        producer.send(1, key="k", txn=txn)
    with client.read_hold(topic) as hold, client.read_hold(other, revision=hold.revision) as too:
        with client.transaction() as txn, client.producer(topic) as producer:
            producer.send(2, key="k", txn=txn)
        reader = client.reader(topic, isolation="snapshot", revision=hold.revision)
        assert [message.value for message in reader] == [1]
        (held,) = client.read_holds(topic)
        assert (held.revision, too.revision) == (hold.revision, hold.revision)
        shown = run_here("topic", "show", topic, METATXN_URL=dev.broker_url).stdout
        assert f"{held.hold_id}, of revision {hold.revision}, until " in shown
        found = json.loads(run_here("topic", "show", topic, "-o", "json", METATXN_URL=dev.broker_url).stdout)
        assert [each["hold_id"] for each in found["read_holds"]] == [held.hold_id]
        assert hold.topic == topic and hold.lost is None
    assert client.read_holds(topic) == client.read_holds(other) == []
    hold.release()


async def test_it_is_prolonged_and_tells_when_it_was_lost(
    dev: DevServer, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    monkeypatch.setattr(read_hold, "SIGNS_OF_LIFE", 1_000)
    async with metatxn.connect_async(dev.coordinator_url) as program:
        async with await program.read_hold(topic) as hold:
            (begun,) = await program.read_holds(topic)
            while (await program.read_holds(topic)) == [begun]:
                await asyncio.sleep(0)  # until it is prolonged
            await program._connection.broker(Call("DELETE", hold._path))  # by an operator
            while hold.lost is None:
                await asyncio.sleep(0.001)
            assert isinstance(hold.lost, metatxn.NotFound)
        with pytest.raises(metatxn.InvalidArgument, match="seconds"):
            await program.read_hold(topic, 0.5)
        with pytest.raises(metatxn.InvalidArgument, match="future"):
            await program.read_hold(topic, revision=2**52)
        with pytest.raises(metatxn.NotFound):
            await program.read_hold("no-such-topic")
