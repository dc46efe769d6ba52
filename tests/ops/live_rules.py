"""`ops/prometheus` for a run of minutes: the same rules, with shorter times and smaller numbers, and a real Prometheus
that scrapes a real cluster with them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from tests.ops.test_rules import RULES
from tests.servers import binary, free_port

SHORTER = 30
"""Windows, and how long something must last, are a thirtieth. Bounds of latencies and ratios stay as they are."""
FEWER = 100
"""Bounds of a thousand and more entries or headers are a hundredth."""


def rendered_rules() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for group in found["groups"]:
        for rule in group["rules"]:
            rule["expr"] = _faster(rule["expr"])
            if "for" in rule:
                rule["for"] = f"{int(rule['for'].removesuffix('m')) * 60 // SHORTER}s"
    return found


def _faster(expression: str) -> str:
    shorter = re.sub(r"\[(\d+)m\]", lambda found: f"[{int(found[1]) * 60 // SHORTER}s]", expression)
    shorter = re.sub(r"(_seconds\) > )(\d+)$", lambda found: f"{found[1]}{int(found[2]) // SHORTER}", shorter)
    return re.sub(r"> (\d+)000\b", lambda found: f"> {int(found[1]) * 1000 // FEWER}", shorter)


class Prometheus:
    """Scrapes `targets`, addresses by job, as `ops/prometheus/prometheus.yml` says, but every second."""

    def __init__(self, directory: Path, targets: Mapping[str, Sequence[str]]) -> None:
        self._directory = directory
        self._url = f"http://127.0.0.1:{free_port()}"
        self._http = httpx.AsyncClient(base_url=self._url, timeout=30)
        config = yaml.safe_load(RULES.with_name("prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": list(targets[job["job_name"]])}]
        directory.mkdir(parents=True)
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        (directory / "rules.yml").write_text(yaml.safe_dump(rendered_rules()))

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now. Raises `RuntimeError` for one that Prometheus does not understand."""
        told = (await self._http.get("/api/v1/query", params={"query": expression})).json()
        if told["status"] != "success":
            raise RuntimeError(f"{expression}: {told['error']}")
        found: list[dict[str, Any]] = told["data"]["result"]
        return found

    async def firing(self) -> set[str]:
        found = await self.query('count by (alertname) (ALERTS{alertstate="firing"})')
        return {each["metric"]["alertname"] for each in found}

    async def ready(self) -> bool:
        try:
            return (await self._http.get("/-/ready")).is_success
        except httpx.TransportError:
            return False

    def __enter__(self) -> Self:
        command = [binary("prometheus", "prometheus"), "--config.file", str(self._directory / "prometheus.yml")]
        command += ["--storage.tsdb.path", str(self._directory / "data"), "--log.level", "warn"]
        command += ["--web.listen-address", self._url.removeprefix("http://")]
        with (self._directory / "prometheus.log").open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
