"""Consume, transform, produce: read topic `orders`, write `invoices` and `totals`, acknowledge `orders`, all in one
transaction per micro-batch.

    metatxn topic create orders --segments 2
    python -m examples.consume_transform_produce.job --url http://127.0.0.1:8470 --checkpoint DIR

Kill it at any moment and start it again on the same checkpoint: there is one invoice for each order, the totals agree
with them, and subscription `billing` has acknowledged exactly the orders that were invoiced.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import metatxn
import spark_connector
from examples.flights.session import local_session

APPLICATION = "billing-job"
SUBSCRIPTION = "billing"


def main() -> None:
    options = _options()
    with metatxn.connect(options.url) as client:
        for topic in ("invoices", "totals"):
            client.create_topic(topic, segments=2, exist_ok=True)
        client.subscribe("orders", SUBSCRIPTION, type="shared", initial="earliest").close()
    spark = local_session(APPLICATION)
    orders = spark.readStream.format("metatxn").option("url", options.url).option("subscribe", "orders")
    query = (
        orders.option("maxOffsetsPerTrigger", options.rows_per_batch)
        .load()
        .writeStream.foreachBatch(lambda batch, batch_id: write(batch, batch_id, options))
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def write(batch: DataFrame, batch_id: int, options: argparse.Namespace) -> None:
    invoices = batch.select("id", "customer", (F.col("amount") * 1.2).alias("gross")).persist()
    totals = invoices.groupBy("customer").agg(F.count("*").alias("invoices"), F.sum("gross").alias("gross"))
    with spark_connector.batch_transaction(
        options.url, APPLICATION, batch_id, ack_subscription=SUBSCRIPTION, checkpoint=options.checkpoint
    ) as txn:
        for frame, topic in ((invoices, "invoices"), (totals, "totals")):
            sink = frame.write.format("metatxn").option("url", options.url).option("topic", topic)
            sink.option("txnId", txn.id).option("keyColumn", "customer").mode("append").save()
    invoices.unpersist()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8470", help="any coordinator or broker")
    parser.add_argument("--checkpoint", required=True, help="Spark's checkpoint directory")
    parser.add_argument("--rows-per-batch", default=1000, type=int, help="orders per micro-batch")
    return parser.parse_args()


if __name__ == "__main__":
    main()
