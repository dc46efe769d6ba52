"""Policies of topics: what one says, and which of several applies.

    what applies, by setting:  the topic's  ▶  its namespace's  ▶  the cluster's  ▶  the default

A setting that is absent says nothing, so the next policy decides. `UNLIMITED` means that there is no limit, whatever
the next one says.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from metatxn.wire.models import example

UNLIMITED = -1
MIN_ROLL_MS = 1_000
MAX_UNACKED_PER_CONSUMER = 50_000
"""The default, as in Pulsar. It has to be as large as the largest transaction that consumes: what a transaction has
acknowledged counts until it ends."""
_MOST = 2**53 - 1

RetentionKind = Literal["acknowledged", "hard"]
CleanupKind = Literal["delete", "compact", "both"]
BacklogKind = Literal["producer_hold", "evict"]
CompatibilityKind = Literal["none", "backward", "forward", "full"]
SchemaUpdates = Literal["producers", "admins"]
DEFAULT_DELETE_RETENTION_MS = 86_400_000
Source = Literal["topic", "namespace", "cluster", "default"]
Value = TypeVar("Value")


def _some(value: int) -> int:
    if value == 0:
        raise ValueError("must be -1 or at least 1, because with 0 no consumer would get anything")
    return value


Limit = Annotated[int, Field(ge=UNLIMITED, le=_MOST)]
Positive = Annotated[int, Field(ge=UNLIMITED, le=_MOST), AfterValidator(_some)]
_EXAMPLE: dict[str, Any] = {"retention_ms": 604_800_000, "retention": "hard"}


class PolicySettings(BaseModel):
    """The settings of a policy. `retention_ms` and `retention_bytes` say what is kept at least; older ledgers are
    dropped. With `acknowledged`, nothing that a subscription has not acknowledged is dropped; `hard` drops it anyway.
    `roll_ms` is the age at
    which an open ledger is closed, so that it can be dropped or compacted as a whole. `cleanup` says whether ledgers
    are dropped, or compacted, or both; a message that deletes a key stays for `delete_retention_ms` when they are
    compacted. A consumer that holds `max_unacked_per_consumer` messages of a subscription gets no more. What a
    subscription has not acknowledged `ttl_ms` after it was published counts as acknowledged. When a subscription has
    not acknowledged `backlog_bytes`, or messages older than `backlog_ms`, new messages are refused (`producer_hold`) or
    its oldest ones count as acknowledged (`evict`), as `backlog` says. `schema_compatibility` says which columns may
    follow others in the schema, and `schema_updates` whether producers may set the first ones and add others, or only
    administrators."""

    retention_ms: Limit | None = None
    retention_bytes: Limit | None = None
    retention: RetentionKind | None = None
    roll_ms: Annotated[int, Field(ge=MIN_ROLL_MS, le=_MOST)] | None = None
    max_unacked_per_consumer: Positive | None = None
    cleanup: CleanupKind | None = None
    delete_retention_ms: Annotated[int, Field(ge=0, le=_MOST)] | None = None
    ttl_ms: Positive | None = None
    backlog_bytes: Positive | None = None
    backlog_ms: Positive | None = None
    backlog: BacklogKind | None = None
    schema_compatibility: CompatibilityKind | None = None
    schema_updates: SchemaUpdates | None = None

    @property
    def empty(self) -> bool:
        return all(value is None for value in self.settings().values())

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in PolicySettings.model_fields}


class TopicPolicy(PolicySettings):
    """A policy, or a part of one that replaces what it names: null removes a setting."""

    model_config = ConfigDict(extra="forbid", strict=True) | example(**_EXAMPLE)

    def changes(self) -> dict[str, Any]:
        """The settings that were given, also those that are null."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class Setting(BaseModel, Generic[Value]):
    """A value, and the policy that it comes from."""

    value: Value
    source: Source


class EffectivePolicy(BaseModel):
    """What applies. A limit of -1 means that there is none. Without `roll_ms` a ledger is as old as `retention_ms` when
    it is closed."""

    retention_ms: Setting[int]
    retention_bytes: Setting[int]
    retention: Setting[RetentionKind]
    roll_ms: Setting[int]
    max_unacked_per_consumer: Setting[int]
    cleanup: Setting[CleanupKind]
    delete_retention_ms: Setting[int]
    ttl_ms: Setting[int]
    backlog_bytes: Setting[int]
    backlog_ms: Setting[int]
    backlog: Setting[BacklogKind]
    schema_compatibility: Setting[CompatibilityKind]
    schema_updates: Setting[SchemaUpdates]

    @property
    def compacts(self) -> bool:
        """Whether ledgers are compacted."""
        return self.cleanup.value != "delete"

    @property
    def drops(self) -> bool:
        """Whether anything may be dropped at all."""
        if self.cleanup.value == "compact":
            return False
        return self.retention_ms.value != UNLIMITED or self.retention_bytes.value != UNLIMITED

    @property
    def roll_after_ms(self) -> int | None:
        """The age at which an open ledger is closed, or None. What is never closed is never dropped, nor known to be
        too old, so a topic that drops messages or limits its backlog by age closes its ledgers at that age, too."""
        if self.roll_ms.value != UNLIMITED:
            return self.roll_ms.value
        bounds = [bound for bound in (self.retention_ms.value, self.backlog_ms.value) if bound != UNLIMITED]
        return max(min(bounds), MIN_ROLL_MS) if bounds else None

    @property
    def bounds_backlog(self) -> bool:
        return self.backlog_bytes.value != UNLIMITED or self.backlog_ms.value != UNLIMITED

    @property
    def bounded_bytes(self) -> int | None:
        """The lowest number of bytes at which something happens to a topic, or None."""
        bounds = [each.value for each in (self.retention_bytes, self.backlog_bytes) if each.value != UNLIMITED]
        return min(bounds, default=None)


DEFAULTS: dict[str, Any] = {
    "retention_ms": UNLIMITED,
    "retention_bytes": UNLIMITED,
    "retention": "acknowledged",
    "roll_ms": UNLIMITED,
    "max_unacked_per_consumer": MAX_UNACKED_PER_CONSUMER,
    "cleanup": "delete",
    "delete_retention_ms": DEFAULT_DELETE_RETENTION_MS,
    "ttl_ms": UNLIMITED,
    "backlog_bytes": UNLIMITED,
    "backlog_ms": UNLIMITED,
    "backlog": "producer_hold",
    "schema_compatibility": "full",
    "schema_updates": "producers",
}


def effective(*policies: tuple[Source, PolicySettings]) -> EffectivePolicy:
    """What applies, given the policies from the closest one on."""
    found: dict[str, Any] = {name: {"value": value, "source": "default"} for name, value in DEFAULTS.items()}
    for source, policy in reversed(policies):
        for name, value in policy.settings().items():
            if value is not None:
                found[name] = {"value": value, "source": source}
    return EffectivePolicy.model_validate(found)


class PolicyInfo(BaseModel):
    """A policy: `policy` is what was set here, and `effective` what applies here."""

    model_config = example(
        policy=_EXAMPLE,
        effective={
            name: {"value": _EXAMPLE.get(name, value), "source": "topic" if name in _EXAMPLE else "default"}
            for name, value in DEFAULTS.items()
        },
    )

    policy: PolicySettings
    effective: EffectivePolicy
