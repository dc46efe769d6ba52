"""The definition of a law, and how laws read keys, values and other records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from metastore.keys import NUMBER_DIGITS, unescape
from metastore.txn.records.json_record import JsonRecord
from metastore.txn.records.operations import AckOp, OffsetOp, WriteOp, decode_op
from metastore.types import Record, Snapshot
from metatxn.wire.ids import TxnId

POSITION = re.compile(r"\d+:-?\d+", re.ASCII)
PLACE = re.compile(r"(\d+):(\d+):(\d+)", re.ASCII)
_NUMBER = re.compile(rf"\d{{{NUMBER_DIGITS}}}", re.ASCII)

J = TypeVar("J", bound=JsonRecord)


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation: the record, what is wrong with it, and what to do about it."""

    key: str
    problem: str
    action: str


class UnreadableError(Exception):
    """A value cannot be decoded. That is a finding at its own key, and disables the laws that need the value."""

    def __init__(self, key: str, why: Exception) -> None:
        super().__init__(_first_line(why))
        self.key = key


def _first_line(why: Exception) -> str:
    if isinstance(why, ValidationError):
        first = why.errors()[0]
        field = ".".join(map(str, first["loc"]))
        return f"{field}: {first['msg']}" if field else first["msg"]
    return str(why).partition("\n")[0]


class MalformedKeyError(Exception):
    """A key does not have the form that its prefix requires."""


class View:
    """The records read so far; it remembers what else was requested since `begin`."""

    def __init__(self, records: Mapping[str, Record | None]) -> None:
        self._records = dict(records)
        self.begin()

    def begin(self) -> None:
        self.asked: set[str] = set()
        self.unread: set[str] = set()

    def add(self, snapshot: Snapshot) -> None:
        self._records.update(snapshot.records)

    def get(self, key: str) -> Record | None:
        self.asked.add(key)
        if key not in self._records:
            self.unread.add(key)
        return self._records.get(key)

    def decode(self, kind: type[J], key: str) -> J | None:
        record = self.get(key)
        return None if record is None else decoded(record, kind.decode)

    def op(self, key: str) -> WriteOp | AckOp | OffsetOp | None:
        record = self.get(key)
        return None if record is None else decoded(record, decode_op)


Problems = Iterator[tuple[str, str]]
Law = Callable[[Record, View], Problems]
D = TypeVar("D")


def decoded(record: Record, decode: Callable[[bytes], D]) -> D:
    try:
        return decode(record.value)
    except ValueError as error:
        raise UnreadableError(record.key, error) from error


def parsed_key(key: str, parse: Callable[[], D], build: Callable[[D], str]) -> D:
    """The parts of a key; building the key from them again must give the same key."""
    try:
        found = parse()
        again = build(found)
    except (ValueError, AssertionError) as error:
        raise MalformedKeyError(str(error) or "a number is out of range") from error
    if again != key:
        raise MalformedKeyError(f"expected {again}")
    return found


def txn_of(key: str, prefix: str) -> TxnId:
    return parsed_key(key, lambda: TxnId.parse(key.removeprefix(prefix)), lambda txn_id: f"{prefix}{txn_id}")


def parsed_number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is not a number of {NUMBER_DIGITS} digits")
    return int(text)


def named(key: str, build: Callable[[str], str]) -> str:
    return parsed_key(key, lambda: unescape(key.rpartition("/")[2]), build)
