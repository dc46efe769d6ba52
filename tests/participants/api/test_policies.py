"""Goal: a policy is what was set, value by value, from the closest place that sets it; wrong input changes nothing.

Method: the merge is a pure function; over REST, a broker in this process.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from metastore.check import StoreCheck
from metastore.txn import paths
from metatxn.service.security.principal import Grants, Principal
from metatxn.wire import errors
from metatxn.wire.policies import MIN_ROLL_MS, PolicySettings, effective
from tests.participants.broker.process import BrokerProcess

TOPIC = "/v1/topics/shop%2Fprod%2Forders"
NAMESPACE = "/v1/policies/namespaces/shop/prod"
CLUSTER = "/v1/policies/cluster"


def test_each_value_comes_from_the_closest_policy_that_sets_it() -> None:
    topic = PolicySettings(retention_bytes=-1)
    namespace = PolicySettings(retention_bytes=10, retention_ms=20)
    cluster = PolicySettings(retention_ms=30, retention="hard")
    found = effective(("topic", topic), ("namespace", namespace), ("cluster", cluster))
    assert [(name, each.value, each.source) for name, each in found] == [
        ("retention_ms", 20, "namespace"),
        ("retention_bytes", -1, "topic"),
        ("retention", "hard", "cluster"),
        ("roll_ms", -1, "default"),
        ("max_unacked_per_consumer", 50_000, "default"),
        ("cleanup", "delete", "default"),
        ("delete_retention_ms", 86_400_000, "default"),
        ("ttl_ms", -1, "default"),
        ("backlog_bytes", -1, "default"),
        ("backlog_ms", -1, "default"),
        ("backlog", "producer_hold", "default"),
        ("schema_compatibility", "full", "default"),
        ("schema_updates", "producers", "default"),
    ]


def test_a_topic_that_is_only_compacted_drops_nothing() -> None:
    for cleanup, drops, compacts in (("delete", True, False), ("compact", False, True), ("both", True, True)):
        found = effective(("topic", PolicySettings(retention_ms=5_000, cleanup=cleanup)))
        assert (found.drops, found.compacts, found.roll_after_ms) == (drops, compacts, 5_000)


def test_without_a_policy_nothing_is_dropped_and_nothing_rolls() -> None:
    assert not effective().drops
    assert effective().roll_after_ms is None
    assert not effective(("topic", PolicySettings(retention_ms=-1)), ("cluster", PolicySettings(retention_ms=1))).drops


@pytest.mark.parametrize(
    ("policy", "rolls_ms"),
    [
        (PolicySettings(retention_ms=5_000), 5_000),
        (PolicySettings(retention_ms=5_000, roll_ms=2_000), 2_000),
        (PolicySettings(retention_ms=0), MIN_ROLL_MS),
        (PolicySettings(retention_ms=5_000, backlog_ms=4_000), 4_000),
        (PolicySettings(backlog_ms=4_000, roll_ms=9_000), 9_000),
        (PolicySettings(roll_ms=7_000), 7_000),
    ],
)
def test_what_is_dropped_by_age_is_closed_at_that_age(policy: PolicySettings, rolls_ms: int) -> None:
    assert effective(("topic", policy)).roll_after_ms == rolls_ms


async def ask(process: BrokerProcess, method: str, path: str, body: object = None) -> httpx.Response:
    return await process.http.request(method, path, json=body)


async def asked(process: BrokerProcess, method: str, path: str, body: object = None) -> dict[str, Any]:
    answer = await ask(process, method, path, body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_settings_are_changed_one_by_one_and_null_removes_one(process: BrokerProcess) -> None:
    await process.create("shop/prod/orders")
    await asked(process, "PATCH", CLUSTER, {"retention": "hard", "retention_ms": 1})
    await asked(process, "PATCH", NAMESPACE, {"retention_ms": 2})
    await asked(process, "PATCH", TOPIC, {"retention_ms": 3, "retention_bytes": 4})
    found = await asked(process, "PATCH", TOPIC, {"retention_ms": None})
    assert found == await asked(process, "GET", f"{TOPIC}/policy")
    assert found["policy"] == dict.fromkeys(PolicySettings.model_fields) | {"retention_bytes": 4}
    assert found["effective"] == {
        "retention_ms": {"value": 2, "source": "namespace"},
        "retention_bytes": {"value": 4, "source": "topic"},
        "retention": {"value": "hard", "source": "cluster"},
        "roll_ms": {"value": -1, "source": "default"},
        "max_unacked_per_consumer": {"value": 50_000, "source": "default"},
        "cleanup": {"value": "delete", "source": "default"},
        "delete_retention_ms": {"value": 86_400_000, "source": "default"},
        "ttl_ms": {"value": -1, "source": "default"},
        "backlog_bytes": {"value": -1, "source": "default"},
        "backlog_ms": {"value": -1, "source": "default"},
        "backlog": {"value": "producer_hold", "source": "default"},
        "schema_compatibility": {"value": "full", "source": "default"},
        "schema_updates": {"value": "producers", "source": "default"},
    }
    assert (await asked(process, "GET", NAMESPACE))["effective"]["retention"]["source"] == "cluster"
    assert (await asked(process, "GET", CLUSTER))["policy"]["retention_ms"] == 1


async def test_a_policy_that_says_nothing_leaves_no_record(process: BrokerProcess) -> None:
    before = await process.world.store.inner.scan(paths.POLICIES)
    await asked(process, "PATCH", NAMESPACE, {})
    await asked(process, "PATCH", NAMESPACE, {"roll_ms": 1_000})
    await asked(process, "PATCH", NAMESPACE, {"roll_ms": None})
    assert (await process.world.store.inner.scan(paths.POLICIES)).records == before.records == []


async def test_the_policy_goes_with_its_topic(process: BrokerProcess) -> None:
    await process.create("shop/prod/orders")
    await asked(process, "PATCH", TOPIC, {"retention_ms": 3})
    assert (await ask(process, "DELETE", TOPIC)).status_code == 204
    assert (await ask(process, "GET", f"{TOPIC}/policy")).status_code == 404
    assert (await ask(process, "PATCH", TOPIC, {"retention_ms": 3})).status_code == 404
    await process.create("shop/prod/orders")
    assert (await asked(process, "GET", f"{TOPIC}/policy"))["effective"]["retention_ms"]["source"] == "default"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (TOPIC, {"retention_ms": -2}, "retention_ms"),
        (TOPIC, {"retention_ms": 2**53}, "retention_ms"),
        (TOPIC, {"retention_ms": "5"}, "retention_ms"),
        (TOPIC, {"retention_bytes": 1.5}, "retention_bytes"),
        (TOPIC, {"retention": "soft"}, "retention"),
        (TOPIC, {"roll_ms": 999}, "roll_ms"),
        (TOPIC, {"max_unacked_per_consumer": 0}, "max_unacked_per_consumer"),
        (TOPIC, {"cleanup": "none"}, "cleanup"),
        (TOPIC, {"delete_retention_ms": -1}, "delete_retention_ms"),
        (NAMESPACE, {"ttl_ms": 0}, "ttl_ms"),
        (TOPIC, {"backlog_bytes": 0}, "backlog_bytes"),
        (CLUSTER, {"backlog": "hold"}, "backlog"),
        (TOPIC, {"retention_ms": 1, "retention_hours": 2}, "retention_hours"),
        (CLUSTER, {"retention_ms": True}, "retention_ms"),
        (CLUSTER, [], "body"),
        ("/v1/policies/namespaces/a%2Fb/c", {"retention_ms": 1}, "tenant"),
        ("/v1/policies/namespaces/a/%01", {"retention_ms": 1}, "namespace"),
        ("/v1/topics/a%2Fb", {"retention_ms": 1}, "topic"),
    ],
)
async def test_wrong_input_is_refused_by_name_and_changes_nothing(
    process: BrokerProcess, path: str, body: object, field: str
) -> None:
    await process.create("shop/prod/orders")
    before = await process.world.store.inner.scan("/")
    answer = await ask(process, "PATCH", path, body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"] == field
    assert (await process.world.store.inner.scan("/")).records == before.records


async def test_the_check_knows_policies_and_finds_those_of_nothing(process: BrokerProcess) -> None:
    await asked(process, "PATCH", NAMESPACE, {"retention_ms": 3})
    await asked(process, "PATCH", CLUSTER, {"retention_ms": 3})
    store = process.world.store.inner
    assert [each async for each in StoreCheck(store).findings()] == []
    await store.apply(store.batch().put("/policy/shop", b"{}"))
    await store.apply(store.batch().put(paths.namespace_policy("shop"), b"{}"))
    await store.apply(store.batch().put(paths.namespace_policy("a/b"), b'{"retention_ms": -2}'))
    assert {each.key async for each in StoreCheck(store).findings()} == {
        "/policy/shop",
        paths.namespace_policy("shop"),
        paths.namespace_policy("a/b"),
    }


@pytest.mark.parametrize(
    ("pattern", "prefix", "allowed"),
    [
        ("shop/prod/*", "shop/prod/", True),
        ("shop/*", "shop/prod/", True),
        ("*", "", True),
        ("shop/prod/o*", "shop/prod/", False),
        ("shop/prod/?", "shop/prod/", False),
        ("*/orders", "shop/prod/", False),
        ("shop/*", "", False),
    ],
)
def test_a_policy_of_many_topics_requires_the_right_on_all_of_them(pattern: str, prefix: str, allowed: bool) -> None:
    caller = Principal("p", Grants(topics={pattern: frozenset({"admin"})}))
    if allowed:
        caller.require_below("admin", prefix)
    else:
        with pytest.raises(errors.NotAllowed):
            caller.require_below("admin", prefix)
    with pytest.raises(errors.NotAllowed):
        caller.require_below("produce", prefix)
    Principal("boss", Grants(admin=True)).require_below("admin", prefix)
