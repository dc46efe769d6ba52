"""The records of quotas."""

from __future__ import annotations

from collections.abc import Mapping

from metastore.txn.records.json_record import JsonRecord
from metatxn.wire.quotas import QuotaSettings


class QuotaRecord(JsonRecord, QuotaSettings):
    """`/quota/default` and `/quota/principal/<name>`. A quota that says nothing has no record."""


class PrincipalUse(JsonRecord):
    """What one process has let a principal use in a second lately, by the name of the amount, and the amounts of which
    it has refused some."""

    rates: Mapping[str, float]
    limited: tuple[str, ...] = ()


class QuotaUseRecord(JsonRecord):
    """`/quota-use/<process>`: what a running service has let principals use, as far as a quota counts for them. It says
    nothing for certain, and is deleted by another process if its own one has not changed it for a minute. Callers
    without a name have the name "" here."""

    uses: Mapping[str, PrincipalUse]
