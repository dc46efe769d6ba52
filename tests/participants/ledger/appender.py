"""Appends to a ledger until it is killed, and says each acknowledged entry on standard output.

Run as `python -m tests.participants.ledger.appender <directory> <ledger>`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from participants.ledger.local import LocalStorage
from tests.participants.ledger.ledgers import SEGMENT, append


def payload(number: int) -> bytes:
    return b"%d " % number * (number % 500)


async def main(data_dir: Path, number: int) -> None:
    async with LocalStorage.open(data_dir) as storage:
        ledger = await storage.create(SEGMENT, number)

        async def publish() -> None:
            while True:
                entry = ledger.last_assigned.entry + 1
                begun = append(ledger, payload(entry))
                await begun.durable
                os.write(1, b"%d\n" % begun.position.entry)

        await asyncio.gather(*(publish() for _ in range(20)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
