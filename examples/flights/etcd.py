"""A private etcd for the demo, and the `etcdctl` commands that look into it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.flights.processes import free_port, stop

# The reasons are in docs/stores.md.
FLAGS = [
    "--backend-batch-limit=500",
    "--quota-backend-bytes=8589934592",
    "--auto-compaction-mode=periodic",
    "--auto-compaction-retention=2m",
    "--snapshot-count=5000",
    "--max-txn-ops=512",
    "--grpc-keepalive-min-time=5s",
]
START_SECONDS = 60


@contextmanager
def running_etcd(directory: Path) -> Iterator[str]:
    """Answers the client endpoint, `127.0.0.1:<port>`."""
    client, peer = free_port(), free_port()
    command = etcd_command(directory, client, peer)
    with directory.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        await_health(f"http://127.0.0.1:{client}")
        yield f"127.0.0.1:{client}"
    finally:
        stop(process)


def etcd_command(directory: Path, client: int, peer: int) -> list[str]:
    """One that serves on these two ports."""
    if shutil.which("etcd") is None:
        raise SystemExit("etcd is not installed. On Debian: apt-get install etcd-server etcd-client")
    url, peer_url = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    return [
        "etcd",
        f"--data-dir={directory}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
        *FLAGS,
    ]


def await_health(url: str) -> None:
    """Until the etcd at this URL serves."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
                if b"true" in answer.read():
                    return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"etcd did not start within {START_SECONDS} s")


def etcdctl(endpoint: str, *arguments: str) -> tuple[str, str]:
    """The command as an operator types it, and its output."""
    command = ["etcdctl", f"--endpoints={endpoint}", *arguments]
    output = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "ETCDCTL_API": "3"})
    return " ".join(command), output.stdout
