"""Under a transaction key each version is committed once, in the order of the versions, and never under an epoch that
had been taken over when it was decided. Nobody begins under an epoch but who has connected at it. The transactions of
Kafka's clients have no version, and do not tell who has begun them."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History, connection

_OF_KAFKA = "kafka:"


def check(history: History) -> Iterable[str]:
    for txn_id, began in history.under_keys.items():
        assert began.key is not None and began.epoch is not None
        if began.key.startswith(_OF_KAFKA):
            continue
        by = (began.properties or {}).get("by", "")
        if not by.startswith(connection(began.key, began.epoch)):
            yield f"{by} began {txn_id}, which is the right of {connection(began.key, began.epoch)}"
    last: dict[tuple[str | None, str], tuple[int, int]] = {}
    for txn_id, decision in sorted(history.decisions.items(), key=lambda item: item[1].revision):
        header = decision.header
        if header.key is None or not decision.committed:
            continue
        assert header.epoch is not None
        key = (header.owner, header.key)
        version, epoch = last.get(key, (-1, -1))
        if header.version is not None and header.version <= version:
            yield f"{txn_id} committed version {header.version} of {header.key} behind version {version}"
        if header.epoch < epoch:
            yield f"{txn_id} committed under epoch {header.epoch} of {header.key} behind one under epoch {epoch}"
        current = history.epoch_at(header.key, decision.revision)
        if current is not None and header.epoch != current:
            yield f"{txn_id} committed under epoch {header.epoch} of {header.key} when it was at {current}"
        last[key] = (version if header.version is None else header.version, header.epoch)
