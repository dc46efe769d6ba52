"""The settings of a topic, as Kafka names them, and what each of them is here.

    SETTINGS   our policies, which can be changed         retention.ms is retention_ms
    FIXED      what every topic does, and nothing else    message.timestamp.type is CreateTime
    LAYOUT     how Kafka lays out its files               accepted, and without a meaning here

A request for anything else is refused by its name: a client that asks for something must not believe that it has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from metatxn.wire.frames import MAX_PAYLOAD_BYTES
from metatxn.wire.policies import TopicPolicy
from metatxn_gateways.kafka.codes import KafkaCode, KafkaError

STRING, LONG, LIST = 2, 5, 7
"""Kafka's numbers of types."""
_CLEANUP: Mapping[frozenset[str], str] = {
    frozenset({"delete"}): "delete",
    frozenset({"compact"}): "compact",
    frozenset({"compact", "delete"}): "both",
}
_LONGEST = str(2**63 - 1)


class InvalidConfig(KafkaError):
    def __init__(self, why: str) -> None:
        super().__init__(KafkaCode.INVALID_CONFIG)
        self.why = why

    def __str__(self) -> str:
        return self.why


@dataclass(frozen=True, slots=True)
class PolicySetting:
    """A setting of Kafka's that is the setting `ours` of a policy. `parse` raises `ValueError`."""

    ours: str
    kind: int
    parse: Callable[[str], int | str]
    shown: Callable[[Any], str] = str


def _number(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a number") from None


def _cleanup(value: str) -> str:
    parts = frozenset(part.strip() for part in value.split(","))
    if parts not in _CLEANUP:
        raise ValueError(f"{value!r} is neither delete, nor compact, nor both of them")
    return _CLEANUP[parts]


def _cleanup_shown(ours: str) -> str:
    return "compact,delete" if ours == "both" else ours


SETTINGS: Mapping[str, PolicySetting] = {
    "cleanup.policy": PolicySetting("cleanup", LIST, _cleanup, _cleanup_shown),
    "delete.retention.ms": PolicySetting("delete_retention_ms", LONG, _number),
    "retention.bytes": PolicySetting("retention_bytes", LONG, _number),
    "retention.ms": PolicySetting("retention_ms", LONG, _number),
    "segment.ms": PolicySetting("roll_ms", LONG, _number),
}
FIXED: Mapping[str, str] = {
    "compression.type": "producer",
    "max.compaction.lag.ms": _LONGEST,
    "max.message.bytes": str(MAX_PAYLOAD_BYTES),
    "message.timestamp.before.max.ms": _LONGEST,
    "message.timestamp.type": "CreateTime",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "remote.storage.enable": "false",
    "unclean.leader.election.enable": "false",
}
LAYOUT = frozenset(
    {
        *("file.delete.delay.ms", "flush.messages", "flush.ms", "index.interval.bytes", "min.cleanable.dirty.ratio"),
        *("preallocate", "segment.bytes", "segment.index.bytes", "segment.jitter.ms"),
    }
)
"""Kafka Streams sets some of them for each of its topics. No client can see what they change; what is written is always
flushed."""


def policy_of(given: Iterable[tuple[str, str | None]]) -> dict[str, Any]:
    """What these settings change in a topic's policy; None removes one. Raises `InvalidConfig`."""
    changes: dict[str, int | str | None] = {}
    for name, value in given:
        if name not in SETTINGS:
            _check_unchangeable(name, value)
            continue
        try:
            changes[SETTINGS[name].ours] = None if value is None else SETTINGS[name].parse(value)
        except ValueError as error:
            raise InvalidConfig(f"{name}: {error}") from None
    try:
        return TopicPolicy.model_validate(changes).changes()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = next(name for name, setting in SETTINGS.items() if setting.ours == first["loc"][0])
        raise InvalidConfig(f"{name}: {first['msg']}") from None


def _check_unchangeable(name: str, value: str | None) -> None:
    """Raises `InvalidConfig` unless the setting asks for what is done anyway."""
    if name in LAYOUT:
        return
    if name not in FIXED:
        raise InvalidConfig(f"{name} is not a setting of topics here; {', '.join(SETTINGS)} can be changed")
    if value is not None and value.strip().lower() != FIXED[name].lower():
        raise InvalidConfig(f"{name} is always {FIXED[name]} here, and cannot be {value}")
