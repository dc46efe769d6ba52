"""Goal: the options that turn the console off, and that of changes in it, do so.

Method: the real command, and what a browser would ask.
"""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.metatxn.dev_server import DevServer


@pytest.mark.parametrize(
    ("option", "status", "words"), [("--no-console", 404, ""), ("--read-only-console", 200, "read-only")]
)
def test_the_console_is_turned_off_or_changes_nothing(tmp_path: Path, option: str, status: int, words: str) -> None:
    with DevServer(tmp_path, option) as dev, httpx.Client(base_url=dev.coordinator_url, timeout=60) as http:
        page = http.get("/console/")
        assert page.status_code == status and words in page.text
        form_token = page.text.partition('name="form_token" value="')[2][:64]
        sent = {"form_token": form_token, "name": "made-here"}
        answer = http.post("/console/topics", data=sent, headers={"sec-fetch-site": "same-origin"})
        assert answer.status_code == (404 if status == 404 else 403)
        assert status == 404 or "this console is read-only" in answer.text
        assert "Create a topic" not in http.get("/console/topics").text
        assert httpx.get(f"{dev.broker_url}/v1/topics/made-here", timeout=60).status_code == 404
