"""The lines of the log that programs may rely on, as an operator's program would read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema_rs
import structlog

from metatxn.service.lifecycle import Lifecycle

SCHEMA = json.loads((Path(__file__).parents[1] / "ops" / "log.schema.json").read_text())
EVENTS = frozenset(event.value for event in Lifecycle)

Line = dict[str, Any]


def checked(lines: list[Line]) -> list[Line]:
    """Those of the lines about services and segments, each of which has to fit the schema."""
    found = [line for line in lines if line["event"] in EVENTS]
    for line in found:
        jsonschema_rs.validate(SCHEMA, line)
    return found


@contextmanager
def told() -> Iterator[list[Line]]:
    """What is logged in this process meanwhile, at all levels, once the block has ended."""
    lines: list[Line] = []
    former = structlog.get_config()  # perhaps that of a command that another test has run in this process
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("info"))
    try:
        with structlog.testing.capture_logs() as captured:
            yield lines
    finally:
        structlog.configure(**former)
    stamped = [{**line, "level": line["log_level"], "timestamp": "2026-03-02T09:04:00.1Z"} for line in captured]
    lines += checked([{name: line[name] for name in line if name != "log_level"} for line in stamped])


def of(lines: list[Line], event: Lifecycle) -> list[Line]:
    return [line for line in lines if line["event"] == event]
