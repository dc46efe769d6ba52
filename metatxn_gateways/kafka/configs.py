"""The settings of topics, as Kafka names them. They are our policies (`retention.ms` is `retention_ms`), and what
cannot be changed is shown as read-only.

A setting that comes from the policy of the namespace or the cluster is shown as one of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from pydantic import ValidationError

from metatxn.service import audit
from metatxn.wire.frames import MAX_PAYLOAD_BYTES
from metatxn.wire.policies import TopicPolicy
from metatxn_gateways.kafka.codes import REFUSALS, KafkaCode, KafkaError, code_of, error_code, status_of
from metatxn_gateways.kafka.partitions import Partitions, own_name, require_right
from metatxn_gateways.kafka.schemas import CallRequest, CallResponse
from participants.broker.broker import Broker

_NO_TIME = timedelta(0)
_TOPIC, _BROKER = 2, 4
_SET, _DELETE = 0, 1
_SOURCES = {"topic": 1, "namespace": 3, "cluster": 3, "default": 5}
_DEFAULT = 5
_STRING, _LONG = 2, 5
SETTINGS = {"retention.ms": "retention_ms", "retention.bytes": "retention_bytes", "segment.ms": "roll_ms"}
"""Kafka's name, and ours."""
FIXED: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": str(MAX_PAYLOAD_BYTES),
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
}
FIXED_OF_BROKERS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "message.max.bytes": str(MAX_PAYLOAD_BYTES),
    "num.partitions": "1",
}


class InvalidConfig(KafkaError):
    def __init__(self, why: str) -> None:
        super().__init__(KafkaCode.INVALID_CONFIG)
        self.why = why

    def __str__(self) -> str:
        return self.why


class Configs:
    def __init__(self, broker: Broker, partitions: Partitions) -> None:
        self._broker = broker
        self._partitions = partitions

    # -- looking -----------------------------------------------------------------------------------------------

    async def describe(self, request: CallRequest, response: CallResponse) -> Any:
        results = [await self._described(request, response, each) for each in request.resources]
        return response.make("DescribeConfigsResponse", throttle_time=_NO_TIME, results=tuple(results))

    async def _described(self, request: CallRequest, response: CallResponse, resource: Any) -> Any:
        code, why, configs = KafkaCode.NONE, None, []
        try:
            configs = await self._configs(request, response, resource)
        except REFUSALS as error:
            code, why = code_of(error), str(error)
        return response.make(
            "DescribeConfigsResult",
            error_code=error_code(code),
            error_message=why,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=tuple(configs),
        )

    async def _configs(self, request: CallRequest, response: CallResponse, resource: Any) -> list[Any]:
        wanted = None if resource.configuration_keys is None else set(resource.configuration_keys)
        fixed = FIXED_OF_BROKERS
        found: list[Any] = []
        if resource.resource_type == _TOPIC:
            fixed = FIXED
            if not request.caller.may_see(own_name(resource.resource_name)):
                raise KafkaError(KafkaCode.TOPIC_AUTHORIZATION_FAILED)
            topic = await self._partitions.topic(resource.resource_name)
            counts = (await self._broker.policies.of_topic(topic.name)).effective
            for name, setting in SETTINGS.items():
                known = getattr(counts, setting)
                found.append(_config(response, name, str(known.value), _SOURCES[known.source], _LONG, fixed=False))
        elif resource.resource_type != _BROKER:
            raise KafkaError(KafkaCode.INVALID_REQUEST)
        found += [_config(response, *each, _DEFAULT, _STRING, fixed=True) for each in fixed.items()]
        return [each for each in found if wanted is None or each.name in wanted]

    # -- changing ----------------------------------------------------------------------------------------------

    async def alter(self, request: CallRequest, response: CallResponse) -> Any:
        results = []
        for each in request.resources:
            code, why, status = KafkaCode.NONE, None, 200
            try:
                await self._altered(request, each)
            except REFUSALS as error:
                code, why, status = code_of(error), str(error), status_of(error)
            if not request.validate_only and each.resource_type == _TOPIC:
                audit.record(
                    "policy.change",
                    {"topic": each.resource_name},
                    status,
                    principal=request.caller.name,
                    address=request.address,
                    arguments={change.name: change.value for change in each.configs},
                )
            results.append(
                response.make(
                    "AlterConfigsResourceResponse",
                    error_code=error_code(code),
                    error_message=why,
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                )
            )
        return response.make("IncrementalAlterConfigsResponse", throttle_time=_NO_TIME, responses=tuple(results))

    async def _altered(self, request: CallRequest, resource: Any) -> None:
        if resource.resource_type != _TOPIC:
            raise InvalidConfig("only the settings of topics can be changed here")
        require_right(request.caller, "admin", resource.resource_name)
        topic = await self._partitions.topic(resource.resource_name)
        given: dict[str, str | None] = {}
        for each in resource.configs:
            if each.config_operation not in (_SET, _DELETE):
                raise InvalidConfig(f"{each.name} is not a list: it can be set or deleted")
            if each.name not in SETTINGS:
                raise InvalidConfig(f"{each.name} cannot be changed here; {', '.join(SETTINGS)} can")
            given[each.name] = each.value if each.config_operation == _SET else None
        changes = policy_of(given.items())
        if not request.validate_only:
            await self._broker.policies.change_topic(topic.name, changes)


def policy_of(given: Iterable[tuple[str, str | None]]) -> dict[str, Any]:
    """What these settings of Kafka's change in a topic's policy. Settings without a meaning here are left out. Raises
    `InvalidConfig`."""
    changes: dict[str, int | None] = {}
    for name, value in given:
        if name not in SETTINGS:
            continue
        try:
            changes[SETTINGS[name]] = None if value is None else int(value)
        except ValueError:
            raise InvalidConfig(f"{name}: {value!r} is not a number") from None
    try:
        return TopicPolicy(**changes).changes()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = next(name for name, ours in SETTINGS.items() if ours == first["loc"][0])
        raise InvalidConfig(f"{name}: {first['msg']}") from None


def _config(response: CallResponse, name: str, value: str, source: int, kind: int, *, fixed: bool) -> Any:
    return response.make(
        "DescribeConfigsResourceResult",
        name=name,
        value=value,
        read_only=fixed,
        config_source=source,
        is_sensitive=False,
        synonyms=(),
        config_type=kind,
        documentation=None,
    )
