"""Series of a cluster for an hour, one sample a minute: of a healthy one, and what each fault changes."""

from __future__ import annotations

MINUTES = 60
C, B = 'job="metatxn-coordinator",instance="c"', 'job="metatxn-broker",instance="b"'
SUBSCRIPTION = f'{B},topic="t",subscription="s"'
REQUESTS = f'metatxn_requests_total{{{C},method="POST",route="/v1/txns"'
ENDED = f"metatxn_transactions_ended_total{{{C}"


def constant(value: float) -> str:
    return f"{value}x{MINUTES}"


def growing(a_minute: float) -> str:
    return f"0+{a_minute}x{MINUTES}"


def buckets(name: str, labels: str, below: str, above: str) -> dict[str, str]:
    """A histogram: how many calls a minute are below 0.1, and how many of them all are below 10 seconds."""
    found = {f'{name}_bucket{{{labels},le="{le}"}}': growing(float(below)) for le in ("0.1",)}
    return found | {f'{name}_bucket{{{labels},le="{le}"}}': growing(float(above)) for le in ("10.0", "+Inf")}


HEALTHY = {
    f"up{{{C}}}": constant(1),
    f"up{{{B}}}": constant(1),
    f'{REQUESTS},status="201"}}': growing(600),
    f'{REQUESTS},status="409"}}': growing(60),
    f'{REQUESTS},status="503"}}': growing(0),
    f'metatxn_store_errors_total{{{C},operation="apply",error="CheckFailed"}}': growing(60),
    f'metatxn_store_errors_total{{{C},operation="apply",error="StoreUnavailable"}}': growing(0),
    **buckets("metatxn_store_seconds", f'{C},operation="apply"', "600", "600"),
    **buckets("metatxn_event_loop_lag_seconds", C, "120", "120"),
    **buckets("metatxn_decision_to_visible_seconds", B, "600", "600"),
    f"process_open_fds{{{C}}}": constant(100),
    f"process_max_fds{{{C}}}": constant(1024),
    f'metatxn_build_info{{{C},version="1"}}': constant(1),
    f'metatxn_build_info{{{B},version="1"}}': constant(1),
    f"metatxn_oldest_open_transaction_seconds{{{C}}}": constant(5),
    f'{ENDED},result="committed"}}': growing(600),
    f'{ENDED},result="timed_out"}}': growing(1),
    f"metatxn_timeout_sweep_errors_total{{{C}}}": growing(0),
    f"metatxn_gc_backlog_headers{{{C}}}": constant(10),
    f'metatxn_horizon_lag_entries{{{B},segment="x"}}': constant(10),
    f'metatxn_horizon_lag_entries{{{B},segment="others"}}': constant(50_000),
    f"metatxn_storage_used_bytes{{{B}}}": constant(50),
    f"metatxn_storage_capacity_bytes{{{B}}}": constant(100),
    f'metatxn_storage_used_bytes{{{B},storage="objects"}}': constant(0),
    f'metatxn_storage_capacity_bytes{{{B},storage="objects"}}': constant(0),
    f"metatxn_storage_refuses_publishes{{{B}}}": constant(0),
    f"metatxn_damaged_ledgers{{{B}}}": constant(0),
    f"metatxn_segments_lost_total{{{B}}}": growing(0),
    f"metatxn_subscription_backlog_entries{{{SUBSCRIPTION}}}": constant(50),
    f"metatxn_subscription_consumers{{{SUBSCRIPTION}}}": constant(1),
    f"metatxn_held_publishes_total{{{B}}}": growing(0),
    f'metatxn_dead_letters_total{{{B},topic="t"}}': growing(0),
}

FAULTS: dict[str, dict[str, str]] = {
    "MetatxnServiceDown": {f"up{{{B}}}": constant(0)},
    "MetatxnRequestsFail": {f'{REQUESTS},status="503"}}': growing(20)},
    "MetatxnStoreFails": {f'metatxn_store_errors_total{{{C},operation="apply",error="StoreUnavailable"}}': growing(60)},
    "MetatxnStoreSlow": buckets("metatxn_store_seconds", f'{C},operation="apply"', "500", "600"),
    "MetatxnEventLoopLate": buckets("metatxn_event_loop_lag_seconds", C, "90", "120"),
    "MetatxnFilesRunOut": {f"process_open_fds{{{C}}}": constant(900)},
    "MetatxnVersionsDiffer": {f'metatxn_build_info{{{B},version="2"}}': constant(1)},
    "MetatxnTransactionHangs": {f"metatxn_oldest_open_transaction_seconds{{{C}}}": constant(601)},
    "MetatxnTransactionsExpire": {f'{ENDED},result="timed_out"}}': growing(60)},
    "MetatxnTimeoutSweepFails": {f"metatxn_timeout_sweep_errors_total{{{C}}}": growing(1)},
    "MetatxnGarbageStays": {f"metatxn_gc_backlog_headers{{{C}}}": constant(10_001)},
    "MetatxnReadersHeldBack": {f'metatxn_horizon_lag_entries{{{B},segment="x"}}': constant(10_001)},
    "MetatxnDecisionsSlow": buckets("metatxn_decision_to_visible_seconds", B, "300", "600"),
    "MetatxnDiskFills": {f"metatxn_storage_used_bytes{{{B}}}": constant(81)},
    "MetatxnPublishesRefused": {f"metatxn_storage_refuses_publishes{{{B}}}": constant(1)},
    "MetatxnLedgerDamaged": {f"metatxn_damaged_ledgers{{{B}}}": constant(1)},
    "MetatxnSegmentsMove": {f"metatxn_segments_lost_total{{{B}}}": growing(10)},
    "MetatxnSubscriptionAbandoned": {f"metatxn_subscription_consumers{{{SUBSCRIPTION}}}": constant(0)},
    "MetatxnSubscriptionFallsBehind": {f"metatxn_subscription_backlog_entries{{{SUBSCRIPTION}}}": growing(10_000)},
    "MetatxnBacklogHoldsPublishes": {f"metatxn_held_publishes_total{{{B}}}": growing(1)},
    "MetatxnDeadLetters": {f'metatxn_dead_letters_total{{{B},topic="t"}}': growing(1)},
}
"""By the alert that has to fire, and no other. A series replaces the healthy one of that name."""
