"""The servers log to standard error: lines for people at a terminal, and one JSON object per line anywhere else.

    {"event": "transaction decided", "txn_id": "…", "level": "info", "timestamp": "2026-03-02T09:04:00.000000Z", …}

The logs of libraries take the same way. A value may come from a client (the reason of an abort, a path), so control
characters are escaped: a line break would begin a line that nobody has logged, and an escape sequence would control the
reader's terminal.
"""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import structlog
import typer
from structlog.typing import EventDict, Processor, WrappedLogger

from metatxn.cli.options import CliError
from metatxn.cli.output import printable

LogOption = Annotated[str, typer.Option(help="debug, info, warning or error. Logs go to standard error.")]


def set_up_logs(level: str) -> None:
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
    logging.getLogger("grpc").setLevel(max(number, logging.INFO))  # at debug it logs a line for every call to etcd


def _for_people() -> list[Processor]:
    # Plain: the default prints every variable of every frame, which is slow and may hold somebody's data.
    exceptions = structlog.dev.plain_traceback
    return [_on_one_line, structlog.dev.ConsoleRenderer(exception_formatter=exceptions, repr_native_str=True)]


def _as_json() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _on_one_line(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event["event"] = printable(str(event["event"]))
    return event
