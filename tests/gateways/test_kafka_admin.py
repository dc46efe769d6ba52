"""Goal: the tools of Kafka's operators see and change topics, groups and transactions, and nothing of a deleted group
comes back.

Method: requests given to the listener's handler, in every version that is offered, and librdkafka's admin client.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from metastore.check import StoreCheck
from metastore.errors import CheckFailed
from metatxn.service.security.principal import Grants, Principal
from metatxn.wire.broker import MAX_SEGMENTS
from metatxn.wire.names import MessageId
from metatxn_gateways.kafka.codes import KafkaCode
from metatxn_gateways.kafka.offsets import GivenOffset, GroupMoved
from metatxn_gateways.kafka.requests import OFFERED
from metatxn_gateways.kafka.settings import InvalidConfig, policy_of
from tests.gateways.asking import Asking, Holder, asked, framed, made, read_answer, worst
from tests.gateways.conftest import PATIENCE_S, Gateway, send
from tests.gateways.test_kafka_security import subscribed

TIMEOUT = timedelta(seconds=1)


@pytest.fixture
def ask(gateway: Gateway) -> Asking:
    return Asking.of(gateway)


async def joined(ask: Asking, group: str, *topics: str) -> str:
    """The id of a member that has its assignment."""
    told = await ask.join(group, metadata=subscribed(*topics))
    answer = await ask.join(group, told.member_id, metadata=subscribed(*topics))
    assert not answer.error_code
    assert await ask.sync(group, answer.generation_id, told.member_id, {told.member_id: b"all"}) == (0, b"all")
    return str(told.member_id)


# -- topics --------------------------------------------------------------------------------------------------------


def delete_request(version: int, offset: int, partition: int = 0) -> Any:
    wanted = made(21, version, "DeleteRecordsPartition", partition_index=partition, offset=offset)
    topic = made(21, version, "DeleteRecordsTopic", name="t", partitions=(wanted,))
    return made(21, version, "DeleteRecordsRequest", topics=(topic,), timeout=TIMEOUT)


async def deleted(gateway: Gateway, offset: int, version: int = 2, partition: int = 0) -> tuple[int, int]:
    answer = await asked(gateway, 21, version, delete_request(version, offset, partition))
    return worst(answer), answer.topics[0].partitions[0].low_watermark


async def test_records_are_deleted_up_to_an_offset(gateway: Gateway, ask: Asking) -> None:
    await gateway.create("t")
    for values in ((b"a",), (b"b", b"c"), (b"d",), (b"e",)):
        await ask.produce("t", 0, *values)
    for version in OFFERED[21]:
        assert await deleted(gateway, 0, version) == (0, 0)
    assert await deleted(gateway, 1) == (0, 1)
    assert await deleted(gateway, 2) == (0, 1), "the batch with this offset stays whole"
    assert await deleted(gateway, 0) == (0, 1), "it is gone already"
    assert (await ask.fetch("t", 0, 0))[0] == KafkaCode.OFFSET_OUT_OF_RANGE
    assert (await ask.fetch("t", 0, 1))[1][0] == (1, b"b")
    assert (await deleted(gateway, 6))[0] == KafkaCode.OFFSET_OUT_OF_RANGE
    assert (await deleted(gateway, 0, partition=9))[0] == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await deleted(gateway, -1) == (0, 5)
    assert await ask.produce("t", 0, b"f") == (0, 5)


async def test_nothing_goes_that_an_open_transaction_holds_back(gateway: Gateway, ask: Asking) -> None:
    await gateway.create("t")
    await ask.produce("t", 0, b"a")
    holder = Holder("x")
    assert await ask.init(holder) == await ask.add_partitions(holder, ("t", 0)) == 0
    await ask.produce("t", 0, b"b", holder=holder, sequence=0)
    assert (await deleted(gateway, 2))[0] == KafkaCode.OFFSET_OUT_OF_RANGE
    assert await deleted(gateway, -1) == (0, 1)
    assert await ask.end(holder, commit=True) == 0
    assert (await ask.fetch("t", 0, 1))[1] == [(1, b"b")]


async def test_partitions_are_added_and_keys_stay_where_they_are(gateway: Gateway, ask: Asking) -> None:
    await gateway.create("t", segments=2)
    keys = [{"value": number, "key": f"k{number}"} for number in range(20)]

    async def routed() -> list[str]:
        answer = await gateway.http.post("/v1/topics/t/messages", json={"messages": keys})
        return [MessageId.parse(each).segment for each in answer.json()["message_ids"]]

    before = await routed()
    for number, version in enumerate(OFFERED[37]):
        assert await ask.create_partitions("t", 3 + number, version) == 0
        assert await ask.produce("t", 2 + number, b"a", b"b") == (0, 0)
        assert await ask.produce("t", 2 + number, b"c") == (0, 2)
    assert await routed() == before
    assert len(set(before)) == 2
    await gateway.crash()
    assert await ask.fetch("t", 5, 1) == (0, [(1, b"b"), (2, b"c")], 3)
    assert await ask.produce("t", 5, b"d") == (0, 3)
    assert await ask.create_partitions("t", 7) == 0
    assert (await gateway.http.get("/v1/topics/t")).json()["segments"][-1]["range"] == [0x10004, 0x10004]
    assert not [finding async for finding in StoreCheck(gateway.world.store).findings()]


async def test_partitions_are_not_added_where_that_is_refused(gateway: Gateway, ask: Asking) -> None:
    await gateway.create("t", segments=2)
    await gateway.process.create("ours")
    assignment = made(37, 3, "CreatePartitionsAssignment", broker_ids=(1,))
    for count in (-1, 0, 1, 2, MAX_SEGMENTS + 1):
        assert await ask.create_partitions("t", count) == KafkaCode.INVALID_PARTITIONS
    assert await ask.create_partitions("t", 3, assignments=(assignment,)) == KafkaCode.INVALID_REPLICA_ASSIGNMENT
    assert await ask.create_partitions("never", 3) == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await ask.create_partitions("ours", 3) == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await ask.create_partitions("t", 3, validate_only=True) == 0
    assert len((await gateway.http.get("/v1/topics/t")).json()["segments"]) == 2


async def test_two_that_add_partitions_at_once_do_not_add_twice(gateway: Gateway, ask: Asking) -> None:
    await gateway.create("t")
    codes = await asyncio.gather(*(ask.create_partitions("t", 4) for _ in range(3)))
    assert sorted(codes) == [0, KafkaCode.INVALID_PARTITIONS, KafkaCode.INVALID_PARTITIONS]
    assert len((await gateway.http.get("/v1/topics/t")).json()["segments"]) == 4
    assert await ask.produce("t", 3, b"a") == (0, 0)
    before = await gateway.broker.topics.get("public/default/t")
    await gateway.broker.policies.change_topic("public/default/t", {"retention_ms": 60_000})
    with pytest.raises(CheckFailed):
        await gateway.broker.topics.add_partitions(before, 1, gateway.broker.storage.storage_id, 0)


async def test_an_epoch_reaches_to_the_end(gateway: Gateway, ask: Asking) -> None:
    await gateway.create("t")
    await ask.produce("t", 0, b"a", b"b")
    (segment,) = gateway.broker.served.values()
    now = segment.ownership.generation

    async def end_of(version: int, epoch: int, current: int) -> tuple[int, int, int]:
        place = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
        partition = made(23, version, "OffsetForLeaderPartition", **place)
        topic = made(23, version, "OffsetForLeaderTopic", topic="t", partitions=(partition,))
        fields = {"replica_id": -1, "topics": (topic,)}
        answer = await asked(gateway, 23, version, made(23, version, "OffsetForLeaderEpochRequest", **fields))
        found = answer.topics[0].partitions[0]
        return int(found.error_code), found.leader_epoch, found.end_offset

    for version in OFFERED[23]:
        assert await end_of(version, now, now) == (0, now, 2)
        assert await end_of(version, now, -1) == (0, now, 2)
        assert await end_of(version, now + 1, -1) == (0, -1, -1)
        assert (await end_of(version, now, now + 1))[0] == KafkaCode.UNKNOWN_LEADER_EPOCH
        assert (await end_of(version, now, now - 1))[0] == KafkaCode.FENCED_LEADER_EPOCH


async def test_the_cluster_is_described(gateway: Gateway) -> None:
    for version in OFFERED[60]:
        values: dict[str, Any] = {"include_cluster_authorized_operations": False}
        answer = await asked(gateway, 60, version, made(60, version, "DescribeClusterRequest", **values))
        assert [f"{each.host}:{each.port}" for each in answer.brokers] == [gateway.listener.address]
        assert answer.controller_id == answer.brokers[0].broker_id
    values["endpoint_type"] = 2
    assert worst(await asked(gateway, 60, 1, made(60, 1, "DescribeClusterRequest", **values))) == 115


# -- settings ------------------------------------------------------------------------------------------------------


def test_settings_are_policies() -> None:
    given = {"retention.ms": "60000", "retention.bytes": "-1", "segment.ms": None, "cleanup.policy": "compact"}
    expected = {"retention_ms": 60_000, "retention_bytes": -1, "roll_ms": None, "cleanup": "compact"}
    assert policy_of(given.items()) == expected
    for name, value, says in (
        ("retention.ms", "soon", "retention.ms: 'soon' is not a number"),
        ("retention.ms", "-2", "retention.ms: .* greater than or equal to -1"),
        ("segment.ms", "1", "segment.ms: .* greater than or equal to 1000"),
    ):
        with pytest.raises(InvalidConfig, match=says):
            policy_of([(name, value)])


async def test_settings_are_described_and_changed(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "metatxn.audit")
    await gateway.create("t")

    async def described(version: int, kind: int, name: str) -> tuple[int, dict[str, tuple[str, bool]]]:
        fields = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        resource = made(32, version, "DescribeConfigsResource", **fields)
        options = {"include_synonyms": False, "include_documentation": False}
        wanted = made(32, version, "DescribeConfigsRequest", resources=(resource,), **options)
        (found,) = (await asked(gateway, 32, version, wanted)).results
        return int(found.error_code), {each.name: (each.value, each.read_only) for each in found.configs}

    async def changed(
        version: int, name: str, value: str | None, operation: int = 0, **options: Any
    ) -> tuple[int, Any]:
        config = made(44, version, "AlterableConfig", name=name, config_operation=operation, value=value)
        fields = {"resource_type": 2, "resource_name": "t", "configs": (config,)} | options
        only = {"validate_only": fields.pop("validate_only", False)}
        resource = made(44, version, "AlterConfigsResource", **fields)
        wanted = made(44, version, "IncrementalAlterConfigsRequest", resources=(resource,), **only)
        (found,) = (await asked(gateway, 44, version, wanted)).responses
        return int(found.error_code), found.error_message

    for version in OFFERED[32]:
        code, found = await described(version, 2, "t")
        assert (code, found["retention.ms"], found["min.insync.replicas"]) == (0, ("-1", False), ("1", True))
        assert (await described(version, 4, "1"))[1]["auto.create.topics.enable"] == ("false", True)
        assert (await described(version, 2, "u"))[0] == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await described(version, 8, "1"))[0] == KafkaCode.INVALID_REQUEST
    for version in OFFERED[44]:
        assert await changed(version, "retention.ms", "5", validate_only=True) == (0, None)
        assert (await described(4, 2, "t"))[1]["retention.ms"] == ("-1", False)
        assert await changed(version, "retention.ms", "60000") == (0, None)
        assert (await described(4, 2, "t"))[1]["retention.ms"] == ("60000", False)
        assert await changed(version, "retention.ms", None, operation=1) == (0, None)
        assert await changed(version, "retention.ms", "1", operation=2) == (
            KafkaCode.INVALID_CONFIG,
            "retention.ms can be set or deleted, but nothing can be appended or subtracted",
        )
        code, why = await changed(version, "max.message.bytes", "5")
        assert code == KafkaCode.INVALID_CONFIG and "max.message.bytes is always 16777216 here" in why
        assert (await changed(version, "retention.ms", "1", resource_type=4))[0] == KafkaCode.INVALID_CONFIG
        assert (await changed(version, "retention.ms", "1", resource_name="u"))[0] == 3
    lines = [each.msg for each in caplog.records if each.name == "metatxn.audit"]
    changes = [line for line in lines if isinstance(line, dict) and line["verb"] == "policy.change"]
    assert changes[0]["arguments"] == {"retention.ms": "60000"} and changes[0]["outcome"] == "allowed"


async def test_settings_are_replaced_as_a_whole_by_older_clients(gateway: Gateway) -> None:
    """What has no name in Kafka stays."""
    await gateway.create("t")
    policies = gateway.broker.policies

    async def replaced(version: int, *, validate_only: bool = False, **values: str | None) -> tuple[int, Any]:
        configs = tuple(
            made(33, version, "AlterableConfig", name=name.replace("_", "."), value=value)
            for name, value in values.items()
        )
        fields = {"resource_type": 2, "resource_name": "t", "configs": configs}
        resource = made(33, version, "AlterConfigsResource", **fields)
        wanted = made(33, version, "AlterConfigsRequest", resources=(resource,), validate_only=validate_only)
        (found,) = (await asked(gateway, 33, version, wanted)).responses
        return int(found.error_code), found.error_message

    async def own() -> dict[str, Any]:
        return (await policies.of_topic("public/default/t")).policy.model_dump(exclude_none=True)

    for version in OFFERED[33]:
        await policies.change_topic("public/default/t", {"retention_bytes": 7, "backlog_ms": 9_000})
        assert await replaced(version, retention_ms="60000", validate_only=True) == (0, None)
        assert await own() == {
            "retention_bytes": 7,
            "backlog_ms": 9_000,
        }
        assert await replaced(version, retention_ms="60000", cleanup_policy="compact", retention_bytes=None) == (
            0,
            None,
        )
        changed = {"retention_ms": 60_000, "cleanup": "compact", "backlog_ms": 9_000}
        assert await own() == changed
        code, why = await replaced(version, retention_ms="soon")
        assert (code, why) == (KafkaCode.INVALID_CONFIG, "retention.ms: 'soon' is not a number")
        assert await own() == changed
        assert await replaced(version) == (0, None)
        assert await own() == {"backlog_ms": 9_000}


# -- groups --------------------------------------------------------------------------------------------------------


async def test_groups_are_listed_and_described_in_every_version(gateway: Gateway, ask: Asking) -> None:
    await gateway.create("t")
    member = await joined(ask, "g", "t")
    assert await ask.commit_offsets("h", {("t", 0): 1}) == 0
    for version in OFFERED[16]:
        answer = await asked(gateway, 16, version, made(16, version, "ListGroupsRequest", states_filter=()))
        assert [(each.group_id, each.protocol_type) for each in answer.groups] == [("g", "consumer"), ("h", "")]
    only = await asked(gateway, 16, 4, made(16, 4, "ListGroupsRequest", states_filter=("Empty",)))
    assert [(each.group_id, each.group_state) for each in only.groups] == [("h", "Empty")]
    for version in OFFERED[15]:
        fields = {"groups": ("g", "h", "nobody"), "include_authorized_operations": False}
        answer = await asked(gateway, 15, version, made(15, version, "DescribeGroupsRequest", **fields))
        assert [each.group_state for each in answer.groups] == ["Stable", "Empty", "Dead"]
        (found,) = answer.groups[0].members
        assert (found.member_id, found.member_assignment) == (member, b"all")
        assert (answer.groups[0].protocol_data, found.member_metadata) == ("range", subscribed("t"))


async def delete_group(gateway: Gateway, name: str, version: int = 2) -> int:
    return worst(await asked(gateway, 42, version, made(42, version, "DeleteGroupsRequest", groups_names=(name,))))


async def test_a_group_is_deleted_once_it_has_no_members(gateway: Gateway, ask: Asking) -> None:
    await gateway.create("t")
    for version in OFFERED[42]:
        assert await delete_group(gateway, "g", version) == KafkaCode.GROUP_ID_NOT_FOUND
        assert await ask.commit_offsets("g", {("t", 0): 1}) == 0
        member = await joined(ask, "g", "t")
        assert await delete_group(gateway, "g", version) == KafkaCode.NON_EMPTY_GROUP
        assert await ask.leave("g", member) == 0
        while gateway.listener._coordination.with_members("g") is not None:
            await asyncio.sleep(0)
        assert await delete_group(gateway, "g", version) == 0
        assert await ask.fetch_offset("g", "t", 0) == (0, -1)


async def test_what_a_transaction_commits_keeps_its_group(gateway: Gateway, ask: Asking) -> None:
    await gateway.create("t")
    holder = Holder("x")
    assert await ask.init(holder) == await ask.add_offsets(holder, "g") == 0
    assert await ask.commit_offsets_in(holder, "g", {("t", 0): 1}) == 0
    assert await delete_group(gateway, "g") == KafkaCode.NON_EMPTY_GROUP
    assert await ask.end(holder, commit=True) == 0
    assert await delete_group(gateway, "g") == 0
    assert await ask.fetch_offset("g", "t", 0) == (0, -1)


async def test_a_former_coordinator_commits_nothing_to_a_deleted_group(gateway: Gateway, ask: Asking) -> None:
    await gateway.create("t")
    assert await ask.commit_offsets("g", {("t", 0): 1}) == 0
    coordination = gateway.listener._coordination
    (segment,) = gateway.broker.served
    group = await coordination.offsets.group("g")
    assert await delete_group(gateway, "g") == 0
    with pytest.raises(GroupMoved):
        await coordination.offsets.commit(group, "g", {segment: GivenOffset(7, None, None)})
    assert await ask.fetch_offset("g", "t", 0) == (0, -1)


async def test_offsets_are_deleted_where_nobody_is_subscribed(gateway: Gateway, ask: Asking) -> None:
    for topic in ("t", "u"):
        await gateway.create(topic)

    async def delete(group: str, topic: str) -> int:
        partition = made(47, 0, "OffsetDeleteRequestPartition", partition_index=0)
        wanted = made(47, 0, "OffsetDeleteRequestTopic", name=topic, partitions=(partition,))
        return worst(await asked(gateway, 47, 0, made(47, 0, "OffsetDeleteRequest", group_id=group, topics=(wanted,))))

    assert await delete("g", "t") == KafkaCode.GROUP_ID_NOT_FOUND
    assert await ask.commit_offsets("g", {("t", 0): 1, ("u", 0): 2}) == 0
    await joined(ask, "g", "t")
    assert await delete("g", "t") == KafkaCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert await delete("g", "u") == 0
    assert await delete("g", "nothing") == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await ask.fetch_offset("g", "t", 0) == (0, 1)
    assert await ask.fetch_offset("g", "u", 0) == (0, -1)


async def test_groups_of_others_are_not_shown(gateway: Gateway, ask: Asking) -> None:
    """Neither those with members nor those with nothing but offsets."""
    for topic in ("t", "u"):
        await gateway.create(topic)
    await joined(ask, "g", "t")
    assert await ask.commit_offsets("h", {("u", 0): 1}) == await ask.commit_offsets("i", {("t", 0): 1}) == 0

    def of(*topics: str) -> Principal:
        return Principal("ada", Grants(topics={f"public/default/{each}": frozenset({"consume"}) for each in topics}))

    async def seen(caller: Principal) -> list[str]:
        answer = await asked_as(gateway, caller, 16, 4, made(16, 4, "ListGroupsRequest", states_filter=()))
        return [each.group_id for each in answer.groups]

    assert await seen(of("t")) == ["g", "i"] and await seen(of("u")) == ["h"]
    fields = {"groups": ("g", "h"), "include_authorized_operations": False}
    answer = await asked_as(gateway, of("u"), 15, 5, made(15, 5, "DescribeGroupsRequest", **fields))
    assert [int(each.error_code) for each in answer.groups] == [KafkaCode.GROUP_AUTHORIZATION_FAILED, 0]
    refused = made(42, 2, "DeleteGroupsRequest", groups_names=("i",))
    assert worst(await asked_as(gateway, of("u"), 42, 2, refused)) == KafkaCode.GROUP_AUTHORIZATION_FAILED
    assert (await deleted_as(gateway, of("t"))) == KafkaCode.TOPIC_AUTHORIZATION_FAILED


async def asked_as(gateway: Gateway, caller: Principal, api_key: int, version: int, entity: Any) -> Any:
    """Without its token."""
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr("metatxn_gateways.kafka.sasl.ANYONE", caller)
        handler: Any = gateway.listener._connect()
        return read_answer(api_key, version, b"".join(await handler(framed(api_key, version, entity))))


async def deleted_as(gateway: Gateway, caller: Principal) -> int:
    return worst(await asked_as(gateway, caller, 21, 2, delete_request(2, 0)))


# -- transactions --------------------------------------------------------------------------------------------------


async def described_transaction(gateway: Gateway, name: str) -> Any:
    wanted = made(65, 0, "DescribeTransactionsRequest", transactional_ids=(name,))
    (found,) = (await asked(gateway, 65, 0, wanted)).transaction_states
    return found


async def described_as_bytes(gateway: Gateway, name: str) -> bytes:
    """Of one that is not open, and so began at -1 ms, which kio does not read."""
    wanted = framed(65, 0, made(65, 0, "DescribeTransactionsRequest", transactional_ids=(name,)))
    answer = b"".join(await gateway.listener._connect()(wanted) or ())
    assert struct.pack(">q", -1) in answer
    return answer


async def listed_transactions(gateway: Gateway, version: int, **filters: Any) -> list[tuple[str, str]]:
    fields = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1} | filters
    answer = await asked(gateway, 66, version, made(66, version, "ListTransactionsRequest", **fields))
    assert not answer.error_code
    return [(each.transactional_id, each.transaction_state) for each in answer.transaction_states]


async def test_transactions_are_listed_and_described(gateway: Gateway, ask: Asking) -> None:
    await gateway.create("t", segments=2)
    holder, other = Holder("x"), Holder("y")
    for each in (holder, other):
        assert await ask.init(each) == 0
    assert b"Empty" in await described_as_bytes(gateway, "x")
    assert await ask.add_partitions(holder, ("t", 0), ("t", 1)) == await ask.add_offsets(holder, "g") == 0
    await ask.produce("t", 1, b"a", b"b", holder=holder, sequence=0)
    assert await ask.commit_offsets_in(holder, "g", {("t", 0): 1}) == 0
    found = await described_transaction(gateway, "x")
    assert (found.transaction_state, found.producer_id) == ("Ongoing", holder.producer_id)
    assert found.transaction_timeout == timedelta(seconds=60) and found.transaction_start_time.year == 1970
    assert [(each.topic, each.partitions) for each in found.topics] == [("t", (0, 1))]
    nobody = await described_as_bytes(gateway, "z")
    assert struct.pack(">h", KafkaCode.TRANSACTIONAL_ID_NOT_FOUND) in nobody
    for version in OFFERED[66]:
        assert await listed_transactions(gateway, version) == [("x", "Ongoing"), ("y", "Empty")]
        assert await listed_transactions(gateway, version, state_filters=("Ongoing",)) == [("x", "Ongoing")]
        assert await listed_transactions(gateway, version, producer_id_filters=(other.producer_id,)) == [("y", "Empty")]
    assert await listed_transactions(gateway, 1, duration_filter=0) == [("x", "Ongoing")]
    assert await listed_transactions(gateway, 1, duration_filter=10**9) == []
    unknown = made(66, 0, "ListTransactionsRequest", state_filters=("Lost",), producer_id_filters=())
    assert (await asked(gateway, 66, 0, unknown)).unknown_state_filters == ("Lost",)
    topic = made(61, 0, "TopicRequest", name="t", partition_indexes=(1,))
    answer = await asked(gateway, 61, 0, made(61, 0, "DescribeProducersRequest", topics=(topic,)))
    (producer,) = answer.topics[0].partitions[0].active_producers
    assert (producer.producer_id, producer.last_sequence) == (holder.producer_id, 1)
    assert producer.current_txn_start_offset == 0
    assert await ask.end(holder, commit=True) == 0
    assert b"CompleteCommit" in await described_as_bytes(gateway, "x")


# -- librdkafka ----------------------------------------------------------------------------------------------------


async def test_librdkafka_administers(gateway: Gateway) -> None:
    def work() -> None:
        admin = AdminClient({"bootstrap.servers": gateway.servers})
        new = NewTopic("t", 1, 1, config={"retention.ms": "60000", "cleanup.policy": "compact"})
        admin.create_topics([new])["t"].result(PATIENCE_S)
        producer = gateway.producer()
        assert [send(producer, "t", value, key="k") for value in ("a", "b")] == [[0], [1]]
        resource = ConfigResource(ResourceType.TOPIC, "t")
        assert admin.describe_configs([resource])[resource].result(PATIENCE_S)["retention.ms"].value == "60000"
        entry = ConfigEntry("retention.ms", "70000", incremental_operation=AlterConfigOpType.SET)
        changed = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[entry])
        admin.incremental_alter_configs([changed])[changed].result(PATIENCE_S)
        assert admin.describe_configs([resource])[resource].result(PATIENCE_S)["retention.ms"].value == "70000"
        whole = ConfigResource(ResourceType.TOPIC, "t", set_config={"retention.ms": "80000"})
        with pytest.warns(DeprecationWarning, match="incremental_alter_configs"):
            admin.alter_configs([whole])[whole].result(PATIENCE_S)
        replaced = admin.describe_configs([resource])[resource].result(PATIENCE_S)
        assert (replaced["retention.ms"].value, replaced["cleanup.policy"].value) == ("80000", "delete")
        consumer = gateway.consumer("g")
        consumer.commit(offsets=[TopicPartition("t", 0, 2)], asynchronous=False)
        consumer.close()
        assert [each.group_id for each in admin.list_consumer_groups().result(PATIENCE_S).valid] == ["g"]
        assert admin.describe_consumer_groups(["g"])["g"].result(PATIENCE_S).state.name == "EMPTY"
        place = ConsumerGroupTopicPartitions("g")
        offsets = admin.list_consumer_group_offsets([place])["g"].result(PATIENCE_S)
        assert [each.offset for each in offsets.topic_partitions] == [2]
        admin.delete_consumer_groups(["g"])["g"].result(PATIENCE_S)
        partition = TopicPartition("t", 0, 1)
        assert admin.delete_records([partition])[partition].result(PATIENCE_S).low_watermark == 1
        for spec, offset in ((OffsetSpec.earliest(), 1), (OffsetSpec.max_timestamp(), 1)):
            (found,) = admin.list_offsets({TopicPartition("t", 0): spec}).values()
            assert found.result(PATIENCE_S).offset == offset
        assert len(admin.describe_cluster().result(PATIENCE_S).nodes) == 1
        admin.create_partitions([NewPartitions("t", 3)])["t"].result(PATIENCE_S)
        assert len(admin.list_topics("t", PATIENCE_S).topics["t"].partitions) == 3

    await asyncio.to_thread(work)
