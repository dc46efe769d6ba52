"""Goal: at the cluster version of an earlier release a broker writes nothing that this release would not know, says why
it refuses what needs it, and does it once the version is raised.

Method: brokers whose version is set back; a request of theirs is compared with what release 0.2.0 accepts. DESIGN §12.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from metastore.check import StoreCheck
from metastore.errors import StoreTooNew
from metastore.txn import paths
from metastore.txn.records.processes import VersionRecord
from metastore.versions import FIRST, SPEAKS, ClusterVersion, Feature
from metatxn.service.exposure import Exposure
from metatxn.wire.batches import pack_batch, packed_message
from metatxn.wire.broker import BATCH_MEDIA_TYPE
from metatxn.wire.errors import UpgradePending
from metatxn.wire.frames import PayloadKind
from metatxn.wire.position import Position
from metatxn_gateways.kafka.service import KafkaListener
from metatxn_gateways.pulsar.service import PulsarListener
from participants.broker.peers import RemoteSegment
from participants.messages import payloads
from participants.messages.payloads import read_messages
from participants.messages.schemas import encode_schema
from participants.topic.remote_share import RemoteShare
from tests.participants.broker.process import BrokerProcess
from tests.participants.broker.test_removal import CHILDREN, PARENT, Removing
from tests.participants.devices import on_local_files
from tests.participants.segment.faulty_store import Fault, puts
from tests.participants.segment.test_hidden import outcomes, tended
from tests.participants.segment.test_rewriting import forms, mostly_hidden
from tests.participants.segment.world import SEGMENT, World, committed
from tests.participants.subscription.consuming import Consuming
from tests.participants.subscription.spreading import Spreading

TOPIC = "/v1/topics/t"
KNOWN_TO_0_2_0 = {
    "take": {"incarnation", "home", "session", "sessions", "newest", "segments", "max", "max_bytes"},
    "wait": {"incarnation", "segments", "wait_ms"},
    "GET": {"after", "max_bytes", "isolation", "revision", "wait_ms"},
    "POST": {"txn_id", "writer", "producer", "sequence", "count"},
}
"""A broker of release 0.2.0 refuses a request with any other member."""


async def recorded_as(world: World, version: int) -> None:
    await world.store.inner.apply(world.store.inner.batch().put(paths.VERSION, VersionRecord(version=version).encode()))


async def lawful(world: World) -> bool:
    """No record has a form that the cluster version does not allow."""
    problems = [finding.problem async for finding in StoreCheck(world.store.inner).findings()]
    return not [problem for problem in problems if "cluster version" in problem]


def subscription(**settings: Any) -> tuple[str, str, dict[str, Any]]:
    return "PUT", f"{TOPIC}/subscriptions/new", {"type": "shared", "initial": "earliest", **settings}


REFUSED: Mapping[Feature, tuple[str, str, dict[str, Any]]] = {
    Feature.POLICIES: ("PATCH", TOPIC, {"retention_ms": 1_000}),
    Feature.SEEK: ("POST", f"{TOPIC}/subscriptions/s/seek", {"to": "latest"}),
    Feature.KEY_SHARED: subscription(type="key_shared"),
    Feature.REDELIVERY_TIMES: subscription(ack_timeout_ms=1_000),
    Feature.ISOLATION: subscription(isolation="read_uncommitted"),
    Feature.KAFKA: ("POST", "/v1/topics", {"name": "k", "segments": 1, "format": "kafka"}),
    Feature.PULSAR: ("POST", "/v1/topics", {"name": "p", "segments": 1, "format": "pulsar"}),
    Feature.EXCLUSIVE_PRODUCERS: ("POST", f"{TOPIC}/exclusive-producer", {"session": "a"}),
    Feature.READ_HOLDS: ("POST", f"{TOPIC}/read-holds", {"hold_id": "a"}),
    Feature.SCHEMA_VERSIONS: ("PUT", f"{TOPIC}/schema", {"schema": {"fields": [{"name": "id", "type": "int64"}]}}),
}


@on_local_files
async def test_what_an_earlier_release_does_not_know_is_refused_until_the_version_is_raised(
    world: World, process: BrokerProcess
) -> None:
    await process.create("t")
    await recorded_as(world, FIRST)
    process.broker.version.current = FIRST
    await process.http.request(*subscription()[:2], json=subscription()[2] | {"dead_letter_topic": "d"})
    await process.http.put(f"{TOPIC}/subscriptions/s", json=subscription()[2])
    others = [
        ("PATCH", "/v1/policies/namespaces/shop/prod", {"retention_ms": 1_000}),
        ("PATCH", "/v1/policies/cluster", {"retention_ms": 1_000}),
        subscription(redelivery_delay_ms=1_000),
    ]
    for method, path, body in [*REFUSED.values(), *others]:
        answer = (await process.http.request(method, path, json=body)).json()
        assert (answer.get("code"), answer.get("definite")) == ("UPGRADE_PENDING", True), (path, answer)
        assert "needs cluster version 2, and this cluster has 1" in answer["detail"], answer
    assert await lawful(world)
    await process.http.delete(f"{TOPIC}/subscriptions/new")
    await recorded_as(world, SPEAKS)  # which the broker has not looked at yet
    for feature, (method, path, body) in REFUSED.items():
        answered = await process.http.request(method, path, json=body)
        assert answered.is_success, (feature, answered.text)
        if path.endswith("/new"):
            await process.http.delete(path)
    await recorded_as(world, FIRST)
    assert not await lawful(world), "the check can see it"


@on_local_files
async def test_a_broker_is_drained_and_deliveries_are_counted_once_every_release_knows_it(world: World) -> None:
    """A broker of release 0.2.0 takes nothing from one that drains, and cannot open a subscription with stored counts.
    They are stored from the next opening on."""
    consuming = await Consuming.start(world)
    broker = consuming.process.broker
    await recorded_as(world, FIRST)
    broker.version.current = FIRST
    drain = f"/v1/brokers/{broker.id}/drain"
    assert (await consuming.process.http.post(drain)).json()["code"] == "UPGRADE_PENDING"
    await consuming.subscribe(dead_letter_topic="dead", max_redeliveries=1)
    for version in (FIRST, SPEAKS):
        await recorded_as(world, version)
        await consuming.publish("a")
        assert "a" in await consuming.values()
        counted = [each.key for each in (await world.store.inner.scan(paths.CURSORS)).records]
        assert any(key.endswith("/deliveries") for key in counted) is (version == SPEAKS), counted
        assert await lawful(world)
        await consuming.crash()
    assert (await consuming.process.http.post(drain)).is_success
    await consuming.process.stop()


@on_local_files
async def test_each_message_has_an_operation_that_every_release_knows(world: World) -> None:
    """To release 0.2.0, the operation of several messages of an entry is one of the first of them alone."""
    consuming = await Consuming.start(world)
    await consuming.subscribe()
    ids = await consuming.publish(*range(10))
    await consuming.receive()
    for version, operations in ((FIRST, 3), (SPEAKS, 1)):
        await recorded_as(world, version)
        consuming.process.broker.version.current = version
        txn = await world.begin()
        await consuming.acked(ids[:3], txn)
        assert len(await world.operations(txn)) == operations
        assert await lawful(world)
        if version == FIRST:  # and goes on where the version is raised
            consuming.process.broker.version.current = SPEAKS
            await consuming.acked(ids[:3], txn, for_all=False)
        await consuming.abort(txn)
        await consuming.receive()
    await consuming.process.stop()


@on_local_files
async def test_a_batch_becomes_json_in_a_ledger_that_an_earlier_release_may_open(
    process: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    (segment,) = await process.create("t")
    sent = [({"id": 7}, "k", {"a": "b"}), (b"\xff", None, None), (None, "k", None)]
    payload, count = pack_batch(packed_message(*each) for each in sent)
    append = f"/v1/segments/{quote(segment, safe='')}/entries?producer=p&sequence=7&count={count}"
    headers = {"Content-Type": BATCH_MEDIA_TYPE}
    process.broker.version.current = FIRST
    first = (await process.http.post(append, content=payload, headers=headers)).json()
    process.broker.version.learn(SPEAKS)
    again = (await process.http.post(append, content=payload, headers=headers)).json()
    assert (again["position"], again["duplicate"]) == (first["position"], True)
    await process.http.post(append.replace("=7", "=8"), content=payload, headers=headers)
    frames = (await process.broker.served[segment].reader.read_committed(Position(0, -1), 1 << 20)).frames
    assert [frame.kind for frame in frames] == [PayloadKind.MESSAGES, PayloadKind.BATCH]
    for frame in frames:
        read = [(each.value, each.value_base64, each.key, each.properties) for each in read_messages(segment, frame)]
        assert read == [({"id": 7}, None, "k", {"a": "b"}), (None, "/w==", None, {}), (None, None, "k", {})]
    process.broker.version.current = FIRST
    monkeypatch.setattr(payloads, "MAX_PAYLOAD_BYTES", 10)
    answer = await process.http.post(append.replace("=7", "=9"), content=payload, headers=headers)
    assert answer.json()["code"] == "PAYLOAD_TOO_LARGE"


@on_local_files
async def test_a_schema_that_producers_extend_has_no_versions_yet(world: World, process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    await recorded_as(world, FIRST)
    process.broker.version.current = FIRST
    for columns in (["id"], ["id", "item"], ["id", "item", "price"]):
        schema = pa.schema([(name, pa.int64()) for name in columns])
        topic = await process.broker.schemas.extend(segment, schema, 1)
        assert topic.arrow_schema == encode_schema(schema) and topic.schema_history is None
    assert await lawful(world)
    process.broker.version.learn(SPEAKS)
    topic = await process.broker.schemas.extend(segment, pa.schema([*schema, ("at", pa.int64())]), 1)
    assert topic.schema_version == 2, "what came before counts as the first one"


@on_local_files
@pytest.mark.parametrize("kind", [KafkaListener, PulsarListener])
async def test_a_listener_for_other_clients_does_not_start(
    world: World, process: BrokerProcess, kind: type[KafkaListener] | type[PulsarListener]
) -> None:
    await recorded_as(world, FIRST)
    process.broker.version.current = FIRST
    service = type("Service", (), {"broker": process.broker, "url": "http://127.0.0.1:1"})()
    listener = kind(process.broker.store, service=service, port=0, exposure=Exposure())
    with pytest.raises(UpgradePending, match="clients: needs cluster version 2"):
        await listener.start()
    await listener.stop()


async def test_hidden_entries_stay_in_the_store(world: World) -> None:
    """So a broker of the earlier release hides them, too."""
    node, segment = await mostly_hidden(world)
    before = await outcomes(world)
    await recorded_as(world, FIRST)
    node.context.version.current = FIRST
    await tended(segment)
    assert await forms(world) == [None, None] and await lawful(world)
    assert await outcomes(world) == before != set()
    assert await committed(segment) == ["a", "b", "c"]
    node.context.version.learn(SPEAKS)
    await tended(segment)
    assert await forms(world) != [None, None] and not await lawful(world)


async def test_trimmed_segments_stay_in_their_topic(world: World) -> None:
    topic = await Removing.split(world)
    await recorded_as(world, FIRST)
    topic.process.broker.version.current = FIRST
    await topic.drain()
    await topic.trim(PARENT)
    await topic.passes()
    assert (await topic.delete(PARENT)).json()["code"] == "UPGRADE_PENDING"
    assert await topic.layout() == [PARENT, *CHILDREN] and await lawful(world)
    topic.process.broker.version.learn(SPEAKS)
    await topic.passes()
    await topic.process.broker.reconcile()
    assert await topic.layout() == CHILDREN
    await topic.process.stop()


@pytest.mark.parametrize(("version", "kind"), [(FIRST, "shared"), (SPEAKS, "shared"), (SPEAKS, "key_shared")])
@on_local_files
async def test_brokers_ask_each_other_as_the_earlier_release_does(
    world: World, version: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, set[str]] = {}
    waited = asyncio.Event()
    post = RemoteShare._post

    async def seen(share: RemoteShare, verb: str, body: Mapping[str, Any], **options: Any) -> Any:
        asked.setdefault(verb, set()).update(name for name, value in body.items() if value is not None)
        if verb == "wait":
            waited.set()
        return await post(share, verb, body, **options)

    read = RemoteSegment._request

    async def seen_read(segment: RemoteSegment, method: str, params: dict[str, Any], *rest: Any, **options: Any) -> Any:
        asked.setdefault(method, set()).update(name for name, value in params.items() if value is not None)
        return await read(segment, method, params, *rest, **options)

    monkeypatch.setattr(RemoteSegment, "_request", seen_read)
    monkeypatch.setattr(RemoteShare, "_post", seen)
    consuming = await Spreading.begin(world, brokers=2)
    for broker in consuming.brokers:
        broker.broker.version.current = version
    await consuming.subscribe("s", kind)
    receiving = asyncio.create_task(consuming.all_values(wait_ms=60_000))
    await waited.wait()
    await consuming.publish_keys(*range(40))
    received = await receiving
    while len(received) < 40:
        received += await consuming.all_values(wait_ms=60_000)
    assert len((await consuming.asked("GET", "/messages"))["messages"]) == 40
    await consuming.stop()
    assert sorted(received) == list(range(40))
    assert {verb: names <= KNOWN_TO_0_2_0[verb] for verb, names in asked.items()} == {
        "take": version == FIRST,
        "wait": version == FIRST or kind == "shared",
        "GET": version == FIRST,
        "POST": True,
    }


@pytest.mark.parametrize("recorded", [None, FIRST])
async def test_a_segment_is_taken_only_at_the_version_that_was_read_with_it(world: World, recorded: int | None) -> None:
    """A broker that was frozen while the version was raised does not serve what it does not know."""
    if recorded is not None:
        await recorded_as(world, recorded)
    node = await world.first_node()
    claim = world.store.fault(Fault(puts(paths.segment_owner(SEGMENT)), hold_before=True))
    opening = asyncio.create_task(node.open())
    await claim.reached.wait()
    await recorded_as(world, SPEAKS + 1)
    claim.go.set()
    with pytest.raises(StoreTooNew):
        await opening
    assert await world.store.inner.get(paths.segment_owner(SEGMENT)) is None


async def test_a_process_that_starts_meanwhile_delays_nobody(world: World) -> None:
    """It has written the same version again."""
    await recorded_as(world, FIRST)
    node = await world.first_node()
    claim = world.store.fault(Fault(puts(paths.segment_owner(SEGMENT)), hold_before=True))
    opening = asyncio.create_task(node.open())
    await claim.reached.wait()
    await recorded_as(world, FIRST)
    claim.go.set()
    assert (await opening).ownership.generation == 1


def test_every_feature_has_a_version_that_this_release_speaks() -> None:
    assert all(FIRST < feature.since <= SPEAKS for feature in Feature)
    assert [feature for feature in Feature if ClusterVersion(FIRST).allows(feature)] == []
