"""The options of `.format("metatxn")`: one table, checked on the driver before anything runs.

An option that is unknown, missing, malformed, contradictory, or that belongs to the other direction raises an
`OptionError`, whose one line names the option and lists the valid ones. Nothing is ignored silently. Names are
case-insensitive.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from metatxn.wire.broker import Isolation
from metatxn.wire.record_batches import Codec
from spark_connector.clients import ServiceAddress
from spark_connector.places import is_place

BATCH_TIMEOUT_MS = 600_000
"""The timeout of a batch write. Its tasks keep the transaction alive; whatever happens before them must not take
longer."""
MICRO_BATCH_TIMEOUT_MS = 120_000
"""The timeout of a micro-batch, whose tasks begin the transaction and keep it alive. If all of them fail, Spark's
driver never learns which transaction they were in, so it stays open for this long."""
MAX_TIMEOUT_MS = 86_400_000
COMMITTED_PREFIX = "committed:"
"""A `txnId` with this prefix names a batch that was already committed: writers consume their rows and send none."""
TOPIC_COLUMN = "topic"

Direction = Literal["read", "write"]
Mode = Literal["batch", "streaming"]
Offsets = Literal["earliest", "latest"] | dict[str, str] | datetime
"""`earliest` (everything), `latest` (nothing), a time, or, for each topic or segment, `earliest`, `latest` or a place
`ledger:entry`."""

WRITE_OPTIONS = (
    "url",
    "topic",
    "keyColumn",
    "txnAppId",
    "transactionTimeoutMs",
    "txnId",
    "ackSubscription",
    "compression",
    "token",
    "ca",
    "listener",
)
READ_OPTIONS = (
    "url",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "isolation",
    "revision",
    "includeMetadata",
    "pushFilters",
    "token",
    "ca",
    "listener",
)
BY_DIRECTION: dict[Direction, tuple[str, ...]] = {"write": WRITE_OPTIONS, "read": READ_OPTIONS}
SPELLING = {name.lower(): name for name in (*WRITE_OPTIONS, *READ_OPTIONS)}

SPARK_STREAMING_KEYS = {"checkpointlocation", "queryname"}
"""Spark passes its own options of a streaming query together with ours."""
SPARK_TABLE_KEYS = {"provider", "owner", "comment", "external", "is_managed_location", "location", "collation"}
"""`CREATE TABLE … USING` passes the table's properties, and every option a second time as `option.<name>`."""


class OptionError(ValueError):
    """One line that says which option is wrong and why, and which options are valid here."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write. If `topic` is None, rows are routed by the column `topic`. If `txn_id` is None, the write
    has a transaction of its own. `checkpoint` is Spark's, and is given whenever `ack_subscription` is."""

    service: ServiceAddress
    topic: str | None = None
    key_column: str | None = None
    app_id: str | None = None
    timeout_ms: int = BATCH_TIMEOUT_MS
    txn_id: str | None = None
    ack_subscription: str | None = None
    checkpoint: str | None = None
    compression: Codec | None = None

    @property
    def already_committed(self) -> bool:
        return self.txn_id is not None and self.txn_id.startswith(COMMITTED_PREFIX)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Exactly one of `topics` and `pattern` is given. If `max_rows` is None, a micro-batch is not limited."""

    service: ServiceAddress
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    isolation: Isolation = "read_committed"
    revision: int | None = None
    include_metadata: bool = False
    push_filters: bool = False
    starting: Offsets = "earliest"
    ending: Offsets = "latest"
    max_rows: int | None = None
    fail_on_data_loss: bool = True


def write_options(given: Mapping[str, str], mode: Mode) -> WriteOptions:
    values = _Values(given, "write", mode)
    if mode == "streaming":
        values.refuse("txnId", "a streaming write has a transaction of its own for every micro-batch")
        if values.get("ackSubscription") is not None and values.get("checkpointLocation") is None:
            raise values.error(
                "option ackSubscription needs option checkpointLocation, where Spark records what it read"
            )
    else:
        values.refuse("ackSubscription", "only a streaming query knows its input; use batch_transaction")
        values.refuse("txnAppId", "a batch write has no batch id; use spark_connector.batch_transaction and txnId")
    if values.get("txnId") is not None:
        values.refuse("transactionTimeoutMs", "the timeout was chosen when the transaction of txnId began")
    return WriteOptions(
        service=values.service(),
        topic=values.get("topic"),
        key_column=values.get("keyColumn"),
        app_id=values.parsed("txnAppId"),
        timeout_ms=values.parsed("transactionTimeoutMs")
        or (MICRO_BATCH_TIMEOUT_MS if mode == "streaming" else BATCH_TIMEOUT_MS),
        txn_id=values.parsed("txnId"),
        ack_subscription=values.get("ackSubscription"),
        compression=values.parsed("compression"),
        checkpoint=values.get("checkpointLocation"),
    )


def read_options(given: Mapping[str, str], mode: Mode | None) -> ReadOptions:
    """The options of a read. `mode` is None for a DataFrame that may still become either, while its schema is
    requested."""
    values = _Values(given, "read", mode)
    if mode == "streaming":
        values.refuse("endingOffsets", "a streaming read has no end")
        values.refuse("endingTimestamp", "a streaming read has no end")
        values.refuse("revision", "a streaming read is not a snapshot")
        values.refuse("pushFilters", "Spark pushes no filters into streaming reads")
        if (values.get("isolation") or "").lower() == "snapshot":
            raise values.error("option isolation=snapshot contradicts a streaming read: a streaming read has no end")
    elif mode == "batch":
        values.refuse("maxOffsetsPerTrigger", "it limits the micro-batches of a streaming read")
    topics = values.parsed("subscribe") or ()
    pattern = values.parsed("subscribePattern")
    if not topics and pattern is None:
        raise values.error("missing option subscribe (or subscribePattern)")
    if topics and pattern is not None:
        raise values.error("options subscribe and subscribePattern contradict each other; give one of them")
    isolation: Isolation = values.parsed("isolation") or "read_committed"
    revision = values.parsed("revision")
    if revision is not None and isolation != "snapshot":
        raise values.error(f"option revision needs isolation=snapshot, not {isolation}")
    starting: Offsets = values.one_of("startingOffsets", "startingTimestamp") or "earliest"
    ending: Offsets = values.one_of("endingOffsets", "endingTimestamp") or "latest"
    if mode == "batch" and starting == "latest":
        raise values.error("option startingOffsets=latest contradicts a batch read: nothing follows it")
    if ending == "earliest":
        raise values.error("option endingOffsets=earliest leaves nothing to read")
    if ending != "latest" and isolation == "snapshot":
        named = "endingOffsets" if values.get("endingOffsets") is not None else "endingTimestamp"
        raise values.error(f"option {named} contradicts isolation=snapshot, which ends at its revision")
    include_metadata = values.parsed("includeMetadata") or False
    push_filters = values.parsed("pushFilters") or False
    if push_filters and not include_metadata:
        raise values.error("option pushFilters needs includeMetadata=true: only filters on metadata columns are pushed")
    return ReadOptions(
        service=values.service(),
        topics=topics,
        pattern=pattern,
        isolation=isolation,
        revision=revision,
        include_metadata=include_metadata,
        push_filters=push_filters,
        starting=starting,
        ending=ending,
        max_rows=values.parsed("maxOffsetsPerTrigger"),
        fail_on_data_loss=values.parsed("failOnDataLoss") is not False,
    )


def check_option_values(given: Mapping[str, str]) -> None:
    """Check what the options alone show, before Spark has said what they are for: names and values. Raises
    `OptionError`, at the line of the user's program that builds the read or starts the write."""
    options = own_options(given)
    theirs = {each: {name.lower() for name in names} for each, names in BY_DIRECTION.items()}
    possible = [each for each in theirs if not options.keys() & (SPELLING.keys() - theirs[each])] or list(theirs)
    for name in options:
        if name not in SPELLING and name not in SPARK_STREAMING_KEYS:
            raise OptionError(f"Unknown option {name}; {'; '.join(map(_valid, possible))}.")
    direction = possible[0]
    values = _Values({name: value for name, value in options.items() if name in theirs[direction]}, direction, None)
    for name in BY_DIRECTION[direction]:
        values.parsed(name)


def direction_of(given: Mapping[str, str]) -> Direction:
    """The direction of a table or view, according to its options alone: `topic` means write, `subscribe` means read."""
    names = {name.lower() for name in given}
    writes, reads = "topic" in names, bool(names & {"subscribe", "subscribepattern"})
    if writes and reads:
        raise OptionError(
            "Options topic (write) and subscribe (read) contradict each other: make one table or view for each "
            f"direction; {_valid('write')}; {_valid('read')}."
        )
    return "write" if writes else "read"


def own_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options without those that Spark adds when it creates a table."""
    lowered = {name.lower(): value for name, value in given.items()}
    if "provider" not in lowered:
        return lowered
    return {
        name: value
        for name, value in lowered.items()
        if name not in SPARK_TABLE_KEYS and not name.startswith("option.")
    }


class _Values:
    """Looks up options, and describes what is wrong with them."""

    def __init__(self, given: Mapping[str, str], direction: Direction, mode: Mode | None) -> None:
        self._direction: Direction = direction
        self._mode = mode
        self._given = {name.lower(): value for name, value in given.items()}
        valid = {name.lower() for name in BY_DIRECTION[direction]}
        for name in self._given:
            if name in valid or (mode != "batch" and name in SPARK_STREAMING_KEYS):
                continue
            if name in SPELLING:
                other = "read" if direction == "write" else "write"
                raise self.error(f"option {SPELLING[name]} is a {other} option, and this is a {direction}")
            raise self.error(f"unknown option {name}")

    def error(self, problem: str) -> OptionError:
        return OptionError(f"{problem[0].upper()}{problem[1:]}; {_valid(self._direction)}.")

    def get(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        if value is not None and not value.strip():
            raise self.error(f"option {name} is empty")
        return value

    def parsed(self, name: str) -> Any:
        """The parsed value, or None if the option is not given."""
        value = self.get(name)
        if value is None:
            return None
        try:
            return _PARSERS[name](value)
        except ValueError as error:
            raise self.error(f"option {name}={value!r} {error}") from None

    def one_of(self, name: str, other: str) -> Any:
        """The parsed value of the option that is given, or None."""
        if self.get(name) is not None and self.get(other) is not None:
            raise self.error(f"options {name} and {other} contradict each other; give one of them")
        return self.parsed(name) or self.parsed(other)

    def service(self) -> ServiceAddress:
        url = self.parsed("url")
        if url is None:
            raise self.error("missing option url")
        # The token is looked up on the driver, because executors need not have the variable.
        token = self.get("token") or os.environ.get("METATXN_TOKEN") or None
        return ServiceAddress(url, token, self.parsed("ca"), self.parsed("listener"))

    def refuse(self, name: str, because: str) -> None:
        if self.get(name) is not None:
            raise self.error(f"option {name} contradicts a {self._mode} {self._direction}: {because}")


def _valid(direction: Direction) -> str:
    return f"valid {direction} options are {', '.join(BY_DIRECTION[direction])}"


def application_id(value: str) -> str:
    if "&" in value or len(value) > 512 or any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in value):
        raise ValueError("must have at most 512 characters, no '&' and no control characters")
    return value


def timeout_ms_in_range(value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= MAX_TIMEOUT_MS:
        raise ValueError(f"must be milliseconds, 1 to {MAX_TIMEOUT_MS}")
    return int(value)


def _url(value: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+/?", value):
        raise ValueError("must look like http://host:port, the URL of any coordinator or broker")
    return value.rstrip("/")


def _txn_id(value: str) -> str:
    if not value.startswith(COMMITTED_PREFIX) and not re.fullmatch(r"[0-9a-f]{32}", value):
        raise ValueError("must be a transaction id of 32 hexadecimal digits, as in Transaction.id")
    return value


def _topics(value: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    if not all(topics):
        raise ValueError("must be topic names separated by commas")
    return topics


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"must be a regular expression ({error})") from None
    return value


def _codec(text: str) -> Codec | None:
    codecs = {codec: codec for codec in get_args(Codec)}
    if text.lower() != "none" and text.lower() not in codecs:
        raise ValueError(f"must be one of none, {', '.join(codecs)}")
    return codecs.get(text.lower())


def _isolation(value: str) -> Isolation:
    for isolation in get_args(Isolation):
        if value.lower() == isolation:
            return isolation  # type: ignore[no-any-return]
    raise ValueError(f"must be one of {', '.join(get_args(Isolation))}")


def _offsets(value: str) -> Offsets:
    if value.lower() == "earliest":
        return "earliest"
    if value.lower() == "latest":
        return "latest"
    try:
        given = json.loads(value)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not given:
        raise ValueError("must be earliest, latest, or JSON such as " + _OFFSETS_EXAMPLE)
    for name, place in given.items():
        by_name = place in ("earliest", "latest")
        if not by_name and not (name.startswith("segment://") and isinstance(place, str) and is_place(place)):
            raise ValueError(f"has {place!r} for {name!r}; it must be JSON such as {_OFFSETS_EXAMPLE}")
    return given


def _timestamp(value: str) -> datetime:
    """Milliseconds since 1970, as Spark's source for Kafka takes them, or RFC 3339."""
    try:
        if value.isascii() and value.isdigit():
            return datetime.fromtimestamp(int(value) / 1000, UTC)
        found = datetime.fromisoformat(value)
    except (ValueError, OverflowError, OSError):
        found = None
    if found is None or found.tzinfo is None:
        raise ValueError("must be a time such as 2026-11-22T10:00:00Z, or milliseconds since 1970")
    return found


_OFFSETS_EXAMPLE = '{"orders": "latest", "segment://public/default/audit/0000-ffff-0": "3:17"}'


def _row_count(value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) < 2**53:
        raise ValueError("must be a number of rows, at least 1")
    return int(value)


def _certificates(value: str) -> str:
    if not Path(value).is_file():
        raise ValueError("is not a file; it must be a PEM file of certificates, at this path on every machine")
    return value


def _revision(value: str) -> int:
    if not value.isascii() or not value.isdigit():
        raise ValueError("must be a store revision, a number")
    return int(value)


def _boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return value.lower() == "true"


_PARSERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys((*WRITE_OPTIONS, *READ_OPTIONS), str),
    "url": _url,
    "ca": _certificates,
    "txnAppId": application_id,
    "transactionTimeoutMs": timeout_ms_in_range,
    "txnId": _txn_id,
    "subscribe": _topics,
    "subscribePattern": _pattern,
    "compression": _codec,
    "isolation": _isolation,
    "revision": _revision,
    "startingOffsets": _offsets,
    "endingOffsets": _offsets,
    "startingTimestamp": _timestamp,
    "endingTimestamp": _timestamp,
    "includeMetadata": _boolean,
    "pushFilters": _boolean,
    "maxOffsetsPerTrigger": _row_count,
    "failOnDataLoss": _boolean,
}
