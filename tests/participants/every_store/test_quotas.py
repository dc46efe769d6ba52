"""Goal: a principal gets what its quota says of both services, and is told for how long it has to wait; nobody else is
held up, and neither are its decisions.

Method: as in `test_keeping`; the clock of the quotas is that of the services. Scenarios 160 to 162.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack

import pytest

import metatxn
from tests.participants.every_store.running import MINUTE_MS, QUOTA_PRINCIPALS, QUOTA_TOPIC, Running


def told(cluster: Running, principal: str, **amounts: int | None) -> None:
    """Set a quota, and return when both services have heard of it."""
    cluster.client.set_quota(principal, **amounts)
    wanted = {name: value for name, value in amounts.items() if value is not None}

    async def heard() -> None:
        for service in (cluster.services.coordinator, cluster.services.broker):
            while {name: service.quotas._limits(principal).get(name) for name in amounts} != {
                name: wanted.get(name) for name in amounts
            }:
                await asyncio.sleep(0.001)

    cluster.run(heard())


def until_refused(ask: Callable[[], object]) -> None:
    """As often as it takes."""
    for _ in range(10_000):
        ask()


def first_of(client: metatxn.Client) -> object:
    return next(iter(client.reader(QUOTA_TOPIC))).value


def test_a_principal_gets_its_quota_and_the_others_theirs(cluster: Running) -> None:
    topic = QUOTA_TOPIC
    cluster.client.create_topic(topic)
    name, other = QUOTA_PRINCIPALS
    with ExitStack() as stack:
        bob, eve = (stack.enter_context(cluster.hasty(cluster.tokens[each])) for each in (name, other))

        def publish(client: metatxn.Client, size: int, sequence: int) -> str:
            return client.publish(topic, "x" * size, producer="p", sequence=sequence)

        def refused(amount: str, ask: Callable[[], object]) -> None:
            with pytest.raises(metatxn.RateLimited) as error:
                ask()
            assert error.value.definite and error.value.members["quota"] == amount
            assert error.value.retry_after_s is not None and error.value.retry_after_s >= 1

        told(cluster, name, bytes_in_per_second=1_000, bytes_out_per_second=1_000)
        txn = bob.begin()
        publish(bob, 100_000, 1)
        refused("bytes_in_per_second", lambda: publish(bob, 1, 2))
        publish(eve, 100_000, 3)
        publish(eve, 1, 4)
        assert txn.commit().state == "COMMITTED", "a decision moves no messages"
        assert first_of(bob) == "x" * 100_000, "reading has an amount of its own"
        refused("bytes_out_per_second", lambda: first_of(bob))
        assert first_of(eve) and first_of(eve)
        cluster.later(10 * MINUTE_MS)
        publish(bob, 1, 2)
        assert first_of(bob)

        told(cluster, name, bytes_in_per_second=None, bytes_out_per_second=None, requests_per_second=1)
        with pytest.raises(metatxn.RateLimited):
            until_refused(lambda: bob.quota(name))
        assert eve.quota(other).effective.requests_per_second.source == "none"
        told(cluster, name, requests_per_second=None)
        publish(bob, 1, 5)
        assert len(list(eve.reader(topic))) == 5
