"""Goal: each alert fires on its fault alone, none on a healthy cluster, each has a section in the runbook, and no rule
asks for a metric that nobody exposes.

Method: Prometheus' own `promtool`, and the registries of both services.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from metastore.backends.memory import MemoryStore
from metastore.txn.store import INDEXES
from participants.service import BrokerService
from tests.links import anchors
from tests.ops.series import FAULTS, HEALTHY, B, C
from tests.test_contract import exposed, metrics_of_coordinator

ROOT = Path(__file__).parents[2]
RULES = ROOT / "ops" / "prometheus" / "rules.yml"
LATE = "55m"


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from group["rules"]


ALERTS = [rule for rule in rules() if "alert" in rule]


def as_input(series: dict[str, str]) -> list[dict[str, str]]:
    return [{"series": each, "values": values} for each, values in series.items()]


def story(name: str, changes: dict[str, str], firing: list[str]) -> dict[str, Any]:
    """A test of promtool: exactly these alerts fire, each once."""
    expected = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in firing]
    expression = 'count by (alertname) (ALERTS{alertstate="firing"})'
    expectation = {"expr": expression, "eval_time": LATE, "exp_samples": expected}
    series = as_input(HEALTHY | changes)
    return {"interval": "1m", "name": name, "input_series": series, "promql_expr_test": [expectation]}


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True)


def judged(tmp_path: Path, stories: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    (tests := tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": stories}))
    return promtool("test", "rules", str(tests))


def test_the_configuration_is_valid() -> None:
    done = promtool("check", "config", str(RULES.with_name("prometheus.yml")))
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_on_its_fault_and_none_on_a_healthy_cluster(tmp_path: Path) -> None:
    assert [alert["alert"] for alert in ALERTS] == [*FAULTS]
    stories = [story(name, changes, [name]) for name, changes in FAULTS.items()]
    done = judged(tmp_path, [story("healthy", {}, []), *stories])
    assert done.returncode == 0, done.stdout + done.stderr


def of_cluster(name: str, series: dict[str, str]) -> dict[str, str]:
    """The same with a label that tells the cluster."""
    return {each.replace("{", f'{{cluster="{name}",', 1): values for each, values in series.items()}


def test_a_second_cluster_neither_hides_a_fault_nor_makes_one(tmp_path: Path) -> None:
    """It is on the whole healthy, has topics of the same names, and another release."""
    newer = {each.replace('version="1"', 'version="3"'): values for each, values in HEALTHY.items()}
    stories = []
    cases: dict[str, dict[str, str]] = {"healthy": {}, **FAULTS}
    for name, changes in cases.items():
        both = of_cluster("second", newer) | of_cluster("first", HEALTHY | changes)
        stories.append(story(name, {}, [name] if changes else []) | {"input_series": as_input(both)})
    done = judged(tmp_path, stories)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("gone", [B, C])
def test_services_that_are_no_targets_any_more_are_down(tmp_path: Path, gone: str) -> None:
    """Where Prometheus finds none, it scrapes none, and none is down."""
    left = {each: values for each, values in HEALTHY.items() if each != f"up{{{gone}}}"}
    without = story("none is found", {}, ["MetatxnServiceDown"]) | {"input_series": as_input(left)}
    done = judged(tmp_path, [without])
    assert done.returncode == 0, done.stdout + done.stderr


def test_where_no_request_has_ever_failed_the_part_of_failures_is_zero(tmp_path: Path) -> None:
    """Not unknown, as it would be without a series of failures."""
    healthy = story("nothing has failed", {}, [])
    healthy["input_series"] = [each for each in healthy["input_series"] if 'status="503"' not in each["series"]]
    expected = {"labels": f"metatxn:request_failures:ratio5m{{{C}}}", "value": 0}
    failures = {"expr": "metatxn:request_failures:ratio5m", "eval_time": LATE, "exp_samples": [expected]}
    done = judged(tmp_path, [healthy | {"promql_expr_test": [failures]}])
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_alert_that_does_not_fire_is_noticed(tmp_path: Path) -> None:
    assert judged(tmp_path, [story("healthy", {}, ["MetatxnServiceDown"])]).returncode == 1
    assert judged(tmp_path, [story("down", FAULTS["MetatxnServiceDown"], [])]).returncode == 1


async def known_metrics() -> set[str]:
    """The names under which samples are scraped."""
    broker = BrokerService(MemoryStore(INDEXES), data_dir="never-opened").metrics.registry
    found = (await metrics_of_coordinator()) | exposed(broker)
    parts = {
        f"{name}_{part}" for name, kind in found.items() if kind == "histogram" for part in ("bucket", "sum", "count")
    }
    return {name for name, kind in found.items() if kind != "histogram"} | parts | {"up"}


def metrics_in(expression: str) -> set[str]:
    """Names of metrics, without those that rules record, which have a colon."""
    without_labels = re.sub(r"\{.*?\}|(?:by|ignoring|on|without) \(.*?\)", " ", expression)
    return set(re.findall(r"(?<![\w:])(?:up|(?:metatxn|pulsar|process)_\w+)(?![\w:])", without_labels))


async def test_every_metric_in_a_rule_is_exposed() -> None:
    asked = set().union(*(metrics_in(rule["expr"]) for rule in rules()))
    assert len(asked) > 20 and asked <= await known_metrics()
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    named = set(re.findall(r"metatxn:[\w:]+", " ".join(rule["expr"] for rule in rules())))
    assert named <= recorded


async def test_a_metric_that_nobody_exposes_is_noticed() -> None:
    asked = metrics_in('sum by (metatxn_x) (rate(metatxn_gone_total{a="metatxn_y"}[5m])) / metatxn:recorded:sum > up')
    assert asked == {"metatxn_gone_total", "up"} and "metatxn_gone_total" not in await known_metrics()


@pytest.mark.parametrize("alert", ALERTS, ids=[each["alert"] for each in ALERTS])
def test_each_alert_has_a_section_in_the_runbook(alert: dict[str, Any]) -> None:
    page, _, place = alert["annotations"]["runbook"].partition("#")
    assert place == alert["alert"].lower() and place in anchors(ROOT / page)
