"""The main job, end to end, on real input, with two kills.

    python -m examples.flights.demo [--store sqlite|etcd] [--rows 40000] [--files 4]

Starts `metatxn dev`, a checker, and the Spark job; kills the driver with `kill -9` once between the end of its tasks
and the commit, and once between the commit and Spark's own commit log; starts it again from its checkpoint each
time; and compares both topics with the input, row by row. Exit code 0 only when every count is right.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import metatxn
from examples.flights import data
from examples.flights.checker import TOPICS
from examples.flights.etcd import etcdctl, running_etcd
from examples.flights.processes import ROOT, free_port, kill_group, python, read_lines, stop

console = Console()


@dataclass
class Observed:
    """What the checker has said so far."""

    polls: int = 0
    half_visible: int = 0
    rows: int = 0
    batches: int = 0
    visible_ms: dict[str, float] = field(default_factory=dict)

    def take(self, line: str) -> None:
        said = json.loads(line)
        if "visible" in said:
            txn_id = said["visible"]
            self.visible_ms[txn_id] = max(self.visible_ms.get(txn_id, 0.0), said["at_ms"])
        else:
            self.polls += 1
            self.half_visible += bool(said["half_visible"])
            self.rows, self.batches = said["rows"], said["batches"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=["sqlite", "etcd"], default="sqlite")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "demo", help="emptied at the start")
    parser.add_argument("--rows", type=int, default=data.ROWS, help="how many of the flights, at most all of them")
    parser.add_argument("--files", type=int, default=data.FILES, help="micro-batches, a file for each; at least 4")
    options = parser.parse_args()
    directory: Path = options.directory / options.store
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)

    flights = data.flights().slice(0, options.rows)
    data.cut(flights, directory / "input", options.files)
    console.print(f"{len(flights):,} flights in {options.files} files; store: {options.store}; logs: {directory}")
    with ExitStack() as stack:
        endpoint = stack.enter_context(running_etcd(directory / "etcd")) if options.store == "etcd" else None
        url = stack.enter_context(running_dev(directory, f"etcd://{endpoint}" if endpoint else None))
        client = stack.enter_context(metatxn.connect(url))
        client.create_topic("departures", segments=4, schema=data.SCHEMA, exist_ok=True)
        client.create_topic("carrier_delays", segments=1, schema=data.DELAYS_SCHEMA, exist_ok=True)
        observed = Observed()
        checker = python("examples.flights.checker", "--url", url, log=directory / "checker.log")
        stack.callback(stop, checker)
        read_lines(checker, observed.take)
        kills = (f"before-commit:{options.files // 4}", f"after-commit:{options.files * 9 // 16}")
        run_job(directory, url, observed, len(flights), kills, endpoint)
        if checker.poll() is not None:
            raise SystemExit(f"the checker ended early; see {directory / 'checker.log'}")
        return report(client, directory, observed, data.truth(flights), options.files)


@contextmanager
def running_dev(
    directory: Path, store: str | None, printed: list[str] | None = None, options: Sequence[str] = ()
) -> Iterator[str]:
    """`metatxn dev` on free ports; yields the coordinator's URL. `printed` receives the lines of its output."""
    port, broker_port = free_port(), free_port()
    arguments = ["dev", "--data-dir", str(directory / "data"), "--port", str(port), "--broker-port", str(broker_port)]
    if store:
        arguments += ["--store", store]
    process = python("metatxn", *arguments, *options, log=directory / "dev.log")
    ready = threading.Event()

    def watch(line: str) -> None:
        if printed is not None:
            printed.append(line)
        if line.startswith("access"):
            ready.set()

    reader = read_lines(process, watch)
    try:
        while not ready.wait(0.1):
            if process.poll() is not None or not reader.is_alive():
                raise SystemExit(f"metatxn dev did not start; see {directory / 'dev.log'}")
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(process)
        reader.join()


def run_job(
    directory: Path, url: str, observed: Observed, rows: int, kills: tuple[str, str], endpoint: str | None
) -> None:
    """The job with each kill in turn, then to its end; a progress bar over the rows that readers can see."""
    columns = (TextColumn("{task.description:<42}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=rows)
        for pause_at in (*kills, None):
            progress.update(task, description="running" if pause_at is None else f"running, to be killed {pause_at}")
            paused = threading.Event()

            def watch(line: str, paused: threading.Event = paused) -> None:
                if line.startswith("paused at"):
                    paused.set()

            arguments = ["--url", url, "--input", str(directory / "input")]
            arguments += ["--checkpoint", str(directory / "checkpoint"), "--report", str(directory / "batches.jsonl")]
            job = python(
                "examples.flights.job",
                *arguments,
                *(["--pause-at", pause_at] if pause_at else []),
                log=directory / "job.log",
            )
            reader = read_lines(job, watch)
            try:
                while job.poll() is None and not paused.wait(0.2):
                    progress.update(task, completed=observed.rows)
                if pause_at and paused.is_set():
                    if endpoint and pause_at == kills[0]:
                        show_open_transaction(endpoint, url)
                    kill_group(job)
                    progress.console.print(f"kill -9 of the driver at {pause_at}; starting it again")
                elif pause_at or job.returncode:
                    raise SystemExit(f"the job ended with exit code {job.returncode}; see {directory / 'job.log'}")
            finally:
                if job.poll() is None:
                    kill_group(job)
                reader.join()
        progress.update(task, completed=rows, description="done")


def show_open_transaction(endpoint: str, url: str) -> None:
    """What an operator sees of a transaction that is open right now."""
    with metatxn.connect(url) as client:
        txn_id = next(client.transactions(state="OPEN")).txn_id
    for arguments in (
        ("get", f"/txn/{txn_id}"),
        ("get", "--prefix", f"/txn-op/{txn_id}/", "--limit=3"),
        ("get", "--prefix", "/idx/txn-by-deadline/", "--keys-only"),
    ):
        command, output = etcdctl(endpoint, *arguments)
        console.print(f"$ {command}", style="bold", soft_wrap=True)
        console.print(output, soft_wrap=True, markup=False, highlight=False)


def report(client: metatxn.Client, directory: Path, observed: Observed, truth: data.Truth, files: int) -> int:
    tables = client.read_table(TOPICS, isolation="snapshot")
    departures, delays = tables["departures"], tables["carrier_delays"]
    unique = len(set(departures["row"].to_pylist()))
    batches = [json.loads(line) for line in (directory / "batches.jsonl").read_text().splitlines()]
    commits = sorted(batch["commit_ms"] for batch in batches if not batch["replayed"])
    replayed = sum(batch["replayed"] for batch in batches)
    headers = {header.txn_id: header for header in client.transactions()}
    states = [header.state for header in headers.values()]
    visible = sorted(
        max(0.0, at_ms - finalized_ms)
        for txn_id, at_ms in observed.visible_ms.items()
        if txn_id in headers and (finalized_ms := headers[txn_id].finalized_ms) is not None
    )
    lost, duplicates = truth.rows - unique, len(departures) - unique
    checks = {
        "rows in": (f"{truth.rows:,}", True),
        "rows in departures": (f"{len(departures):,}", len(departures) == truth.rows),
        "flights counted in carrier_delays": (
            f"{sum(flights for flights, _, _ in data.summed(delays).values()):,}",
            data.summed(delays) == truth.per_carrier == data.per_carrier(departures),
        ),
        "rows in carrier_delays": (f"{len(delays):,}", delays.num_rows > 0),
        "duplicates": (str(duplicates), duplicates == 0),
        "lost": (str(lost), lost == 0),
        "half-visible": (f"{observed.half_visible} in {observed.polls} polls", not observed.half_visible),
        "micro-batches": (str(len(set(delays["batch_id"].to_pylist()))), True),
        "transactions committed": (str(states.count("COMMITTED")), states.count("COMMITTED") == files),
        "transactions aborted (fenced by a restart)": (str(states.count("ABORTED")), states.count("ABORTED") == 1),
        "transactions left open": (str(states.count("OPEN")), states.count("OPEN") == 0),
        "replayed as no-op": (str(replayed), replayed == 1),
        "commit latency p50 / p99": (quantiles(commits), True),
        "commit to visible p50 / p99": (quantiles(visible), bool(visible)),
        "checker polled": (str(observed.polls), observed.polls > 0),
    }
    table = Table("count", "value", "", title="Every row exactly once, in both topics, at every moment")
    for name, (value, right) in checks.items():
        table.add_row(name, value, "[green]ok[/]" if right else "[red bold]WRONG[/]")
    console.print(table)
    return 0 if all(right for _, right in checks.values()) else 1


def quantiles(values_ms: list[float]) -> str:
    if len(values_ms) < 2:
        return "too few"
    return f"{statistics.median(values_ms):.1f} ms / {statistics.quantiles(values_ms, n=100)[98]:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
