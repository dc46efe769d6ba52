"""The command `metatxn`, also as `python -m metatxn`."""

from __future__ import annotations

import os
import signal
import sys

_INTERRUPTED = 130


def run_metatxn() -> None:
    """Run the command line. Importing takes a while, and Ctrl-C may come before it is done. It then ends the process:
    raised anywhere in an import, `KeyboardInterrupt` may be lost, and leave behind a lock that the command would wait
    for forever."""
    handler = signal.getsignal(signal.SIGINT)
    raises = handler is signal.default_int_handler
    if raises:
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    try:
        from metatxn.cli.main import main
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    finally:
        if raises:
            signal.signal(signal.SIGINT, handler)
    main()


if __name__ == "__main__":
    run_metatxn()
