"""The servers log to standard error: lines for people at a terminal, and one JSON object per line anywhere else.

    {"event": "transaction decided", "txn_id": "…", "level": "info", "timestamp": "2026-03-02T09:04:00.000000Z", …}

The logs of libraries go the same way. A value may come from a client (the reason of an abort, a path), so control
characters are escaped: a line break would begin a line that no one has logged, and an escape sequence would control the
reader's terminal.
"""

from __future__ import annotations

import logging
import logging.handlers
import sys
from pathlib import Path
from typing import Annotated

import structlog
import typer
from structlog.typing import EventDict, Processor, WrappedLogger

from metatxn.cli.options import CliError
from metatxn.cli.output import printable

LogOption = Annotated[str, typer.Option(help="debug, info, warning or error. Logs go to standard error.")]

AuditOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Append the audit log here. [default: the log, at --log-level info]"),
]
_AUDIT = "metatxn.audit"


def set_up_logs(level: str, audit_log: Path | None = None) -> None:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise CliError(f"--log-level: {level!r} is not a log level. Use debug, info, warning or error.")
    stamped: list[Processor] = [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso")]
    rendered = _for_people() if sys.stderr.isatty() else _as_json()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,  # otherwise even a line below the level costs 10 µs
        processors=[*stamped, *rendered],
    )
    of_libraries = logging.StreamHandler(sys.stderr)
    of_libraries.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *stamped],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    logging.basicConfig(level=number, handlers=[of_libraries])
    if audit_log is not None:
        append_audit_log(audit_log)
    logging.getLogger("grpc").setLevel(max(number, logging.INFO))  # at debug it logs a line for every call to etcd


def append_audit_log(path: Path) -> None:
    """Write the audit log there, whatever the level of the log is. If the file is moved away, the next line begins a
    new one. Raises `CliError`."""
    try:
        appended = logging.handlers.WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        raise CliError(f"--audit-log: {error}. Give a writable file.") from error
    only_json = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_as_json()]
    appended.setFormatter(structlog.stdlib.ProcessorFormatter(processors=only_json))
    audit = logging.getLogger(_AUDIT)
    for former in audit.handlers[:]:
        audit.removeHandler(former)
        former.close()
    audit.addHandler(appended)
    audit.setLevel(logging.INFO)
    audit.propagate = False


def _for_people() -> list[Processor]:
    # Plain: the default prints every variable of every frame, which is slow and may hold someone's data.
    exceptions = structlog.dev.plain_traceback
    return [_on_one_line, structlog.dev.ConsoleRenderer(exception_formatter=exceptions, repr_native_str=True)]


def _as_json() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _on_one_line(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event["event"] = printable(str(event["event"]))
    return event
