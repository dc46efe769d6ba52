"""What all requests to a console share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from jinja2 import Environment, PackageLoader, StrictUndefined

from metatxn.console.assets import Assets
from metatxn.console.formats import FILTERS
from metatxn.console.watched_checks import WatchedChecks
from metatxn.transport.api import Transport
from metatxn.wire.errors import StoreUnavailable


class Recorder(Protocol):
    """Write a line of the audit log; `status` is that of HTTP."""

    def __call__(
        self,
        verb: str,
        about: Mapping[str, Any],
        status: int,
        *,
        principal: str | None = None,
        address: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None: ...


@dataclass(slots=True)
class Site:
    """The site. `url` is that of a coordinator, through which the console finds all others. With `read_only` nothing
    can be changed. `closing` is set when the process is about to stop, so that no page keeps it from that."""

    url: str
    transport: Transport
    record: Recorder
    read_only: bool = False
    clock: Callable[[], float] = time.time
    assets: Assets = field(default_factory=Assets)
    watched_checks: WatchedChecks = field(default_factory=WatchedChecks)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    _away: tuple[float, StoreUnavailable] | None = None
    templates: Environment = field(init=False)

    def __post_init__(self) -> None:
        self.templates = _templates(self.assets)

    def away(self, within_s: float) -> StoreUnavailable | None:
        """That the metadata store is away, if a page has found that within this time."""
        if self._away is None or time.monotonic() - self._away[0] > within_s:
            return None
        return self._away[1]

    def found_away(self, error: StoreUnavailable | None) -> None:
        """A page has asked whether the metadata store is away."""
        self._away = None if error is None else (time.monotonic(), error)

    def now_ms(self) -> int:
        return int(self.clock() * 1000)


def _templates(assets: Assets) -> Environment:
    """The templates. Whatever a page shows is escaped, and a name that a template does not know is a bug."""
    templates = Environment(
        loader=PackageLoader("metatxn.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.filters.update(FILTERS)
    templates.globals["asset"] = assets.__getitem__
    templates.globals["ui"] = templates.get_template("macros.html").module
    return templates
