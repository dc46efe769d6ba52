"""metatxn beside real Kafka in one run: the same work, in turns, round by round, on this machine.

Kafka 4 is one node that is broker and controller, once as it is when nothing is set, and once so that it syncs each
message before it acknowledges it. metatxn is `metatxn dev` on SQLite and on an etcd of its own, and always syncs.
Kafka's client is confluent-kafka, ours is the asyncio client; both are processes of their own, and so are readers.
Systems that do not have their turn are idle. CPU is that of the client's process and of all processes of a system,
etcd's included.

*small.* Begin, one message of 100 bytes to each of two topics, commit; a reader waits on both. CPU of transactions one
after the other; latency of 20 in a second.

*concurrent.* The same by 1, 16, 64 and 256 producers in one process: threads of confluent-kafka, one transactional
producer each, and tasks of one asyncio client.

*wide.* One transaction with a message to each of 1, 10, 100 and 500 partitions or segments.

*bulk.* Messages of 100 B and 1 KiB into four partitions or segments, without transactions and in transactions of
10,000, and reading them again; ours also by `send_many`, and as tables.

*start*, *restart.* Each system alone: from nothing to the first commit, memory, and CPU when idle; and kill -9 with
open transactions, until all of them are committed and read.

*listener.* Kafka's client with all of them, with ours through the listener for Kafka clients: bulk, transactions of ten
messages, one large transaction in batches of 16 KiB, as Java's client sends them, and what 1,000 connections that do
nothing add to the memory.

Java compiles itself while it works, so all systems work for a minute before they are measured; a Kafka that has just
been started takes several times as much CPU. Named parts are measured alone. `--small` is a first look: two rounds, and
less work in each, also of warming up.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.peers.parts import FULL, PARTS, SMALL
from benchmarks.report import publish


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    size = SMALL if options.small else FULL
    for part in options.parts or PARTS:
        with tempfile.TemporaryDirectory() as directory:
            figures = list(PARTS[part](Path(directory) / "peers", size))
        publish(f"peers-{part}", f"metatxn beside Kafka: {part}", figures)


if __name__ == "__main__":
    main()
