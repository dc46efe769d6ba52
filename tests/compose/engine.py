"""Podman and podman-compose, with limits that such a machine allows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "CONTAINERS_CONF": str(Path(__file__).parent / "containers.conf")}
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")


def quietly(*command: object, given: str | None = None, timeout_s: float = 1_800) -> str:
    """What it prints. If it fails, all that it said is shown."""
    done = subprocess.run(
        list(map(str, command)),
        input=given,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT,
        timeout=timeout_s,
    )
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise SystemExit(f"failed: {' '.join(map(str, command))}")
    return done.stdout


def podman(*arguments: object, **options: Any) -> str:
    return quietly("podman", *arguments, **options)


def compose(*arguments: object) -> str:
    return quietly(sys.executable, "-m", "podman_compose", "--project-name", "metatxn-test", *arguments)


def build(target: str, tag: str) -> None:
    """As `docker build`; with the network and the authorities of this machine, behind whatever proxy it is."""
    shared = (
        [f"--volume={AUTHORITIES}:{AUTHORITIES}:ro", f"--env=PIP_CERT={AUTHORITIES}"] if AUTHORITIES.exists() else []
    )
    podman("build", "--network=host", *shared, f"--target={target}", f"--tag={tag}", ".")
