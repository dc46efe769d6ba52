"""Tracing: what `--trace-to` costs a coordinator at its usual sampling, and at other ones.

Each way has a coordinator process of its own, with an empty SQLite store. The same transactions are begun and committed
over REST at each of them, in turns, and the CPU that each process has taken since its turn began is read from the
kernel: that depends little on what else runs on the machine. Two processes that run the same differ by a few percent
for as long as they live, because of where their memory lies, so each round has new ones. A receiver takes the spans and
throws them away; the program that asks is not traced, so only the sampling of the service counts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

import httpx

from benchmarks.report import Figure, publish
from benchmarks.services import Service, exact_cpu_s, running
from tests.receiving import receiver

WAYS = {"off": None, "off again": None, "0.01": "0.01", "1": "1"}
"""By name, `--trace-sampling`; None is without `--trace-to`. There are two of these: their mean is what the others are
compared with, and they show how far two equal processes are apart."""
MOST_PERCENT = 3.0


def cpu_of_transactions(service: Service, client: httpx.Client, number: int) -> float:
    """The seconds that the process takes for each of so many."""
    before = exact_cpu_s(service.process.pid)
    for _ in range(number):
        txn_id = client.post(f"{service.url}/v1/txns").raise_for_status().json()["txn_id"]
        client.post(f"{service.url}/v1/txns/{txn_id}/commit").raise_for_status()
    return (exact_cpu_s(service.process.pid) - before) / number


def measured(turns: int, transactions: int) -> dict[str, float]:
    """By way, the CPU seconds of a transaction: the median of the turns of one process."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        to = stack.enter_context(receiver(lambda path, headers, body: None))
        client = stack.enter_context(httpx.Client(timeout=60))
        services = {}
        for way, sampling in WAYS.items():
            options = ["--trace-to", to, "--trace-sampling", sampling] if sampling is not None else []
            store = f"sqlite:///{directory}/{way}.db"
            services[way] = stack.enter_context(running("coordinator", "--store", store, "--no-console", *options))
        for service in services.values():
            cpu_of_transactions(service, client, 5 * transactions)
        for turn in range(turns):
            order = list(services)[:: 1 if turn % 2 else -1]
            for way in order:
                found[way].append(cpu_of_transactions(services[way], client, transactions))
    return {way: statistics.median(each) for way, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="each with new processes")
    parser.add_argument("--turns", type=int, default=30, help="of each process")
    parser.add_argument("--transactions", type=int, default=40, help="of each turn")
    arguments = parser.parse_args()
    rounds = [measured(arguments.turns, arguments.transactions) for _ in range(arguments.rounds)]
    plain = [(each["off"] + each["off again"]) / 2 for each in rounds]
    apart = [100 * abs(each["off"] - each["off again"]) / cpu for each, cpu in zip(rounds, plain, strict=True)]
    figures = [
        Figure("CPU of a transaction without traces", [each * 1e6 for each in plain], "µs"),
        Figure("how far two processes without traces are apart", apart, "%"),
    ]
    for way in ("0.01", "1"):
        more = [100 * (each[way] / cpu - 1) for each, cpu in zip(rounds, plain, strict=True)]
        figures.append(Figure(f"more CPU at {way}", more, "%", at_most=MOST_PERCENT if way == "0.01" else None))
    publish("tracing", "What traces cost a coordinator", figures)


if __name__ == "__main__":
    main()
