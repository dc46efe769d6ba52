"""Goal: a subscription moves to a time, a position or a revision on all segments at once, or not at all; no open
transaction loses an acknowledgement without being told.

Method: as in `test_keeping`. DESIGN §5.10; scenarios 47 to 50.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

import metatxn
from tests.participants.every_store.running import HIGH, LOW, MINUTE_MS, Running, all_of


def values(messages: Sequence[metatxn.Message]) -> list[Any]:
    return sorted(message.value for message in messages)


def test_a_subscription_moves_to_a_time_or_positions_and_pending_acknowledgements_are_not_lost(
    cluster: Running,
) -> None:
    client = cluster.client
    topic = cluster.topic(segments=2)
    client.create_subscription(topic, "s")
    times: list[datetime] = []
    places: list[dict[str, str]] = []
    for number in range(3):
        places.append({})
        for key, segment in zip((LOW, HIGH), cluster.segments(topic), strict=True):
            (places[-1][segment],) = cluster.put(topic, f"{number}{key}", key=key)
        first_ms = min(each.publish_ms for each in client.reader(topic) if each.value.startswith(str(number)))
        times.append(datetime.fromtimestamp(first_ms / 1000, UTC))
        cluster.later(MINUTE_MS)
    everything = sorted(f"{number}{key}" for number in range(3) for key in (LOW, HIGH))
    with client.consumer(topic, "s") as consumer:
        held = all_of(consumer, 6)
        assert values(held) == everything
        consumer.acknowledge([message for message in held if message.value.startswith("0")])
        txn = cluster.begin()
        (late,) = [message for message in held if message.value == f"2{LOW}"]
        consumer.acknowledge(late, txn)
        before = client.subscription(topic, "s")
        for place in ("earliest", "latest", times[1], places[1]):
            with pytest.raises(metatxn.TransactionConflict) as refused:
                consumer.seek(place)
            assert refused.value.members["holders"] == [txn.id]
        assert client.preview_seek(topic, "s", times[1]).holders == [txn.id]
        assert client.subscription(topic, "s").segments == before.segments, "nothing has changed"
        preview = client.preview_seek(topic, "s", places[0])
        assert [(each.messages, each.again, each.skipped) for each in preview.segments] == [(3, 1, 0)] * 2
        moved = consumer.seek(times[1], force=True)
        assert moved.aborted == [txn.id]
        assert txn.refresh().state == "ABORTED"
        assert values(all_of(consumer, 4)) == everything[2:]
        consumer.seek(times[1])
        other = cluster.begin()
        with pytest.raises(metatxn.TransactionConflict):  # it was not given to anybody since
            consumer.acknowledge(late, other)
        cluster.abort(other)
        consumer.seek(places[2])
        again = all_of(consumer, 2)
        assert values(again) == everything[4:]
        committed = cluster.begin()
        consumer.acknowledge(again, committed)
        cluster.commit(committed)
        assert cluster.backlog(topic) == 0
        consumer.seek("latest")
        assert consumer.receive(0) is None
        consumer.seek("earliest")
        assert values(all_of(consumer, 6)) == everything
    assert cluster.backlog(topic) == 6 and not client.subscription(topic, "s").segments[0].pending_acks
    ops = [key for each in (txn, other, committed) for key in cluster.keys(f"/txn-op/{each.id}/")]
    assert ops == []


def test_behind_a_revision_each_transaction_comes_once_and_none_of_the_snapshot(cluster: Running) -> None:
    client = cluster.client
    topic = cluster.topic(segments=2)
    client.create_subscription(topic, "view")
    early, late, lost = cluster.begin(), cluster.begin(), cluster.begin()
    for number in range(3):
        for key, names in ((LOW, ("late", "early", "lost")), (HIGH, ("early", "late", "lost"))):
            for name in names:
                txn = {"late": late, "early": early, "lost": lost}[name]
                cluster.put(topic, f"{name}{number}{key}", key=key, txn=txn)
    revision = cluster.commit(early)
    cluster.commit(late)
    cluster.abort(lost)
    for key in (LOW, HIGH):
        cluster.put(topic, f"plain{key}", key=key)
    shown = sorted(f"early{number}{key}" for number in range(3) for key in (LOW, HIGH))
    plain = [f"plain{key}" for key in (LOW, HIGH)]
    rest = sorted([*(f"late{number}{key}" for number in range(3) for key in (LOW, HIGH)), *plain])
    assert sorted(cluster.read(topic, isolation="snapshot", revision=revision)) == sorted([*shown, *plain])
    preview = client.preview_seek(topic, "view", revision=revision)
    assert preview.complete and sum(each.messages for each in preview.segments) == len(rest)
    client.seek(topic, "view", revision=revision)
    with client.consumer(topic, "view") as consumer:
        assert values(all_of(consumer, len(rest))) == rest
    with pytest.raises(metatxn.InvalidArgument):
        client.seek(topic, "view", revision=revision + 10**9)
    assert cluster.backlog(topic, "view") == len(rest)
