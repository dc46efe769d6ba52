"""Times as they are given on the command line."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import typer

from metatxn.cli.options import CliError
from metatxn.words import MILLISECONDS, parsed_duration

Number = TypeVar("Number", int, float)
_AGO = re.compile(r"([0-9]{1,9})([smhd])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_LENGTH = re.compile(r"([0-9]{1,12})(ms|[smhd])", re.ASCII)
DURATION_HELP = "a duration such as 500ms, 90s, 15m, 1h or 2d"
TIME_HELP = "a time such as 2026-11-22T10:00:00Z, or how long ago, such as 90s, 15m, 1h or 2d"


def time_of(option: str, text: str, clock: Callable[[], float] = time.time) -> datetime:
    """The time that `text` says. Raises `CliError`, which names the option."""
    try:
        if (ago := _AGO.fullmatch(text)) is not None:
            return datetime.fromtimestamp(clock(), UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise CliError(f"{option}: {text!r} is not a time. Give {TIME_HELP}.") from None
    if found.tzinfo is None:
        raise CliError(f"{option}: {text!r} has no time zone. Add Z for UTC, or an offset such as +01:00.")
    return found


def delivery_time(at: str | None, after: str | None, clock: Callable[[], float] = time.time) -> datetime | None:
    """The time that `--deliver-at` or `--deliver-after` says. Raises `CliError`."""
    if at is not None and after is not None:
        raise CliError("--deliver-after: --deliver-at gives a time, too. Give one of them.")
    if after is not None:
        delay = timedelta(milliseconds=milliseconds_of("--deliver-after", after))
        return datetime.fromtimestamp(clock(), UTC) + delay
    if at is not None and _LENGTH.fullmatch(at):
        raise CliError(f"--deliver-at: {at!r} is a duration. Give a time, or --deliver-after {at}.")
    return None if at is None else time_of("--deliver-at", at, clock)


def milliseconds_of(option: str, text: str) -> int:
    """The duration that `text` says, such as `10m`. Raises `CliError`, which names the option."""
    try:
        return parsed_duration(text)
    except ValueError:
        raise CliError(f"{option}: {text!r} is not a duration. Give {DURATION_HELP}.") from None


def duration_option(ms: int) -> str:
    """The duration as an option takes it, without loss: `7d`, `90m`, `1500ms`."""
    units = [(name, unit) for name, unit in reversed(MILLISECONDS.items()) if ms and ms % unit == 0]
    name, unit = units[0] if units else ("ms", 1)
    return f"{ms // unit}{name}"


def duration_parser(least_ms: int) -> Callable[[Any], int]:
    """A parser of a duration such as `7d`, or a number of milliseconds, of at least `least_ms`. In policies -1 stands
    for no limit. The settings file may have a number, too."""

    def parsed(value: Any) -> int:
        text = str(value)
        try:
            found = milliseconds_of("", text) if _LENGTH.fullmatch(text) else int(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not a time. Give {DURATION_HELP}, or milliseconds.") from None
        if found < least_ms:
            raise typer.BadParameter(f"{text} is too short: the least is {least_ms} ms.")
        return found

    return parsed


def one_duration(option: str, text: str | None, number: Number, default: Number, *, unit_ms: int = 1) -> Number:
    """The duration that `text` says, or else `number`, which the option of an earlier release gives in this unit.
    Raises `CliError` if both were given."""
    if text is None:
        return number
    if number != default:
        raise CliError(f"{option}: another option gives {number} as well. Give one of them.")
    return type(default)(milliseconds_of(option, text) / unit_ms)
