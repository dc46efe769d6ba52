"""The records of policies."""

from __future__ import annotations

from metastore.txn.records.json_record import JsonRecord
from metatxn.wire.policies import PolicySettings


class PolicyRecord(JsonRecord, PolicySettings):
    """`/policy/cluster`, `/policy/namespace/<tenant/namespace>`, and the policy in `/topic/<name>`. A policy that says
    nothing has no record."""
