"""The settings of topics, as Kafka names them. They are our policies (`retention.ms` is `retention_ms`), and what
cannot be changed is shown as read-only.

A setting that comes from the policy of the namespace or the cluster is shown as one of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from metatxn.service import audit
from metatxn.wire.frames import MAX_PAYLOAD_BYTES
from metatxn.wire.policies import EffectivePolicy
from metatxn_gateways.kafka.codes import REFUSALS, KafkaCode, KafkaError, code_of, error_code, status_of
from metatxn_gateways.kafka.partitions import Partitions, own_name, require_right
from metatxn_gateways.kafka.schemas import CallRequest, CallResponse
from metatxn_gateways.kafka.settings import FIXED, SETTINGS, STRING, InvalidConfig, policy_of
from participants.broker.broker import Broker

_NO_TIME = timedelta(0)
_TOPIC, _BROKER = 2, 4
_SET, _DELETE = 0, 1
_SOURCES = {"topic": 1, "namespace": 3, "cluster": 3, "default": 5}
_DEFAULT = 5
FIXED_OF_BROKERS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "message.max.bytes": str(MAX_PAYLOAD_BYTES),
    "num.partitions": "1",
}


class ShownConfig(NamedTuple):
    name: str
    value: str
    source: int
    kind: int
    read_only: bool


def configs_of(policy: EffectivePolicy) -> Iterator[ShownConfig]:
    """The settings of a topic to which this policy applies."""
    for name, setting in SETTINGS.items():
        known = getattr(policy, setting.ours)
        yield ShownConfig(name, setting.shown(known.value), _SOURCES[known.source], setting.kind, False)
    yield from _fixed(FIXED)


def _fixed(fixed: Mapping[str, str]) -> Iterator[ShownConfig]:
    return (ShownConfig(name, value, _DEFAULT, STRING, True) for name, value in fixed.items())


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
        if resource.resource_type == _TOPIC:
            if not request.caller.may_see(own_name(resource.resource_name)):
                raise KafkaError(KafkaCode.TOPIC_AUTHORIZATION_FAILED)
            topic = await self._partitions.topic(resource.resource_name)
            found = configs_of((await self._broker.policies.of_topic(topic.name)).effective)
        elif resource.resource_type == _BROKER:
            found = _fixed(FIXED_OF_BROKERS)
        else:
            raise KafkaError(KafkaCode.INVALID_REQUEST)
        return [_described_config(response, each) for each in found if wanted is None or each.name in wanted]

    # -- changing ----------------------------------------------------------------------------------------------

    async def alter(self, request: CallRequest, response: CallResponse) -> Any:
        """Change the settings that are named, and no others."""
        results = [await self._altered(request, response, each, _named) for each in request.resources]
        return response.make("IncrementalAlterConfigsResponse", throttle_time=_NO_TIME, responses=tuple(results))

    async def replace(self, request: CallRequest, response: CallResponse) -> Any:
        """Change the settings that are named, and remove all others of the topic that have a name in Kafka."""
        results = [await self._altered(request, response, each, _all) for each in request.resources]
        return response.make("AlterConfigsResponse", throttle_time=_NO_TIME, responses=tuple(results))

    async def _altered(
        self,
        request: CallRequest,
        response: CallResponse,
        resource: Any,
        wanted: Callable[[Any], Mapping[str, str | None]],
    ) -> Any:
        code, why, status = KafkaCode.NONE, None, 200
        try:
            await self._change(request, resource, wanted)
        except REFUSALS as error:
            code, why, status = code_of(error), str(error), status_of(error)
        if not request.validate_only and resource.resource_type == _TOPIC:
            audit.record(
                "policy.change",
                {"topic": resource.resource_name},
                status,
                principal=request.caller.name,
                address=request.address,
                arguments={change.name: change.value for change in resource.configs},
            )
        return response.make(
            "AlterConfigsResourceResponse",
            error_code=error_code(code),
            error_message=why,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    async def _change(
        self, request: CallRequest, resource: Any, wanted: Callable[[Any], Mapping[str, str | None]]
    ) -> None:
        if resource.resource_type != _TOPIC:
            raise InvalidConfig("only the settings of topics can be changed here")
        require_right(request.caller, "admin", resource.resource_name)
        topic = await self._partitions.topic(resource.resource_name)
        changes = policy_of(wanted(resource.configs).items())
        if not request.validate_only:
            await self._broker.policies.change_topic(topic.name, changes)


def _named(configs: Iterable[Any]) -> Mapping[str, str | None]:
    given: dict[str, str | None] = {}
    for each in configs:
        if each.config_operation not in (_SET, _DELETE):
            raise InvalidConfig(f"{each.name} can be set or deleted, but nothing can be appended or subtracted")
        given[each.name] = each.value if each.config_operation == _SET else None
    return given


def _all(configs: Iterable[Any]) -> Mapping[str, str | None]:
    return dict.fromkeys(SETTINGS) | {each.name: each.value for each in configs}


def _described_config(response: CallResponse, config: ShownConfig) -> Any:
    return response.make(
        "DescribeConfigsResourceResult",
        name=config.name,
        value=config.value,
        read_only=config.read_only,
        config_source=config.source,
        is_sensitive=False,
        synonyms=(),
        config_type=config.kind,
        documentation=None,
    )
