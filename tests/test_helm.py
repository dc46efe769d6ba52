"""deploy/helm: what the chart's templates use is in its values, and they run commands that we have.

Method: the text of the templates, without Helm. `make helm-test` renders them, and validates what comes out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer.main
import yaml

from metatxn.cli.main import app
from metatxn.service.server import GRACE_S
from participants.service import DRAIN_TIMEOUT_MS
from tests.ops.test_dashboards import expressions
from tests.ops.test_rules import RULES, rules
from tests.test_compose import DOCKERFILE
from tests.test_project import PROJECT

CHART = Path(__file__).parent.parent / "deploy" / "helm" / "metatxn"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
TEMPLATES = "\n".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))
OF_EACH_COMPONENT = {"coordinator.port", "broker.port"}


def leaves(values: dict[str, Any], path: str = "") -> set[str]:
    """The settings by their paths. An empty table, or one of labels, is a setting itself."""
    found: set[str] = set()
    for name, value in values.items():
        own = f"{path}.{name}".strip(".")
        nested = isinstance(value, dict) and value and not name.endswith(("Labels", "resources"))
        found |= leaves(value, own) if nested else {own}
    return found


def test_every_value_is_used_and_every_used_value_is_there() -> None:
    used = set(re.findall(r"\.Values\.([A-Za-z.]+[A-Za-z])", TEMPLATES))
    assert used - leaves(VALUES) == set()
    assert leaves(VALUES) - used - OF_EACH_COMPONENT == set()


def test_its_options_are_ones_that_the_commands_have() -> None:
    commands: Any = typer.main.get_command(app)
    known = {
        option for name in ("coordinator", "broker") for each in commands.commands[name].params for option in each.opts
    }
    given = set(re.findall(r"^\s*- (--[a-z-]+)", TEMPLATES, re.MULTILINE))
    assert len(given) > 10 and given <= known


def test_it_is_of_this_version_and_its_user_is_that_of_the_image() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == PROJECT["project"]["version"]
    assert re.findall(r"runAsUser: (\d+)", TEMPLATES) == re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)[:1]


def test_prometheus_finds_its_services_under_the_jobs_that_rules_and_dashboards_ask_for() -> None:
    """The job is what the label of the service says that the ServiceMonitor names."""
    (label,) = re.findall(r"^  jobLabel: (\S+)$", TEMPLATES, re.MULTILINE)
    services = (CHART / "templates" / "services.yaml").read_text()
    values = re.findall(rf"^    {re.escape(label)}: (.+)$", services, re.MULTILINE)
    jobs = {each.replace("{{ $component }}", name) for each in values for name in ("coordinator", "broker")}
    config = yaml.safe_load(RULES.with_name("prometheus.yml").read_text())
    assert jobs == {each["job_name"] for each in config["scrape_configs"]}
    asked = [*(rule["expr"] for rule in rules()), *expressions()]
    selected = {found for each in asked for found in re.findall(r'\bjob(=~?)"([^"]*)"', each)}
    patterns = {text for operator, text in selected if operator == "=~"}
    assert patterns and all(re.fullmatch(pattern, job) for pattern in patterns for job in jobs)
    assert {text for operator, text in selected if operator == "="} <= jobs


def test_a_stop_is_not_cut_off() -> None:
    assert VALUES["broker"]["drainTimeoutMs"] == DRAIN_TIMEOUT_MS
    (more,) = re.findall(r"terminationGracePeriodSeconds: \{\{ add (\d+) \(div", TEMPLATES)
    assert int(more) > GRACE_S


def test_nothing_is_rendered_that_could_be_used_by_everybody_unless_it_is_said() -> None:
    assert VALUES["security"]["allowAnonymous"] is False and VALUES["networkPolicy"]["enabled"] is True
    assert 'fail "security: ' in TEMPLATES and 'fail "store: ' in TEMPLATES
