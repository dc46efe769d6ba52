"""What has happened in a cluster that somebody looks at: topics, transactions in every state, and names that are meant
to do harm to a page."""

from __future__ import annotations

from dataclasses import dataclass

import metatxn

SCRIPT = "<script>alert(1)</script>"
HOSTILE = f"\"'><img src=x onerror=alert(1)>{SCRIPT}&amp;{{{{7*7}}}}"
"""It would be a bug in every language that a page is made of."""
RIGHT_TO_LEFT = "\u202eמשהו\u202c אחר"


@dataclass(frozen=True, slots=True)
class Life:
    """The ids of transactions, by what has become of them."""

    open: str
    prepared: str
    committed: str
    aborted: str
    fenced: str
    hostile: str


def lived(client: metatxn.Client) -> Life:
    client.create_topic("orders", segments=2, exist_ok=True)
    client.create_topic(RIGHT_TO_LEFT, exist_ok=True)
    client.create_topic(HOSTILE.replace("/", "_"), exist_ok=True)
    client.create_subscription("orders", "billing")
    client.create_subscription(HOSTILE.replace("/", "_"), HOSTILE)
    open_ = begun(client, properties={"job": "nightly"})
    prepared = begun(client)
    prepared.prepare(86_400_000)
    committed = begun(client)
    committed.commit()
    aborted = begun(client)
    aborted.abort("the card was refused")
    epoch = client.connect_key("loader").epoch
    fenced = begun(client, key="loader", epoch=epoch)
    client.connect_key("loader")
    client.connect_key(HOSTILE.replace("&", "+"))
    hostile = begun(client, topic=HOSTILE.replace("/", "_"), properties={HOSTILE: HOSTILE, "rtl": RIGHT_TO_LEFT})
    hostile.abort(HOSTILE)
    for each in (open_, prepared, fenced):
        each.leave_open()
    return Life(open_.id, prepared.id, committed.id, aborted.id, fenced.id, hostile.id)


def begun(
    client: metatxn.Client,
    topic: str = "orders",
    key: str | None = None,
    epoch: int | None = None,
    properties: dict[str, str] | None = None,
) -> metatxn.Transaction:
    """A transaction that has written to each segment."""
    txn = client.begin(timeout_ms=80_000_000, key=key, epoch=epoch, properties=properties)
    with client.producer(topic) as producer:
        for number in range(8):
            producer.send({"number": number}, key=str(number), txn=txn)
    return txn
