"""Pulsar's names of topics and segments. Segments have the same ids in both worlds."""

from __future__ import annotations

from metatxn.wire.ids import TxnId
from metatxn.wire.names import SegmentParts, topic_name
from metatxn.wire.position import Position
from metatxn_gateways.pulsar.codes import PulsarCode, PulsarError

COORDINATOR = 0
"""The transaction coordinator that clients see. Any broker answers for it."""
_DOMAINS = ("topic", "persistent")


def own_topic(name: str) -> str:
    """Our name for the topic `topic://tenant/namespace/topic`. Raises `PulsarError`."""
    domain, found, rest = name.rpartition("://")
    if found and domain not in _DOMAINS:
        raise PulsarError(PulsarCode.INVALID_TOPIC_NAME, f"{name} is not a topic of the domain topic or persistent")
    try:
        return topic_name(rest)
    except ValueError as error:
        raise PulsarError(PulsarCode.INVALID_TOPIC_NAME, f"{name}: {error}") from None


def named_topic(name: str) -> str:
    """Our name for a topic that a client names, or for that of a segment. Raises `PulsarError`."""
    return segment_parts(name).topic if is_segment(name) else own_topic(name)


def is_segment(name: str) -> bool:
    return name.startswith("segment://")


def scalable_topic(own: str) -> str:
    return f"topic://{own}"


def segment_parts(name: str) -> SegmentParts:
    """The parts of a segment's name, which is also its id. Raises `PulsarError`."""
    try:
        return SegmentParts.parse(name)
    except ValueError:
        message = f"{name} is not a segment: clients are expected to read and write segment://…"
        raise PulsarError(PulsarCode.INVALID_TOPIC_NAME, message) from None


def message_id(position: Position) -> dict[str, int]:
    return {"ledger_id": position.ledger, "entry_id": position.entry}


def txn_id_of(most: int, least: int) -> TxnId | None:
    """The id of a transaction, from the two numbers of 64 bits that clients have; None for one that was not begun
    here. The first one is the number of their coordinator."""
    return TxnId(COORDINATOR, least) if most == COORDINATOR else None
