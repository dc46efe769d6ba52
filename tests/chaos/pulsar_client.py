"""Processes of Pulsar's V5 clients: `PulsarActors.java`, compiled once for a run, with the jars that Maven has brought
(`make build/pulsar/.ready`)."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

from tests.gateways.pulsar.v5 import JARS
from tests.histories.messages.consumption import PULSAR_BY_KEY, PULSAR_INPUTS, PULSAR_OUTPUTS

PULSAR_TOPICS = {PULSAR_INPUTS: 1, PULSAR_OUTPUTS: 2, PULSAR_BY_KEY: 1}
"""And how many segments each has at first."""
ACTORS = Path(__file__).with_name("PulsarActors.java")
CLASSES = "classes"
LITTLE = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
"""What keeps several virtual machines small on a machine with two cores."""


def compile_actors(directory: Path) -> None:
    """Below `directory`, which is that of a run."""
    assert (JARS / ".ready").exists(), "`make build/pulsar/.ready` brings Pulsar's client"
    arguments = ["javac", "-nowarn", "-cp", f"{JARS}/*", "-d", str(directory / CLASSES), str(ACTORS)]
    compiled = subprocess.run(arguments, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr


def command_of_actors(directory: Path, addresses: str, histories: Path, name: str, seed: int, *role: str) -> list[str]:
    """Of a process with a life of its own, whose history has a file of its own."""
    life = f"{name}-{uuid.uuid4().hex[:6]}"
    return [
        *("java", *LITTLE, "-cp", f"{directory / CLASSES}:{JARS}/*", ACTORS.stem, f"pulsar://{addresses}"),
        *(str(histories / f"{life}.jsonl"), life, f"{seed} {name} {len(list(histories.iterdir()))}", *role),
    ]
