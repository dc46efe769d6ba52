"""A service whose bounds are those of a seed: `python -m tests.chaos.bounded SEED broker …`."""

from __future__ import annotations

import sys

from metatxn.cli.main import main
from tests.bounds import applied, drawn

if __name__ == "__main__":
    with applied(drawn(sys.argv.pop(1))):
        main()
