"""Goal: what a producer sends in a batch is what every reader gets, and damage is told, not raised.

Method: random messages there and back; batches that are broken, or that a careless client has made. What a broker
accepts and what it makes of batches is in `tests/participants/api/test_batches.py`.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metatxn.wire.batches import (
    JSON,
    MAX_DEPTH,
    UNREADABLE,
    PackedMessage,
    has_delivery_times,
    pack_batch,
    packed_message,
    unpack_batch,
)
from metatxn.wire.broker import MAX_TIME_MS
from metatxn.wire.record_batches import decode_columns, encoded_varint

PAGE = Path(__file__).parents[2] / "docs" / "ledger-format.md"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
TIMES_MS = st.none() | st.integers(0, MAX_TIME_MS)
MESSAGE = st.tuples(
    VALUES | st.binary(max_size=300), st.none() | TEXT, st.none() | st.dictionaries(TEXT, TEXT), TIMES_MS
)


def as_sent(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


@settings(deadline=None)
@given(st.lists(MESSAGE, min_size=1, max_size=70))
def test_messages_come_back_as_they_were_sent(
    messages: list[tuple[Any, str | None, dict[str, str] | None, int | None]],
) -> None:
    batch, count = pack_batch(packed_message(*message) for message in messages)
    found = unpack_batch(batch, count)
    assert [type(value) for value in found.values] == [type(value) for value, *_ in messages]
    assert list(zip(found.values, found.keys, found.properties, found.deliver_at_ms, strict=True)) == [
        (value, key, properties or None, time_ms) for value, key, properties, time_ms in messages
    ]
    assert has_delivery_times(batch) == any(message[3] is not None for message in messages)


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 8_190, 8_191, 8_192, 70_000, 3_000_000])
def test_every_length_has_its_number_of_bytes(size: int) -> None:
    batch, _ = pack_batch(
        [packed_message(b"x" * size, "k" * size, {"p" * size: "v" * size}), packed_message("y" * size, "", None)]
    )
    found = unpack_batch(batch, 2)
    assert found.values == [b"x" * size, "y" * size]
    assert found.keys == ["k" * size, ""]
    assert found.properties == [{"p" * size: "v" * size}, None]


def test_the_example_of_the_page() -> None:
    block = re.search(r"## Batches of messages.*?```hex\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    written = b"".join(bytes.fromhex(line[:50]) for line in block[1].splitlines())
    batch, count = pack_batch([packed_message({"id": 7}, "7", {"a": "b"}), packed_message(b"\xff\0", None, None)])
    assert (written, count) == (batch, 2)


def test_bytes_of_any_kind_are_bytes() -> None:
    batch, _ = pack_batch(packed_message(kind(b"ab"), None, None) for kind in (bytes, bytearray, memoryview))
    assert unpack_batch(batch, 3).values == [b"ab"] * 3


@pytest.mark.parametrize("value", [math.nan, math.inf, "\ud800", {"\ud800": 1}, object(), {1, 2}, b"x".hex])
def test_what_is_not_json_is_refused_before_it_is_sent(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        packed_message(value, None, None)


@pytest.mark.parametrize(
    ("key", "properties"), [("\ud800", None), (7, None), (None, {"a": 1}), (None, {"a": "\ud800"})]
)
def test_keys_and_properties_are_text(key: Any, properties: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        packed_message(1, key, properties)


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


CELLS = st.text() | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False)
FLAT = st.dictionaries(st.text(), CELLS)


@given(FLAT | st.dictionaries(st.text(), FLAT, max_size=3))
def test_both_encoders_of_json_give_the_same_bytes(value: dict[str, Any]) -> None:
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    assert packed_message(value, None, None)[1].removesuffix(b"\0").endswith(written)


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {"\ud800": 1}, {"a": math.nan}, {"a": math.inf}, {"a": {1}}])
def test_what_no_json_can_hold_is_refused_in_the_words_of_python(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        packed_message(value, None, None)
    with pytest.raises(type(refused.value), match=re.escape(str(refused.value))):
        json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def test_what_others_could_not_parse_is_refused() -> None:
    packed_message(nested(MAX_DEPTH), None, None)
    packed_message([[]] * 2 * MAX_DEPTH, None, None)
    with pytest.raises(ValueError, match="within each other"):
        packed_message(nested(MAX_DEPTH + 1), None, None)


def raw(flag: int, value: bytes, key: bytes = b"") -> PackedMessage:
    """As another client could write it."""
    return (bytes([flag, 0]), b"".join(encoded_varint(len(part)) + part for part in (key, value)) + b"\0")


def test_a_value_that_only_claims_to_be_json_is_bytes_and_the_others_stay_what_they_are() -> None:
    values = [b"1", b"not JSON", b'"x"', b"1,2", b"", b"[" * 5_000]
    batch, _ = pack_batch(raw(JSON, value) for value in values)
    assert unpack_batch(batch, 6).values == [1, b"not JSON", "x", b"1,2", b"", b"[" * 5_000]


def test_a_text_of_several_values_does_not_move_those_behind_it() -> None:
    """Together these are one list of JSON."""
    batch, _ = pack_batch(raw(JSON, value) for value in (b"1", b"2,3", b"4"))
    assert unpack_batch(batch, 3).values == [1, b"2,3", 4]


def test_a_key_that_is_not_utf_8_is_shown_with_escapes() -> None:
    batch, _ = pack_batch([raw(0, b"v", b"\xff")])
    assert unpack_batch(batch, 1).keys == ["\\xff"]


def test_a_batch_that_cannot_be_read_has_as_many_messages_as_it_counts() -> None:
    batch, _ = pack_batch([packed_message(n, str(n), {"p": "x"}) for n in range(3)])
    for broken, count in ((batch[:-1], 3), (batch, 4), (batch[:70], 2), (b"", 1)):
        keys, values, properties, times = unpack_batch(broken, count)
        assert list(keys) == list(values) == list(times) == [None] * count
        assert all(each is not None and UNREADABLE in each for each in properties)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 5), st.integers(0, 120))
def test_no_damage_raises_anything_or_reads_beyond_the_batch(noise: bytes, at: int, length: int) -> None:
    batch, _ = pack_batch(
        [packed_message("x" * length, "k" * length, None), packed_message({"a": 1}, None, {"p": "v"})]
    )
    damaged = batch[: 61 + at] + noise + batch[61 + at + len(noise) :]
    unpack_batch(damaged, 2)
    try:
        columns = decode_columns(damaged)
    except ValueError:
        return
    assert sum(len(part or b"") for part in (*columns.keys, *columns.values)) <= len(damaged)
