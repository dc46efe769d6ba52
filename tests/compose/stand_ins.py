"""Stand-ins for the base images that the Dockerfile and docker-compose.yml name, where images cannot be pulled.

They are made of Debian's packages, and tagged as the files name them. An image that is there already is taken as it is.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.compose.engine import ENVIRONMENT, ROOT, podman, quietly

SUITE = "bookworm"
PYTHON = "python3,python3-venv,ca-certificates"


def images() -> tuple[str, str]:
    """Those that are named for Python and etcd, by their full names."""
    (python,) = set(re.findall(r"^FROM (python\S+) AS", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return f"docker.io/library/{python}", services["etcd"]["image"]


def make() -> None:
    python, etcd = images()
    if not _exists(python):
        with tempfile.TemporaryDirectory(prefix="metatxn-base-") as directory:
            quietly("debootstrap", "--variant=minbase", f"--include={PYTHON}", SUITE, directory)
            archive = Path(directory) / "base.tar"
            quietly("tar", "--directory", directory, f"--exclude=./{archive.name}", "--create", "--file", archive, ".")
            podman("import", archive, python)
    if not _exists(etcd):
        wanted = (
            f"FROM {python}\nRUN apt-get update && apt-get install -y --no-install-recommends etcd-server etcd-client\n"
        )
        podman("build", "--network=host", "--tag", etcd, "-", given=wanted + "ENV ETCDCTL_API=3\n")


def _exists(image: str) -> bool:
    return subprocess.run(["podman", "image", "exists", image], env=ENVIRONMENT).returncode == 0
