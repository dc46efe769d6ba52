"""Clients in a process of their own, until its standard input ends: `... URL NAME CLIENTS`.

Their history goes to standard output as it happens: what was written there is not lost when the process is killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from functools import partial

from tests.histories.calls import Recorder
from tests.metastore.linearizability.clients import Client, open_patiently


async def main(url: str, name: str, clients: str) -> None:
    store = await open_patiently(url)
    recorder = Recorder(partial(os.write, sys.stdout.fileno()), name, time.monotonic_ns)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for number in range(int(clients)):
            tasks.create_task(Client(f"{name}-{number}", store, store, recorder).run(stop))
        await asyncio.to_thread(sys.stdin.buffer.read)
        stop.set()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
