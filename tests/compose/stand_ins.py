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


STORES = {
    "etcd": """
RUN apt-get update && apt-get install -y --no-install-recommends etcd-server etcd-client
ENV ETCDCTL_API=3
""",
    "zookeeper": """
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless zookeeper
ENV PATH=/usr/share/zookeeper/bin:$PATH
CMD ["zkServer.sh", "start-foreground"]
""",
}


def images() -> tuple[str, dict[str, str]]:
    """Those that are named for Python and for the stores, by their full names."""
    (python,) = set(re.findall(r"^FROM (python\S+) AS", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return _full(python), {name: _full(services[name]["image"]) for name in STORES}


def _full(name: str) -> str:
    return name if "/" in name else f"docker.io/library/{name}"


def make() -> None:
    python, stores = images()
    if not _exists(python):
        with tempfile.TemporaryDirectory(prefix="metatxn-base-") as directory:
            quietly("debootstrap", "--variant=minbase", f"--include={PYTHON}", SUITE, directory)
            archive = Path(directory) / "base.tar"
            quietly("tar", "--directory", directory, f"--exclude=./{archive.name}", "--create", "--file", archive, ".")
            podman("import", archive, python)
    for name, image in stores.items():
        if not _exists(image):
            podman("build", "--network=host", "--tag", image, "-", given=f"FROM {python}\n{STORES[name]}")


def _exists(image: str) -> bool:
    return subprocess.run(["podman", "image", "exists", image], env=ENVIRONMENT).returncode == 0
