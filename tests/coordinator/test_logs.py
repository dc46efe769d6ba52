"""Goal: what a coordinator logs can be read by programs and by people, whatever clients say (issue 4, items 8 and 9).

Method: a real process; once its standard error is a pipe, once a terminal. A client that means no good names a reason,
and another one sends what is no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx

from tests.coordinator.processes import CoordinatorProcess
from tests.log_lines import checked
from tests.metatxn.dev_server import COMMAND

REASON = 'x\n{"event": "forged"}\x1b]0;forged\x07\u2028'


async def forced_abort(url: str) -> str:
    """The id of a transaction that was aborted for `REASON`; afterwards something else than HTTP arrives."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        txn_id = str((await http.post("/v1/txns")).json()["txn_id"])
        answer = await http.post(f"/v1/txns/{txn_id}/abort", json={"reason": REASON, "force": True})
        assert answer.json()["reason"] == REASON
    there = httpx.URL(url)
    reader, writer = await asyncio.open_connection(there.host, there.port)
    writer.write(b"\x16\x03\x01 hello\r\n\r\n")
    await reader.read()
    writer.close()
    return txn_id


async def test_every_line_is_an_object(tmp_path: Path) -> None:
    """Also of libraries; with the transaction's id, and with the reason as it was given. The audit log has its file."""
    audited = tmp_path / "audit.log"
    with CoordinatorProcess("memory://", "--log-level", "debug", "--audit-log", str(audited)) as process:
        txn_id = await forced_abort(process.url)
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait) == 0
        lines: list[dict[str, Any]] = [json.loads(line) for line in process.rest_of_log().split("\n") if line]
    assert all({"event", "level", "timestamp"} <= set(line) for line in lines)
    assert [line["event"] for line in checked(lines)] == ["service ready", "service stopping", "service stopped"]
    told = [(line["event"], line.get("reason")) for line in lines if line.get("txn_id") == txn_id]
    assert told == [
        ("transaction begun", None),
        ("abort by force", REASON),
        ("transaction decided", REASON),
    ]
    (by_force,) = [json.loads(line) for line in audited.read_text().splitlines()]
    assert by_force["verb"] == "transaction.abort_by_force" and by_force["object"] == {"txn_id": txn_id}
    (broken,) = [line for line in lines if line.get("logger") == "uvicorn.error" and line["level"] == "warning"]
    assert "Invalid HTTP" in broken["event"]


async def test_a_terminal_is_shown_lines_and_given_no_commands() -> None:
    screen, terminal = os.openpty()
    command = [*COMMAND, "coordinator", "--store", "memory://", "--port", "0", "-o", "json", "--log-level", "info"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, text=True)
    os.close(terminal)
    assert process.stdout is not None
    try:
        txn_id = await forced_abort(json.loads(process.stdout.readline())["coordinator"])
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0
    finally:
        process.kill()
        process.communicate()
    shown = b""
    with contextlib.suppress(OSError), os.fdopen(screen, "rb", buffering=0) as output:  # ends in EIO
        while part := output.read(65536):
            shown += part
    (line,) = [line for line in shown.decode().splitlines() if "abort by force" in line]
    assert txn_id in line and repr(REASON) in line
    (audited,) = [line for line in shown.decode().splitlines() if "transaction.abort_by_force" in line]
    assert txn_id in audited
    assert "\x1b]0;" not in shown.decode()
