"""Quotas: how much a principal may use of the cluster in a second.

what applies, by amount:  the principal's own  ▶  the default of all principals  ▶  none
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from metatxn.wire.models import example

UNLIMITED = -1
_MOST = 2**53 - 1
QuotaName = Literal["requests_per_second", "bytes_in_per_second", "bytes_out_per_second"]
QUOTA_NAMES: tuple[QuotaName, ...] = get_args(QuotaName)
QuotaSource = Literal["principal", "default", "none"]
_EXAMPLE: dict[str, Any] = {"requests_per_second": 500, "bytes_in_per_second": 10_485_760}


def _some(value: int) -> int:
    if value == 0:
        raise ValueError("must be -1 or at least 1; to let a principal do nothing, revoke its tokens")
    return value


Amount = Annotated[int, Field(ge=UNLIMITED, le=_MOST), AfterValidator(_some)]


class QuotaSettings(BaseModel):
    """The amounts of a quota. `bytes_in_per_second` counts the bodies of requests that publish, and
    `bytes_out_per_second` the answers to those that read or receive messages. -1 means that there is no limit, whatever
    the default says."""

    requests_per_second: Amount | None = None
    bytes_in_per_second: Amount | None = None
    bytes_out_per_second: Amount | None = None

    @property
    def empty(self) -> bool:
        return all(getattr(self, name) is None for name in QUOTA_NAMES)

    def amounts(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in QUOTA_NAMES}


class QuotaChanges(QuotaSettings):
    """A part of a quota that replaces what it names: null removes an amount."""

    model_config = ConfigDict(extra="forbid", strict=True) | example(**_EXAMPLE)

    def changes(self) -> dict[str, int | None]:
        """The amounts that were given, also those that are null."""
        return {name: getattr(self, name) for name in QUOTA_NAMES if name in self.model_fields_set}


class QuotaAmount(BaseModel):
    """An amount, and where it comes from."""

    value: int
    source: QuotaSource


class EffectiveQuota(BaseModel):
    """What applies: -1 where there is no limit."""

    requests_per_second: QuotaAmount
    bytes_in_per_second: QuotaAmount
    bytes_out_per_second: QuotaAmount


def effective_quota(own: QuotaSettings | None, default: QuotaSettings | None) -> EffectiveQuota:
    found: dict[str, Any] = {name: {"value": UNLIMITED, "source": "none"} for name in QUOTA_NAMES}
    named: tuple[tuple[QuotaSource, QuotaSettings | None], ...] = (("default", default), ("principal", own))
    for source, settings in named:
        for name, value in settings.amounts().items() if settings is not None else ():
            if value is not None:
                found[name] = {"value": value, "source": source}
    return EffectiveQuota.model_validate(found)


class QuotaUse(BaseModel):
    """What a principal has lately used per second, in the whole cluster."""

    requests_per_second: float = 0
    bytes_in_per_second: float = 0
    bytes_out_per_second: float = 0


class QuotaInfo(BaseModel):
    """A quota: of a principal, or the default, which has no principal. `quota` is what was set, `effective` what
    applies, and `use` what the services know about its use."""

    model_config = example(
        principal="billing",
        quota=_EXAMPLE,
        effective={
            "requests_per_second": {"value": 500, "source": "principal"},
            "bytes_in_per_second": {"value": 10_485_760, "source": "principal"},
            "bytes_out_per_second": {"value": 52_428_800, "source": "default"},
        },
        use={"requests_per_second": 210.5, "bytes_in_per_second": 1_048_576, "bytes_out_per_second": 0},
    )

    principal: str | None = None
    quota: QuotaSettings
    effective: EffectiveQuota
    use: QuotaUse | None = None


class QuotaPage(BaseModel):
    model_config = example(items=[], next_page_token=None)

    items: list[QuotaInfo]
    next_page_token: str | None = None
