"""Goal: the dashboards that are checked in are those that the script makes, every expression is one that Prometheus
understands, of metrics that the services expose, and the runbook shows a picture of each.

Method: the script, `promtool`, and the registries of both services.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from grafana_foundation_sdk.models.prometheus import Dataquery
from pydantic import ConfigDict, TypeAdapter, ValidationError

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
    for target in (target for panel in panels(path) for target in panel["targets"]):
        assert json.loads(JSONEncoder().encode(Dataquery.from_json(target))) == target


def misfits(value: Any, declared: Any, where: str) -> Iterator[str]:
    """Which values are not of the type that Grafana's classes declare. These do not look when they are made."""
    choices = [get_origin(each) or each for each in (declared, *get_args(declared))]
    if isinstance(value, list) and list in choices:
        (item,) = {get_args(each)[0] for each in (declared, *get_args(declared)) if get_origin(each) is list}
        for number, each in enumerate(value):
            yield from misfits(each, item, f"{where}[{number}]")
    elif hasattr(value, "from_json") and isinstance(value, tuple(each for each in choices if isinstance(each, type))):
        for name, hint in get_type_hints(type(value)).items():
            yield from misfits(getattr(value, name), hint, f"{where}.{name}")
    else:
        as_declared = TypeAdapter(declared, config=ConfigDict(arbitrary_types_allowed=True))
        try:
            as_declared.validate_json(JSONEncoder().encode(value), strict=True)
        except ValidationError:
            yield where


def misfits_of(text: str) -> list[str]:
    made = json.loads(text)
    targets = [target for panel in made["panels"] for target in panel.get("targets", ())]
    queries = [Dataquery.from_json(target) for target in targets]
    return [*misfits(Dashboard.from_json(made), Dashboard, "dashboard"), *misfits(queries, list[Dataquery], "queries")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_value_has_the_type_of_grafanas_schema(path: Path) -> None:
    assert misfits_of(path.read_text()) == []


def test_a_value_of_a_wrong_type_is_named() -> None:
    made = FILES[0].read_text()
    for before, after, where in (
        ('"editable": false', '"editable": "no"', "dashboard.editable"),
        ('"w": 8', '"w": "8"', "dashboard.panels[1].grid_pos.w"),
        ('"repeatDirection": "h"', '"repeatDirection": "down"', "dashboard.panels[1].repeat_direction"),
        ('"title": "metatxn: cluster"', '"title": 7', "dashboard.title"),
        ('"expr": "', '"range": "on", "expr": "', "queries[0].range_val"),
    ):
        assert before in made
        assert where in misfits_of(made.replace(before, after))


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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_expression_is_of_the_chosen_cluster(path: Path) -> None:
    """All of them together are the first choice, which also shows what has no such label."""
    (cluster,) = [each for each in json.loads(path.read_text())["templating"]["list"] if each["name"] == "cluster"]
    assert cluster["includeAll"] and cluster["allValue"] == ".*" and not cluster["multi"]
    names = re.compile(r"\b(?:metatxn[_:][a-z0-9_:]+|process_[a-z_]+|up)\b(.{,20})")
    for expression in (target["expr"] for panel in panels(path) for target in panel["targets"]):
        behind = names.findall(expression)
        assert behind and all(each.startswith('{cluster=~"$cluster"') for each in behind), expression


async def test_every_metric_in_a_dashboard_is_exposed_or_recorded() -> None:
    asked = set().union(*map(metrics_in, expressions()))
    assert len(asked) > 20 and asked <= await known_metrics()
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    shown = {each.partition("{")[0] for each in expressions() if each.startswith("metatxn:")}
    assert shown and shown <= recorded


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
