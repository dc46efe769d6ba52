"""Requests about the cluster version, which only a coordinator of a release that knows it can answer."""

from __future__ import annotations

from typing import Any

from metatxn.answers import parsed
from metatxn.connection import Connection
from metatxn.http import Call, FixedEndpoint, json_body
from metatxn.wire.coordinator import UpgradeStatus
from metatxn.wire.errors import NotFound

PATH = "/admin/v2/upgrade"


async def upgrade_status(connection: Connection) -> UpgradeStatus:
    return await _of_the_first_that_knows(connection, "GET", PATH)


async def finalize_upgrade(connection: Connection, accept_absent: bool) -> UpgradeStatus:
    return await _of_the_first_that_knows(connection, "POST", f"{PATH}/finalize", {"accept_absent": accept_absent})


async def _of_the_first_that_knows(
    connection: Connection, method: str, path: str, body: dict[str, Any] | None = None
) -> UpgradeStatus:
    """Ask coordinators until one knows it: during an upgrade there may be some of release 0.2.0, without such a
    path."""
    content = json_body(body) if body is not None else None
    for coordinator in (await connection.directory.read()).coordinators:
        endpoint = FixedEndpoint(coordinator.url.rstrip("/"))
        try:
            return parsed(UpgradeStatus, await connection.http.request(endpoint, Call(method, path, content=content)))
        except NotFound:
            continue
    raise NotFound(
        "no coordinator runs a release that knows of cluster versions",
        action="Restart a coordinator with the new release first.",
    )
