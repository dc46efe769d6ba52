"""`ops/prometheus` for a run of minutes: the same rules, with shorter times and smaller numbers, and a real Prometheus
that scrapes a real cluster with them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
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
RATE_INTERVAL_S = 10


def rendered_rules(shorter: int = SHORTER) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for group in found["groups"]:
        for rule in group["rules"]:
            rule["expr"] = _faster(rule["expr"], shorter)
            if "for" in rule:
                rule["for"] = f"{int(rule['for'].removesuffix('m')) * 60 // shorter}s"
    return found


def _faster(expression: str, shorter: int) -> str:
    windows = re.sub(r"\[(\d+)m\]", lambda found: f"[{int(found[1]) * 60 // shorter}s]", expression)
    ages = re.sub(r"(_seconds\) > )(\d+)$", lambda found: f"{found[1]}{int(found[2]) // shorter}", windows)
    return re.sub(r"> (\d+)000\b", lambda found: f"> {int(found[1]) * 1000 // FEWER}", ages)


class Prometheus:
    """Scrapes `targets`, by job the addresses of instances by their names, as `ops/prometheus/prometheus.yml` says, but
    every second. With `slower` that and the times of the rules are this many times as long."""

    def __init__(self, directory: Path, targets: Mapping[str, Mapping[str, str]], slower: int = 1) -> None:
        self._directory = directory
        self._targets = sum(map(len, targets.values()))
        self._scrape_s = slower
        self._selected = {"$__rate_interval": f"{RATE_INTERVAL_S * slower}s", "$topic": ".*", "$cluster": ".*"}
        self._url = f"http://127.0.0.1:{free_port()}"
        self._http = httpx.AsyncClient(base_url=self._url, timeout=30)
        config = yaml.safe_load(RULES.with_name("prometheus.yml").read_text())
        config["global"] = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), f"{slower}s")
        for job in config["scrape_configs"]:
            named = targets[job["job_name"]].items()
            job["static_configs"] = [{"targets": [where], "labels": {"instance": name}} for name, where in named]
        directory.mkdir(parents=True)
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        (directory / "rules.yml").write_text(yaml.safe_dump(rendered_rules(SHORTER // slower)))

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now, with what Grafana puts in for the variables of a dashboard. Raises
        `RuntimeError` for one that Prometheus does not understand."""
        return await self._asked("query", expression, {})

    async def query_range(self, expression: str, start: float, end: float) -> list[dict[str, Any]]:
        """The same between two times, as often as it scrapes."""
        return await self._asked("query_range", expression, {"start": start, "end": end, "step": self._scrape_s})

    async def _asked(self, how: str, expression: str, times: Mapping[str, float]) -> list[dict[str, Any]]:
        for name, value in self._selected.items():
            expression = expression.replace(name, value)
        told = (await self._http.get(f"/api/v1/{how}", params={"query": expression, **times})).json()
        if told["status"] != "success":
            raise RuntimeError(f"{expression}: {told['error']}")
        found: list[dict[str, Any]] = told["data"]["result"]
        return found

    async def firing(self) -> set[str]:
        found = await self.query('count by (alertname) (ALERTS{alertstate="firing"})')
        return {each["metric"]["alertname"] for each in found}

    async def ready(self) -> bool:
        """Whether it has scraped every target. Before that, it misses services that are there."""
        try:
            if not (await self._http.get("/-/ready")).is_success:
                return False
        except httpx.TransportError:
            return False
        return len(await self.query("up == 1")) == self._targets and not await self.firing()

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
