"""An etcd whose database has reached its quota, and what an operator does then.

While the alarm lasts puts are refused, in all members, and everything else goes on. All is asked over the gateway: a
process for each request would cost more than what it disturbs.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import httpx

from tests.servers import EtcdServer, ZooKeeperServer

KEY = base64.b64encode(b"/filler").decode()
VALUE = base64.b64encode(bytes(1 << 20)).decode()
TOGETHER = 4
PAUSE_S = 0.2


async def fill(members: Sequence[EtcdServer | ZooKeeperServer]) -> None:
    """Put until a put is refused for want of space."""
    async with httpx.AsyncClient(timeout=30) as http, asyncio.TaskGroup() as together:
        for _ in range(TOGETHER):
            together.create_task(_fill(http, members))


async def _fill(http: httpx.AsyncClient, members: Sequence[EtcdServer | ZooKeeperServer]) -> None:
    while True:
        answer = await _ask(http, members, "kv/put", {"key": KEY, "value": VALUE})
        if answer is not None and "database space exceeded" in answer.text:
            return
        if answer is None or not answer.is_success:
            await asyncio.sleep(PAUSE_S)


async def make_room(members: Sequence[EtcdServer | ZooKeeperServer]) -> None:
    """Delete what fills it, compact, defragment, disarm; until nobody tells of the alarm any more."""
    async with httpx.AsyncClient(timeout=60) as http:
        while not await _made_room(http, members):
            await asyncio.sleep(PAUSE_S)


async def _made_room(http: httpx.AsyncClient, members: Sequence[EtcdServer | ZooKeeperServer]) -> bool:
    deleted = await _ask(http, members, "kv/deleterange", {"key": KEY})
    if deleted is None or not deleted.is_success:
        return False
    await _ask(http, members, "kv/compaction", {"revision": deleted.json()["header"]["revision"], "physical": True})
    for member in members:
        await _ask(http, [member], "maintenance/defragment", {})
    alarms = await _ask(http, members, "maintenance/alarm", {"action": "GET"})
    if alarms is None or not alarms.is_success:
        return False
    armed: list[Any] = alarms.json().get("alarms", [])
    for alarm in armed:
        await _ask(http, members, "maintenance/alarm", {"action": "DEACTIVATE", **alarm})
    return not armed


async def _ask(
    http: httpx.AsyncClient, members: Sequence[EtcdServer | ZooKeeperServer], what: str, body: Any
) -> httpx.Response | None:
    """What the first member that can be reached answers."""
    for member in members:
        try:
            return await http.post(f"http://{member.endpoint}/v3/{what}", json=body)
        except httpx.TransportError:
            continue
    return None
