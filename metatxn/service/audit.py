"""The audit log: who changed something that requires a right, or tried to, and what the outcome was.

    {"event": "audit", "verb": "topic.delete", "object": {"topic": "public/default/orders"}, "principal": "ada",
     "address": "10.0.0.7", "outcome": "allowed", "status": 204, "level": "info", "timestamp": "2026-03-02T09:04:00Z"}

It is the logger `metatxn.audit` of the standard library, so the one that starts a service chooses where the lines go
(`metatxn/cli/logs.py`). A line is written when the outcome is known, in the same turn of the event loop. It is not
forced to the disk: what it reports is in the store already, and must not fail because its line cannot be written.

Transactions are begun and ended without a line. Thousands of lines a second would hide the others, and each header
names its owner.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from metatxn.service.request_metrics import INTERNAL_ERROR, NO_ANSWER
from metatxn.wire import errors
from metatxn.wire.names import topic_name

MAX_TEXT = 1024
"""The length at which names are cut off: a client chooses the length of a name, also of one that is refused."""
_UNKNOWN = (NO_ANSWER, INTERNAL_ERROR, errors.OutcomeUnknown.status)
_lines = logging.getLogger("metatxn.audit")
_log = structlog.wrap_logger(
    _lines,
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
)


def log_file() -> Path | None:
    """The file that has the lines of this process and nothing else, if there is one."""
    files = [each for each in _lines.handlers if isinstance(each, logging.FileHandler)]
    return Path(files[0].baseFilename) if files else None


def is_on() -> bool:
    return _lines.isEnabledFor(logging.INFO)


def record(
    verb: str,
    about: Mapping[str, Any],
    status: int,
    *,
    principal: str | None = None,
    address: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> None:
    """Write a line. `status` is that of HTTP, also for what came another way."""
    members: dict[str, Any] = {"verb": verb, "object": _short(_in_full(about))}
    if arguments:
        members["arguments"] = _short(arguments)
    _log.info("audit", **members, principal=principal, address=address, outcome=outcome_of(status), status=status)


def outcome_of(status: int) -> str:
    """The outcome of a request. `unknown`: the caller was not told what happened, and it may have happened."""
    if status in _UNKNOWN:
        return "unknown"
    if status == errors.NotAllowed.status:
        return "refused"
    return "allowed" if status < 300 else "failed"


def _in_full(about: Mapping[str, Any]) -> dict[str, Any]:
    names = dict(about)
    if "topic" in names:
        with suppress(ValueError):  # it was refused, and this is what was asked for
            names["topic"] = topic_name(names["topic"])
    return names


def _short(values: Mapping[str, Any]) -> dict[str, Any]:
    """Booleans, and numbers and texts of a moderate length, as they are; all else as a text that is cut off."""
    return {name: value if value is None or isinstance(value, bool) else _text(value) for name, value in values.items()}


def _text(value: Any) -> str | int | float:
    if isinstance(value, int | float) and abs(value) < 1 << 63:
        return value
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
