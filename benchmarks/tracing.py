"""Tracing: what `--trace-to` costs a coordinator and a broker at their usual sampling, and at other ones.

Each way has a process of its own, with an empty SQLite store. A coordinator begins and commits transactions, and a
broker is sent messages, over REST, the same at each of them, in turns. The CPU that each process has taken since its
turn began is read from the kernel: that depends little on what else runs on the machine. Two processes that run the
same differ by a few percent for as long as they live, because of where their memory lies, so each round has new ones. A
receiver takes the spans and throws them away; the program that asks is not traced, so only the sampling of the service
counts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
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
TOPIC = "orders"


def transaction(url: str, client: httpx.Client) -> None:
    txn_id = client.post(f"{url}/v1/txns").raise_for_status().json()["txn_id"]
    client.post(f"{url}/v1/txns/{txn_id}/commit").raise_for_status()


def message(url: str, client: httpx.Client) -> None:
    client.post(f"{url}/v1/topics/{TOPIC}/messages", json={"messages": [{"value": "x" * 100}]}).raise_for_status()


WORKS: dict[str, Callable[[str, httpx.Client], None]] = {"coordinator": transaction, "broker": message}
"""What each kind of service does."""


def cpu_of(kind: str, service: Service, client: httpx.Client, number: int) -> float:
    """The seconds that the process takes for each of this many works."""
    before = exact_cpu_s(service.process.pid)
    for _ in range(number):
        WORKS[kind](service.url, client)
    return (exact_cpu_s(service.process.pid) - before) / number


def start(kind: str, directory: Path, options: list[str], client: httpx.Client, stack: ExitStack) -> Service:
    place = ["--no-console"] if kind == "coordinator" else ["--data-dir", str(directory)]
    service = stack.enter_context(running(kind, "--store", f"sqlite:///{directory}.db", *place, *options))
    if kind == "broker":
        client.post(f"{service.url}/v1/topics", json={"name": TOPIC}).raise_for_status()
    return service


def measured(kind: str, turns: int, works: int) -> dict[str, float]:
    """By way, the CPU seconds of a work: the median of the turns of one process."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        to = stack.enter_context(receiver(lambda path, headers, body: None))
        client = stack.enter_context(httpx.Client(timeout=60))
        services = {}
        for way, sampling in WAYS.items():
            options = ["--trace-to", to, "--trace-sampling", sampling] if sampling is not None else []
            services[way] = start(kind, directory / way, options, client, stack)
        for service in services.values():
            cpu_of(kind, service, client, 5 * works)
        for turn in range(turns):
            order = list(services)[:: 1 if turn % 2 else -1]
            for way in order:
                found[way].append(cpu_of(kind, services[way], client, works))
    return {way: statistics.median(each) for way, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="each with new processes")
    parser.add_argument("--turns", type=int, default=30, help="of each process")
    parser.add_argument("--works", type=int, default=40, help="of each turn")
    arguments = parser.parse_args()
    figures = []
    for kind, work in WORKS.items():
        rounds = [measured(kind, arguments.turns, arguments.works) for _ in range(arguments.rounds)]
        figures += figures_of(f"a {work.__name__} at a {kind}", rounds)
    publish("tracing", "What traces cost a coordinator and a broker", figures)


def figures_of(work: str, rounds: list[dict[str, float]]) -> list[Figure]:
    plain = [(each["off"] + each["off again"]) / 2 for each in rounds]
    apart = [100 * abs(each["off"] - each["off again"]) / cpu for each, cpu in zip(rounds, plain, strict=True)]
    figures = [
        Figure(f"CPU of {work} without traces", [each * 1e6 for each in plain], "µs"),
        Figure("how far two processes without traces are apart", apart, "%"),
    ]
    for way in ("0.01", "1"):
        more = [100 * (each[way] / cpu - 1) for each, cpu in zip(rounds, plain, strict=True)]
        figures.append(Figure(f"more CPU at {way}", more, "%", at_most=MOST_PERCENT if way == "0.01" else None))
    return figures


if __name__ == "__main__":
    main()
