"""`make ops-test`: the alerts and dashboards of `ops/`, by a real Prometheus that scrapes a real cluster.

No alert fires on a healthy cluster under load. Each fires while its fault is there, which is made for real, and did not
before. At the end every expression of the dashboards has series.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from tests.ops.live_cluster import LOCAL, LiveCluster
from tests.ops.live_faults import STORIES, make
from tests.ops.live_rules import Prometheus
from tests.ops.test_dashboards import expressions
from tests.ops.test_rules import ALERTS

HEALTHY_S = 90.0
"""Longer than every alert waits, at its shorter times."""
PATIENCE_S = 240.0


def say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


async def main(directory: Path) -> None:
    named = [alert for story in STORIES for alerts in story.values() for alert in alerts]
    assert sorted(named) == sorted(each["alert"] for each in ALERTS), "each alert has a fault"
    cluster = LiveCluster(directory / "cluster")
    async with cluster.running():
        with Prometheus(directory / "prometheus", cluster.targets) as prometheus:
            while not await prometheus.ready():
                await asyncio.sleep(0.2)
            loads = [asyncio.create_task(cluster.load(await cluster.topic_on(name, f"load-{name}"))) for name in LOCAL]
            await _healthy(prometheus)
            for story in STORIES:
                async with AsyncExitStack() as faults:
                    before = await prometheus.firing()
                    expected = {alert for alerts in story.values() for alert in alerts}
                    assert not before & expected, f"these fire before their fault: {sorted(before & expected)}"
                    begun = time.monotonic()
                    await make(faults, story, cluster)
                    await _fires(prometheus, expected, begun)
                await _ends(prometheus, expected)
            await _dashboards(prometheus)
            for load in loads:
                load.cancel()
            await asyncio.gather(*loads, return_exceptions=True)
    say(f"{len(named)} alerts fired by their faults, 0 failed")


async def _healthy(prometheus: Prometheus) -> None:
    """For a while, in which nothing fails."""
    end = time.monotonic() + HEALTHY_S
    while time.monotonic() < end:
        assert not (firing := await prometheus.firing()), f"these fire on a healthy cluster: {sorted(firing)}"
        await asyncio.sleep(1)
    rates = await prometheus.query('sum(rate(metatxn_transactions_ended_total{result="committed"}[10s]))')
    say(f"no alert on a healthy cluster, at {float(rates[0]['value'][1]):.0f} transactions/s")


async def _fires(prometheus: Prometheus, expected: set[str], begun: float) -> None:
    missing = set(expected)
    while missing:
        for alert in sorted(missing & await prometheus.firing()):
            say(f"{alert} fires {time.monotonic() - begun:.0f} s after its fault")
            missing.discard(alert)
        if time.monotonic() > begun + PATIENCE_S:
            raise SystemExit(f"these do not fire: {sorted(missing)}")
        await asyncio.sleep(1)


async def _ends(prometheus: Prometheus, alerts: set[str]) -> None:
    """Once the fault is repaired."""
    end = time.monotonic() + PATIENCE_S
    while still := alerts & await prometheus.firing():
        if time.monotonic() > end:
            raise SystemExit(f"these fire though their fault is gone: {sorted(still)}")
        await asyncio.sleep(1)


async def _dashboards(prometheus: Prometheus) -> None:
    found = sorted(set(expressions()))
    empty = [each for each in found if not await prometheus.query(each)]
    if empty:
        raise SystemExit("no series for these expressions of dashboards:\n" + "\n".join(empty))
    say(f"{len(found)} expressions of dashboards have series")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nobody leaves processes and mounts behind
    where = Path(tempfile.mkdtemp(prefix="metatxn-ops-"))
    say(str(where))
    asyncio.run(main(where))
