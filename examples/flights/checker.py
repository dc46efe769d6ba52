"""The second process of the demo: reads both topics all the time and looks for a half-visible transaction.

Each poll is a `snapshot` read of both topics at one revision: the flights counted in `carrier_delays` must equal the
rows in `departures`, per carrier. Beside it, one follower per segment notes when each transaction becomes visible.

Prints one JSON object per line: `{"poll": …}` for each poll, `{"visible": …}` for each transaction and segment.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time

import pyarrow as pa

import metatxn
from examples.flights import data

TOPICS = ["departures", "carrier_delays"]
PAUSE_SECONDS = 0.3
_printing = threading.Lock()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8470")
    url = parser.parse_args().url
    with metatxn.connect(url) as client:
        for topic in TOPICS:
            for segment in client.topic(topic).segments:
                threading.Thread(target=follow, args=(url, segment.segment), daemon=True).start()
        seen = -1
        while True:
            revision = client.cluster().revision
            if revision != seen:
                tables = client.read_table(TOPICS, isolation="snapshot", revision=revision)
                say(poll=revision, **compare(tables))
                seen = revision
            time.sleep(PAUSE_SECONDS)


def compare(tables: dict[str, pa.Table]) -> dict[str, object]:
    """`half_visible`: carriers whose counts differ between the two topics at this revision."""
    rows, delays = tables["departures"], tables["carrier_delays"]
    from_rows, from_delays = data.per_carrier(rows), data.summed(delays)
    carriers = from_rows.keys() | from_delays.keys()
    different = [carrier for carrier in carriers if from_rows.get(carrier) != from_delays.get(carrier)]
    return {"rows": len(rows), "batches": len(set(delays["batch_id"].to_pylist())), "half_visible": different}


def follow(url: str, segment: str) -> None:
    """Long-poll one segment; say when each transaction was first seen there."""
    with metatxn.connect(url) as client:
        after, seen = None, set[str]()
        while True:
            page = client.read_frames(segment, after=after, wait_ms=10_000)
            now_ms = time.time_ns() / 1e6
            for frame in page.frames:
                if frame.txn_id is not None and str(frame.txn_id) not in seen:
                    seen.add(str(frame.txn_id))
                    say(visible=str(frame.txn_id), segment=segment, at_ms=now_ms)
            after = page.next


def say(**line: object) -> None:
    with _printing:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
