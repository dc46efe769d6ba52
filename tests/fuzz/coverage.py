"""One target with atheris: `python -m tests.fuzz.coverage NAME SECONDS DIRECTORY`.

`DIRECTORY/corpus` keeps what reached something new, over all runs; input that fails is left in `DIRECTORY`.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["metastore", "metatxn.service", "metatxn.wire", "coordinator", "participants", "metatxn_gateways"]
):
    from tests.fuzz.targets import TARGETS


def main(name: str, seconds: str, directory: str) -> None:
    """Ends the process: with 0 when nothing was found."""
    target = TARGETS[name]
    corpus = Path(directory) / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for data in target.good:
        (corpus / hashlib.sha256(data).hexdigest()).write_bytes(data)
    options = [f"-max_total_time={seconds}", f"-artifact_prefix={directory}/", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
