"""Goal: the dashboards that are checked in are those that the script makes, every expression is one that Prometheus
understands, of metrics that the services expose, and the runbook shows a picture of each.

Method: the script, `promtool`, and the registries of both services.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from scripts.dashboards import FOLDER, dashboards
from tests.ops.plots import SUFFIXES, legend_of, shown
from tests.ops.test_rules import ROOT, known_metrics, metrics_in, promtool, rules

FILES = sorted(FOLDER.glob("*.json"))


def panels(path: Path) -> Iterator[dict[str, Any]]:
    for panel in json.loads(path.read_text())["panels"]:
        if panel["type"] != "row":
            yield panel


def expressions() -> Iterator[str]:
    for path in FILES:
        for panel in panels(path):
            yield from (target["expr"] for target in panel["targets"])


def test_the_files_are_current() -> None:
    """`make dashboards` writes them."""
    wanted = dict(dashboards())
    assert sorted(wanted) == FILES
    for path, text in wanted.items():
        assert path.read_text() == text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_grafanas_schema_knows_every_member(path: Path) -> None:
    """Grafana's classes are made from its schema. What they do not know is lost on the way through them."""
    made = json.loads(path.read_text())
    assert json.loads(JSONEncoder().encode(Dashboard.from_json(made))) == made
    assert json.loads(JSONEncoder().encode(Dashboard.from_json(made | {"titel": "x"}))) == made


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_say_what_one_reads_from_them_and_do_not_overlap(path: Path) -> None:
    places: set[tuple[int, int]] = set()
    for panel in panels(path):
        assert panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places and at["x"] + at["w"] <= 24
        places |= cells
    ids = [panel["id"] for panel in json.loads(path.read_text())["panels"]]
    assert len(ids) == len(set(ids)) > 8


def test_prometheus_understands_every_expression(tmp_path: Path) -> None:
    filled = [each.replace("$__rate_interval", "1m") for each in expressions()]
    recorded = [{"record": f"a:b{number}", "expr": each} for number, each in enumerate(filled)]
    (made := tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": recorded}]}))
    done = promtool("check", "rules", str(made))
    assert done.returncode == 0 and f"{len(filled)} rules found" in done.stdout, done.stdout + done.stderr


async def test_every_metric_in_a_dashboard_is_exposed_or_recorded() -> None:
    asked = set().union(*map(metrics_in, expressions()))
    assert len(asked) > 20 and asked <= await known_metrics()
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    assert {each for each in expressions() if each.startswith("metatxn:")} <= recorded


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_runbook_shows_a_picture_of_it(path: Path) -> None:
    """`make dashboards-shots` draws it, and knows the units of all panels."""
    picture = ROOT / "docs" / "images" / f"dashboard-{path.stem}.png"
    assert f"](images/{picture.name})" in (ROOT / "docs" / "operations.md").read_text()
    assert picture.stat().st_size < 200_000
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in panels(path)} <= {*SUFFIXES, "percentunit"}


def test_a_picture_names_series_and_values_as_grafana_does() -> None:
    assert legend_of("{{result}} of {{instance}}{{gone}}", {"result": "ended", "instance": "c"}) == "ended of c"
    assert [shown(1_500, "B/s"), shown(0.5, "ops/s"), shown(2, "")] == ["1.5 kB/s", "0.5 ops/s", "2"]
