"""Writes Grafana's dashboards to ops/grafana: `make dashboards`. `tests/ops` compares them with the files."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableOption

FOLDER = Path(__file__).parent.parent / "ops" / "grafana"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
EVERY = VariableOption(selected=True, text="All", value="$__all")
WIDTH, HEIGHT = 8, 7

OF_CLUSTER = 'cluster=~"$cluster"'
"""What every expression asks for. With the choice `All`, it also matches what has no such label."""
_METRIC = re.compile(r"\b(?:metatxn[_:][a-z0-9_:]+|process_[a-z_]+|up)\b(\{)?")

Query = tuple[str, str]
"""An expression, and the legend of its series."""
PanelText = tuple[str, str, str, tuple[Query, ...]]
"""The title, what one reads from it, the unit, and the queries."""


def rate(metric: str, by: str, labels: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{labels}[$__rate_interval]))"


def quantile(q: float, metric: str, by: str) -> str:
    buckets = rate(f"{metric}_bucket", f"le, {by}")
    return f"histogram_quantile({q}, {buckets})"


def of_cluster(expression: str) -> str:
    """The expression, of the chosen cluster only."""

    def of_metric(found: re.Match[str]) -> str:
        return f"{found[0]}{OF_CLUSTER}, " if found[1] else f"{found[0]}{{{OF_CLUSTER}}}"

    return _METRIC.sub(of_metric, expression)


CLUSTER: dict[str, tuple[PanelText, ...]] = {
    "Services": (
        ("Up", "1 for each service that answers.", "short", (('up{job=~"metatxn-.+"}', "{{job}} {{instance}}"),)),
        (
            "Requests",
            "By service and route.",
            "reqps",
            ((rate("metatxn_requests_total", "instance, route"), "{{instance}} {{route}}"),),
        ),
        (
            "Failures",
            "Requests that were answered with 5xx, as a part of all.",
            "percentunit",
            (("metatxn:request_failures:ratio5m", "{{instance}}"),),
        ),
        (
            "Latency",
            "The 99th percentile of requests, with the time that they asked to wait.",
            "s",
            ((quantile(0.99, "metatxn_request_seconds", "route"), "{{route}}"),),
        ),
        (
            "Event loop",
            "How late it is, 99th percentile. Above 0.25 s the process has too much to do.",
            "s",
            (("metatxn:event_loop_lag_seconds:p99_5m", "{{instance}}"),),
        ),
        (
            "Memory",
            "Resident memory of each process.",
            "bytes",
            (('process_resident_memory_bytes{job=~"metatxn-.+"}', "{{instance}}"),),
        ),
    ),
    "Transactions": (
        (
            "Ended",
            "By result. Those that time out are done again.",
            "ops",
            ((rate("metatxn_transactions_ended_total", "result"), "{{result}}"),),
        ),
        ("Open", "Open transactions of the whole store.", "short", (("max(metatxn_transactions_open)", "open"),)),
        (
            "The oldest",
            "Readers see nothing behind its first entries.",
            "s",
            (("max(metatxn_oldest_open_transaction_seconds)", "oldest"),),
        ),
        (
            "Duration",
            "From the begin to the decision.",
            "s",
            (
                (quantile(0.5, "metatxn_transaction_duration_seconds", "result"), "median {{result}}"),
                (quantile(0.99, "metatxn_transaction_duration_seconds", "result"), "p99 {{result}}"),
            ),
        ),
        (
            "From decision to visible",
            "How long a decision takes to reach readers.",
            "s",
            (("metatxn:decision_to_visible_seconds:p99_5m", "{{instance}}"),),
        ),
        (
            "Not cleaned up",
            "Finished transactions that cannot be forgotten yet.",
            "short",
            (("max(metatxn_gc_backlog_headers)", "headers"),),
        ),
    ),
    "Metadata store": (
        ("Calls", "By operation.", "ops", ((rate("metatxn_store_seconds_count", "operation"), "{{operation}}"),)),
        (
            "Latency",
            "The 99th percentile of calls.",
            "s",
            ((quantile(0.99, "metatxn_store_seconds", "operation"), "{{operation}}"),),
        ),
        (
            "Errors",
            "CheckFailed is no fault: another process was faster.",
            "ops",
            ((rate("metatxn_store_errors_total", "instance, error"), "{{instance}} {{error}}"),),
        ),
    ),
}
TOPICS: dict[str, tuple[PanelText, ...]] = {
    "Messages": (
        (
            "In",
            "Messages that became durable.",
            "cps",
            ((rate("metatxn_topic_messages_in_total", "topic", '{topic=~"$topic"}'), "{{topic}}"),),
        ),
        (
            "Out",
            "Messages given to readers and consumers, each time that they are.",
            "cps",
            ((rate("metatxn_topic_messages_out_total", "topic", '{topic=~"$topic"}'), "{{topic}}"),),
        ),
        (
            "Bytes in",
            "Payloads.",
            "Bps",
            ((rate("metatxn_topic_bytes_in_total", "topic", '{topic=~"$topic"}'), "{{topic}}"),),
        ),
    ),
    "Subscriptions": (
        (
            "Backlog",
            "Entries that are not acknowledged.",
            "short",
            (
                (
                    'sum by (topic, subscription) (metatxn_subscription_backlog_entries{topic=~"$topic"})',
                    "{{topic}} {{subscription}}",
                ),
            ),
        ),
        (
            "Consumers",
            "Connected consumers.",
            "short",
            (
                (
                    'sum by (topic, subscription) (metatxn_subscription_consumers{topic=~"$topic"})',
                    "{{topic}} {{subscription}}",
                ),
            ),
        ),
        (
            "Redeliveries and dead letters",
            "Messages that came back, and those that were given up.",
            "cps",
            (
                (rate("metatxn_redeliveries_total", "topic", '{topic=~"$topic"}'), "redelivered {{topic}}"),
                (rate("metatxn_dead_letters_total", "topic", '{topic=~"$topic"}'), "dead {{topic}}"),
            ),
        ),
    ),
    "Ledgers": (
        (
            "Held back",
            "Durable entries that readers may not see yet, by segment.",
            "short",
            (("max by (segment) (metatxn_horizon_lag_entries)", "{{segment}}"),),
        ),
        (
            "Append and sync",
            "The 99th percentile, by broker.",
            "s",
            (
                (quantile(0.99, "metatxn_append_seconds", "instance"), "append {{instance}}"),
                (quantile(0.99, "metatxn_fsync_seconds", "instance"), "sync {{instance}}"),
            ),
        ),
        (
            "Disk",
            "How far the disk of local ledgers is used.",
            "percentunit",
            (("metatxn:storage_used:ratio", "{{instance}}"),),
        ),
        (
            "Segments",
            "Opened and lost. Moves interrupt a segment for a moment.",
            "ops",
            (
                (rate("metatxn_segments_opened_total", "instance"), "opened {{instance}}"),
                (rate("metatxn_segments_lost_total", "instance"), "lost {{instance}}"),
            ),
        ),
        (
            "Freed",
            "By retention and by rewriting.",
            "Bps",
            (
                (rate("metatxn_retention_dropped_bytes_total", "instance"), "dropped {{instance}}"),
                (rate("metatxn_rewritten_freed_bytes_total", "instance"), "rewritten {{instance}}"),
            ),
        ),
        ("Damaged", "Ledgers that cannot be read.", "short", (("metatxn_damaged_ledgers", "{{instance}}"),)),
    ),
}


def panel(text: PanelText) -> timeseries.Panel:
    title, about, unit, queries = text
    made = timeseries.Panel().title(title).description(about).unit(unit).datasource(SOURCE).span(WIDTH).height(HEIGHT)
    for number, (expression, legend) in enumerate(queries):
        query = prometheus.Dataquery().expr(of_cluster(expression)).legend_format(legend).ref_id(chr(ord("A") + number))
        made = made.with_target(query)
    return made.min(0)


def made(uid: str, title: str, rows: dict[str, tuple[PanelText, ...]], *, of_topics: bool) -> str:
    board = dashboard.Dashboard(title).uid(uid).tags(["metatxn"]).refresh("30s").time("now-1h", "now").readonly()
    board = board.with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
    cluster = dashboard.QueryVariable("cluster").datasource(SOURCE).include_all(True).all_value(".*").current(EVERY)
    board = board.with_variable(cluster.query("label_values(metatxn_build_info, cluster)"))
    if of_topics:
        topic = dashboard.QueryVariable("topic").datasource(SOURCE).multi(True).include_all(True)
        board = board.with_variable(
            topic.query(f"label_values({of_cluster('metatxn_topic_messages_in_total')}, topic)")
        )
    ids = itertools.count(1)
    for name, panels in rows.items():
        board = board.with_row(dashboard.Row(name).id(next(ids)))
        for text in panels:
            board = board.with_panel(panel(text).id(next(ids)))
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


def dashboards() -> Iterator[tuple[Path, str]]:
    """Each file with what has to be in it."""
    yield FOLDER / "cluster.json", made("metatxn-cluster", "metatxn: cluster", CLUSTER, of_topics=False)
    yield FOLDER / "topics.json", made("metatxn-topics", "metatxn: topics", TOPICS, of_topics=True)


if __name__ == "__main__":
    for path, text in dashboards():
        path.write_text(text)
