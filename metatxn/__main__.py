"""The command `metatxn`, also as `python -m metatxn`."""

from __future__ import annotations

import sys


def run_metatxn() -> None:
    try:
        from metatxn.cli.main import main  # this takes a while, and Ctrl-C may come before it is done
    except KeyboardInterrupt:
        sys.exit(130)
    main()


if __name__ == "__main__":
    run_metatxn()
