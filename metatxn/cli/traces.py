"""`--trace-to` and `--trace-sampling` of the servers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated

import typer

from metatxn.cli import services
from metatxn.cli.options import CliError

TraceOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Send traces of requests and store calls to this OpenTelemetry receiver (OTLP over HTTP), such as "
        "http://localhost:4318. Needs metatxn[tracing].",
    ),
]
SamplingOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="The fraction of requests that are traced, besides those that clients trace. [default: 0.01]",
    ),
]


def traced(stack: AsyncExitStack, service: str, trace_to: str | None, sampling: float | None) -> None:
    """Trace this process until the stack is left. Raises `CliError`."""
    if trace_to is None:
        if sampling is not None:
            raise CliError("--trace-sampling needs --trace-to.")
        return
    set_up = services.load("tracing")
    try:
        stack.callback(set_up(service, trace_to, *(() if sampling is None else (sampling,))))
    except ValueError as error:
        raise CliError(f"--trace-to: {error}.") from error
    except ModuleNotFoundError as error:
        raise CliError(
            f"--trace-to needs {error.name}, which is not installed. Install it with `pip install 'metatxn[tracing]'`."
        ) from error
