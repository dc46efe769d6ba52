"""The options of `.format("metatxn")`: one table, checked on the driver before anything runs.

An option that is unknown, missing, malformed, contradictory, or belongs to the other direction is an `OptionError`
whose one line names it and lists the valid ones. Nothing is ignored silently. Names are case-insensitive.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

DEFAULT_TIMEOUT_MS = 600_000
"""Longer than a batch usually takes; a longer one keeps its transaction alive."""
MAX_TIMEOUT_MS = 86_400_000
COMMITTED_PREFIX = "committed:"
"""A `txnId` that starts so names a batch that was committed earlier: writers drain their rows and send none."""
TOPIC_COLUMN = "topic"

T = TypeVar("T")
Direction = Literal["read", "write"]
Mode = Literal["batch", "streaming"]
Isolation = Literal["read_committed", "read_uncommitted", "snapshot"]

WRITE_OPTIONS = ("url", "topic", "keyColumn", "txnAppId", "transactionTimeoutMs", "txnId", "ackSubscription", "token")
READ_OPTIONS = (
    "url",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "isolation",
    "revision",
    "includeMetadata",
    "token",
)
BY_DIRECTION: dict[Direction, tuple[str, ...]] = {"write": WRITE_OPTIONS, "read": READ_OPTIONS}
SPELLING = {name.lower(): name for name in (*WRITE_OPTIONS, *READ_OPTIONS)}

SPARK_STREAMING_KEYS = {"checkpointlocation", "queryname"}
"""Spark hands its own options of a streaming query over with ours."""
SPARK_TABLE_KEYS = {"provider", "owner", "comment", "external", "is_managed_location", "location", "collation"}
"""`CREATE TABLE … USING` hands over the table's properties, and every option a second time as `option.<name>`."""


class OptionError(ValueError):
    """One line: which option, what is wrong with it, and which options are valid here."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """`topic` None: rows are routed by the column `topic`. `txn_id` None: the write has a transaction of its own."""

    url: str
    token: str | None = None
    topic: str | None = None
    key_column: str | None = None
    app_id: str | None = None
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    txn_id: str | None = None

    @property
    def already_committed(self) -> bool:
        return self.txn_id is not None and self.txn_id.startswith(COMMITTED_PREFIX)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Exactly one of `topics` and `pattern` is given."""

    url: str
    token: str | None = None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    isolation: Isolation = "read_committed"
    revision: int | None = None
    include_metadata: bool = False


def write_options(given: Mapping[str, str], mode: Mode) -> WriteOptions:
    values = _Values(given, "write", mode)
    values.not_yet("ackSubscription")
    if mode == "streaming":
        values.refuse("txnId", "a streaming write has a transaction of its own for every micro-batch")
    else:
        values.refuse("txnAppId", "a batch write has no batch id; use spark_connector.batch_transaction and txnId")
    if values.get("txnId") is not None:
        values.refuse("transactionTimeoutMs", "whoever began the transaction of txnId chose its timeout")
    return WriteOptions(
        url=values.url(),
        token=values.token(),
        topic=values.get("topic"),
        key_column=values.get("keyColumn"),
        app_id=values.parsed("txnAppId", application_id),
        timeout_ms=values.parsed("transactionTimeoutMs", timeout_ms_in_range) or DEFAULT_TIMEOUT_MS,
        txn_id=values.parsed("txnId", _txn_id),
    )


def read_options(given: Mapping[str, str], mode: Mode) -> ReadOptions:
    values = _Values(given, "read", mode)
    if mode == "streaming":
        raise OptionError(f"Streaming reads of format metatxn are not available yet; {_valid('read')}.")
    values.not_yet("maxOffsetsPerTrigger")
    values.only("startingOffsets", "earliest")
    values.only("endingOffsets", "latest")
    values.only("failOnDataLoss", "true")
    topics = values.parsed("subscribe", _topics) or ()
    pattern = values.parsed("subscribePattern", _pattern)
    if not topics and pattern is None:
        raise values.error("missing option subscribe (or subscribePattern)")
    if topics and pattern is not None:
        raise values.error("options subscribe and subscribePattern contradict each other, give one")
    isolation = values.parsed("isolation", _isolation) or "read_committed"
    revision = values.parsed("revision", _revision)
    if revision is not None and isolation != "snapshot":
        raise values.error(f"option revision needs isolation=snapshot, not {isolation}")
    return ReadOptions(
        url=values.url(),
        token=values.token(),
        topics=topics,
        pattern=pattern,
        isolation=isolation,
        revision=revision,
        include_metadata=values.parsed("includeMetadata", _boolean) or False,
    )


def direction_of(given: Mapping[str, str]) -> Direction:
    """What a table or view is for, seen from its options alone: `topic` writes, `subscribe` reads."""
    names = {name.lower() for name in given}
    writes, reads = "topic" in names, bool(names & {"subscribe", "subscribepattern"})
    if writes and reads:
        raise OptionError(
            "Options topic (write) and subscribe (read) contradict each other: make one table or view for each "
            f"direction; {_valid('write')}; {_valid('read')}."
        )
    return "write" if writes else "read"


def own_options(given: Mapping[str, str]) -> dict[str, str]:
    """Without what Spark adds when it creates a table."""
    lowered = {name.lower(): value for name, value in given.items()}
    if "provider" not in lowered:
        return lowered
    return {
        name: value
        for name, value in lowered.items()
        if name not in SPARK_TABLE_KEYS and not name.startswith("option.")
    }


class _Values:
    """Looks options up, and words what is wrong with them."""

    def __init__(self, given: Mapping[str, str], direction: Direction, mode: Mode) -> None:
        self._direction: Direction = direction
        self._mode = mode
        self._given = {name.lower(): value for name, value in given.items()}
        valid = {name.lower() for name in BY_DIRECTION[direction]}
        for name in self._given:
            if name in valid or (mode == "streaming" and name in SPARK_STREAMING_KEYS):
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

    def parsed(self, name: str, parse: Callable[[str], T]) -> T | None:
        value = self.get(name)
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise self.error(f"option {name}={value!r} {error}") from None

    def url(self) -> str:
        url = self.parsed("url", _url)
        if url is None:
            raise self.error("missing option url")
        return url

    def token(self) -> str | None:
        # Read on the driver: executors need not have the variable.
        return self.get("token") or os.environ.get("METATXN_TOKEN") or None

    def refuse(self, name: str, because: str) -> None:
        if self.get(name) is not None:
            raise self.error(f"option {name} contradicts a {self._mode} {self._direction}: {because}")

    def not_yet(self, name: str) -> None:
        if self.get(name) is not None:
            raise self.error(f"option {name} is not available yet")

    def only(self, name: str, value: str) -> None:
        if (given := self.get(name)) is not None and given.lower() != value:
            raise self.error(
                f"option {name}={given!r} is not available yet for a {self._mode} {self._direction}, only {value!r} is"
            )


def _valid(direction: Direction) -> str:
    return f"valid {direction} options are {', '.join(BY_DIRECTION[direction])}"


def application_id(value: str) -> str:
    if "&" in value or len(value) > 512 or any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in value):
        raise ValueError("must hold at most 512 characters, no '&' and no control characters")
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
        raise ValueError("must be a transaction id of 32 hex digits, as Transaction.id gives it")
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


def _isolation(value: str) -> Isolation:
    for isolation in get_args(Isolation):
        if value.lower() == isolation:
            return isolation  # type: ignore[no-any-return]
    raise ValueError(f"must be one of {', '.join(get_args(Isolation))}")


def _revision(value: str) -> int:
    if not value.isascii() or not value.isdigit():
        raise ValueError("must be a store revision, a number")
    return int(value)


def _boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return value.lower() == "true"
