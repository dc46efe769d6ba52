"""docs/contract.md says what the code does: every endpoint, field, bound, default, error code, command, option, metric
and variable is on the page, and the page names none that does not exist.

The headings and tables of the page are compared with the OpenAPI description of both services (built without a server),
the error table, the parser of the command line, the metric registries and the connector's options. A table belongs to
the section it stands in, and to the sections that link to that one.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import typer.main
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from typer.core import TyperGroup, TyperOption
from typer.testing import CliRunner

from coordinator.service import CoordinatorService
from metastore.backends.memory import MemoryStore
from metastore.txn.store import INDEXES
from metatxn.cli.main import app as command_line
from metatxn.cli.serve import FROM_ENVIRONMENT
from metatxn.cli.settings import SERVERS
from metatxn.service.direct import add_routes
from metatxn.service.limits import Limits
from metatxn.wire.errors import BY_CODE
from metatxn_gateways.kafka.metrics import KafkaMetrics
from metatxn_gateways.kafka.requests import KafkaRequest
from metatxn_gateways.pulsar.metrics import PulsarMetrics
from participants.api.routes import router
from participants.broker.broker import Broker
from participants.service import BrokerService
from participants.topic.layout import LayoutUpkeep
from spark_connector.options import READ_OPTIONS, WRITE_OPTIONS
from tests.links import anchor

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "contract.md").read_text()
Rows = dict[str, list[str]]
"""By the name in the first cell, the other cells."""
POWERS = {2**power - 1: f"2^{power}-1" for power in (32, 53, 63)}
BOUNDS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties")
OTHERS_VARIABLES = {"SSL_CERT_FILE"}
LEFT_TO_THE_SERVICE = {
    *("--timeout-sweep-interval-ms", "--gc-interval-ms", "--gc-retention-ms", "--max-clock-skew-ms"),
    *("--max-body-bytes", "--max-headers", "--max-requests", "--requests-per-second"),
    *("--body-timeout-ms", "--request-timeout-ms"),
}


# -- the page --------------------------------------------------------------------------------------------------------


def sections() -> dict[str, str]:
    """The text below each heading, by the heading's anchor or, of an endpoint or a command, by its name."""
    _, *parts = re.split(r"^#{2,5} (.+)\n", PAGE, flags=re.MULTILINE)
    titles, texts = parts[::2], parts[1::2]
    names = [title.strip("`") if title.startswith("`") else anchor(title) for title in titles]
    assert len(names) == len(set(names))
    return dict(zip(names, texts, strict=True))


SECTIONS = sections()


def tables(text: str, kind: str) -> Rows:
    """The rows of all tables whose first column is `kind`."""
    found: Rows = {}
    for table in re.findall(rf"^\| {kind} \|.*\n\|[-|]+\|\n((?:\|.*\n?)*)", text, re.MULTILINE):
        for line in table.splitlines():
            name, *cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            name = name.strip().strip("`")
            assert name not in found, name
            found[name] = cells
    return found


def rows(section: str, kind: str) -> Rows:
    text = SECTIONS[section]
    found = tables(text, kind)
    for linked in dict.fromkeys(re.findall(r"\]\(#([\w-]+)\)", text)):
        if not found.keys() >= (further := tables(SECTIONS[linked], kind)).keys():
            found |= further
    return found


def titled(*beginnings: str) -> set[str]:
    return {name for name in SECTIONS if name.startswith(beginnings)}


# -- the code --------------------------------------------------------------------------------------------------------


@cache
def described() -> list[dict[str, Any]]:
    """The OpenAPI descriptions of a coordinator and of a broker."""
    store = MemoryStore(INDEXES)
    broker = BrokerService(store, data_dir="never-opened").app
    add_routes(
        broker, router(cast(Broker, SimpleNamespace(store=store)), cast(LayoutUpkeep, SimpleNamespace())), first=True
    )
    apps: list[FastAPI] = [CoordinatorService(store).app, broker]
    return [app.openapi() for app in apps]


def endpoints() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The name, the operation and the schemas of each endpoint."""
    for description in described():
        for path, methods in description["paths"].items():
            for method, operation in methods.items():
                yield f"{method.upper()} {path}", operation, description["components"]["schemas"]


def resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Without references, without the choice of null, and of a list its elements when these are objects."""
    merged = dict(schema)
    for choice in [each for each in schema.get("anyOf", []) if each.get("type") != "null"]:
        merged |= choice
    if "$ref" in merged:
        return merged | resolved(schemas[merged["$ref"].rpartition("/")[2]], schemas)
    if "$ref" in merged.get("items", {}) and "properties" not in merged and "description" not in merged:
        merged["properties"] = resolved(merged["items"], schemas).get("properties", {})
    return merged


def properties(content: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = resolved(content.get("application/json", {}).get("schema", {}), schemas)
    return cast(dict[str, Any], found.get("properties", {}))


def said(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return POWERS.get(value) or f"{value:,}" if isinstance(value, int) else f"{value}"


def assert_bounds(name: str, schema: Mapping[str, Any], cells: list[str]) -> None:
    """The default and every bound stand in the row."""
    numbers = set(re.findall(r"-?\d[\d,]*(?<!,)(?:\^\d+-1)?", cells[0] + " " + cells[1]))
    for bound in BOUNDS:
        if bound in schema:
            assert said(int(schema[bound])) in numbers, f"{name}: {bound} {schema[bound]}"
    default = schema.get("default")
    if default is not None:
        assert re.search(rf"default `?{re.escape(said(default))}`?(?:$|[ ;,.](?!\d))", cells[0]), f"{name}: {default}"


def commands(command: Any, path: tuple[str, ...] = ("metatxn",)) -> Iterator[tuple[str, dict[str, TyperOption]]]:
    """Every command that does something, by name, with its options by their long names; and the root. A hidden one is
    a second name of another."""
    groups = command.commands if isinstance(command, TyperGroup) else {}
    if not groups or len(path) == 1 or command.invoke_without_command:
        options = [each for each in command.params if isinstance(each, TyperOption)]
        yield " ".join(path), {max(option.opts, key=len): option for option in options}
    for name, inner in groups.items():
        if not inner.hidden:
            yield from commands(inner, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(command_line)))


def metrics_of_kafka() -> dict[str, str]:
    registry = CollectorRegistry()
    metrics = KafkaMetrics(lambda: 0, lambda: 0)
    metrics.answered(KafkaRequest.PRODUCE, 0.0)
    metrics.register(registry)
    return exposed(registry)


def metrics_of_pulsar() -> dict[str, str]:
    registry = CollectorRegistry()
    metrics = PulsarMetrics(lambda: 0)
    metrics.answered("send", 0.0)
    metrics.register(registry)
    return exposed(registry)


async def metrics_of_coordinator() -> dict[str, str]:
    service = CoordinatorService(MemoryStore(INDEXES))
    await service.survey.look_once()
    return exposed(service.metrics.registry)


def exposed(registry: CollectorRegistry) -> dict[str, str]:
    """The type of each metric, by the name that is scraped."""
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: family.type
        for family in registry.collect()
    }


# -- both are the same -------------------------------------------------------------------------------------------------


def test_the_page_has_every_endpoint_and_no_other() -> None:
    assert titled("GET ", "POST ", "PUT ", "PATCH ", "DELETE ") == {name for name, _, _ in endpoints()}


def test_every_field_of_a_body_is_in_its_table_with_its_bounds() -> None:
    seen = 0
    for name, operation, schemas in endpoints():
        wanted = properties(operation.get("requestBody", {}).get("content", {}), schemas)
        table = rows(name, "body")
        assert table.keys() == wanted.keys(), name
        for field, schema in wanted.items():
            seen += 1
            assert_bounds(f"{name}: {field}", resolved(schema, schemas), table[field])
    assert seen > 40


def test_every_query_parameter_is_in_its_table_with_its_bounds() -> None:
    seen = 0
    for name, operation, schemas in endpoints():
        parameters = [each for each in operation.get("parameters", []) if each["in"] == "query"]
        table = rows(name, "query")
        assert table.keys() == {each["name"] for each in parameters}, name
        for each in parameters:
            seen += 1
            assert_bounds(f"{name}: {each['name']}", resolved(each["schema"], schemas), table[each["name"]])
    assert seen > 20


def test_every_field_of_an_answer_is_in_its_table() -> None:
    for name, operation, schemas in endpoints():
        answers = [answer for status, answer in operation["responses"].items() if status < "300"]
        wanted: set[str] = set()
        for answer in answers:
            wanted |= properties(answer.get("content", {}), schemas).keys()
        assert rows(name, "answer").keys() == wanted, name


def test_every_field_of_anything_nested_is_on_the_page() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    for description in described():
        for model, schema in description["components"]["schemas"].items():
            if model not in ("HTTPValidationError", "ValidationError"):
                assert schema.get("properties", {}).keys() <= named, model


def test_the_page_has_every_error_with_its_status_and_its_facts() -> None:
    yes = {True: "yes", False: "no"}
    told = {code: tuple(cells[:3]) for code, cells in tables(SECTIONS["errors"], "code").items()}
    assert told == {
        code.value: (str(kind.status), yes[kind.retriable], yes[kind.definite]) for code, kind in BY_CODE.items()
    }


def test_every_code_that_the_text_names_exists() -> None:
    named = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", PAGE))
    assert {name for name in named if not name.startswith("METATXN_")} - OTHERS_VARIABLES <= {*BY_CODE}


def test_the_page_has_every_command_and_no_other() -> None:
    assert titled("metatxn") == COMMANDS.keys()


def test_the_page_shows_what_the_command_prints_as_its_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (told,) = re.findall(r"`(.+?)`", rows("metatxn", "option")["--version"][-1])
    printed = CliRunner().invoke(command_line, ["--version"]).stdout
    assert told == f"metatxn {project['version']}"
    assert printed == f"metatxn {version('metatxn')}\n"


def test_every_option_of_a_command_is_in_its_table_with_its_default() -> None:
    for name, options in COMMANDS.items():
        table = rows(name, "option")
        assert table.keys() == options.keys(), name
        for option, found in options.items():
            default, about = table[option][0], f"{name} {option}"
            if found.required:
                assert default == "required", about
            elif found.default not in (None, False, ""):
                assert default.strip("`") == str(getattr(found.default, "value", found.default)), about


def test_defaults_that_the_services_choose_are_in_the_tables() -> None:
    """The command line leaves these to the services, so its parser does not know them."""
    chosen = {name: each.default for name, each in inspect.signature(CoordinatorService).parameters.items()}
    for section, defaults in {"sweep-options": chosen, "server-options": asdict(Limits())}.items():
        for option, (default, *_) in tables(SECTIONS[section], "option").items():
            value = defaults.get(option.removeprefix("--").replace("-", "_"))
            if option in LEFT_TO_THE_SERVICE:
                assert default in {str(value), "no limit" if value is None else f"{int(value) >> 20} MiB"}, option


def test_every_option_that_the_text_names_exists() -> None:
    known = {option for each in COMMANDS.values() for option in each}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= known


def test_the_page_has_every_variable_and_no_other() -> None:
    known = {str(option.envvar) for each in COMMANDS.values() for option in each.values() if option.envvar}
    assert tables(SECTIONS["environment"], "variable").keys() == known
    prefix = FROM_ENVIRONMENT["auto_envvar_prefix"]
    named = set(re.findall(r"METATXN_\w+", PAGE))
    assert {name for name in named if not name.startswith(prefix)} == known
    of_servers = {option for server in SERVERS for option in COMMANDS[f"metatxn {server}"]}
    shown = {name.removeprefix(f"{prefix}_").replace("_", "-").lower() for name in named if name.startswith(prefix)}
    assert {f"--{name}" for name in shown - {""}} <= of_servers and "" in shown


async def test_the_page_has_every_metric_and_no_other() -> None:
    for section, found in {
        "metrics-of-a-coordinator": await metrics_of_coordinator(),
        "metrics-of-kafkas-clients": metrics_of_kafka(),
        "metrics-of-pulsars-clients": metrics_of_pulsar(),
        "metrics-of-a-broker": exposed(BrokerService(MemoryStore(INDEXES), data_dir="never-opened").metrics.registry),
    }.items():
        assert {name: cells[0] for name, cells in rows(section, "metric").items()} == found


def test_the_page_has_every_spark_option_and_no_other() -> None:
    assert tables(SECTIONS["write-options"], "spark option").keys() == {*WRITE_OPTIONS}
    assert tables(SECTIONS["read-options"], "spark option").keys() == {*READ_OPTIONS}
