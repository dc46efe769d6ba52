"""Goal: entries of Pulsar's clients are read whatever their compression, and damage is told, not raised.

Method: entries as the V5 client has sent them are read in `tests/gateways/pulsar`; here ours, by protobuf itself, and
broken ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metatxn.wire.pulsar_entries import (
    MAX_UNPACKED_BYTES,
    PulsarMessage,
    decode_pulsar,
    delivery_time_of,
    pulsar_bodies,
    unpacked_entry_bytes,
)
from tests.gateways.pulsar.client import batch, entry

_PROPERTIES = [{"key": "a", "value": "b"}, {"key": "ü", "value": ""}]


def _by(codec: str) -> Callable[[bytes], bytes]:
    return lambda data: pa.Codec(codec).compress(data, asbytes=True)  # type: ignore[arg-type]


COMPRESSIONS: dict[int, Callable[[bytes], bytes] | None] = {
    0: None,
    1: _by("lz4_raw"),
    2: zlib.compress,
    3: _by("zstd"),
    4: _by("snappy"),
}


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_messages_are_read_as_they_were_sent(compression: int) -> None:
    compress = COMPRESSIONS[compression]
    sent = batch({"k": b"v" * 300, "ü": b""}, compress, compression)
    assert decode_pulsar(sent) == [PulsarMessage("k", b"v" * 300), PulsarMessage("ü", b"")]
    value = b"v" * 300
    sent = entry(
        compress(value) if compress else value,
        compression=compression,
        uncompressed_size=300,
        properties=_PROPERTIES,
    )
    assert decode_pulsar(sent) == [PulsarMessage(None, value, (("a", "b"), ("ü", "")))]
    assert unpacked_entry_bytes(sent) == len(sent) + (300 if compress else 0)
    assert unpacked_entry_bytes(sent[:20]) == 20


@pytest.mark.parametrize(("sent", "found"), [(1_700_000_000_000, 1_700_000_000_000), (-1, None), (0, None)])
def test_all_messages_of_an_entry_have_its_delivery_time(sent: int, found: int | None) -> None:
    for made in (batch({"k": b"a", "l": b"b"}, deliver_at_time=sent), entry(b"v", deliver_at_time=sent)):
        messages = decode_pulsar(made)
        assert {each.deliver_at_ms for each in messages} == {found} == {delivery_time_of(made)}
        assert {each.body().get("deliver_at_ms") for each in messages} == {found}
    assert delivery_time_of(made[:20]) is None


def test_a_value_is_null_json_or_bytes() -> None:
    json_type = [{"key": "content-type", "value": "application/json"}]
    sent = [
        entry(b"", null_value=True),
        entry(b'{"a":1}', properties=json_type),
        entry(b"{", properties=json_type),
        entry(b"{}"),
    ]
    bodies = [pulsar_bodies(each, 1)[0] for each in sent]
    assert [(each.get("value"), each.get("raw")) for each in bodies] == [
        (None, None),
        ({"a": 1}, None),
        (None, b"{"),
        (None, b"{}"),
    ]
    assert "value" in bodies[0] and "value" not in bodies[2]


def test_a_key_of_bytes_is_shown_as_text() -> None:
    sent = entry(b"", "cOxy")
    assert decode_pulsar(sent)[0].key == "cOxy"
    assert decode_pulsar(_with_field(sent, b"\x88\x01\x01"))[0].key == "p\\xecr"


def _with_field(sent: bytes, field: bytes) -> bytes:
    """An entry without a payload, with a field more in its metadata, which the gateway does not know."""
    return sent[:6] + (int.from_bytes(sent[6:10]) + len(field)).to_bytes(4) + sent[10:] + field


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (entry(b"")[:8], "cannot be read"),
        (_with_field(entry(b""), b"\x6a\x00"), "encrypted"),
        (entry(b"x", num_chunks_from_msg=3), "part 1 of 3"),
        (entry(b"x", compression=7), "compression 7 is unknown"),
        (entry(b"x", compression=2, uncompressed_size=1), "its size is not"),
        (entry(b"x", compression=3, uncompressed_size=MAX_UNPACKED_BYTES + 1), "more than"),
        (batch([b"a", b"b"], num_messages_in_batch=3), "cannot be read"),
        (batch([b"a", b"b"], num_messages_in_batch=1), "follows the last"),
    ],
)
def test_what_cannot_be_read_says_why(broken: bytes, why: str) -> None:
    bodies = pulsar_bodies(broken, 2)
    assert len(bodies) == 2 and all(each["value"] is None for each in bodies)
    assert why in bodies[0]["properties"]["metatxn.unreadable"]


@pytest.mark.parametrize("compression", [1, 3, 4])
def test_no_memory_is_shown_behind_a_payload_that_is_too_small(compression: int) -> None:
    compress = COMPRESSIONS[compression]
    assert compress is not None
    value = b"v" * 300
    for size in (299, 301, 5000):
        with pytest.raises(ValueError, match=r"fewer than|cannot be read|must be 300"):
            decode_pulsar(entry(compress(value), compression=compression, uncompressed_size=size))


def test_a_batch_counts_as_it_says() -> None:
    assert "counts as 3" in pulsar_bodies(batch([b"a", b"b"]), 3)[0]["properties"]["metatxn.unreadable"]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 200), st.integers(0, 255), st.sampled_from([0, 1, 2, 3, 4]))
def test_damage_is_told_and_not_raised(at: int, byte: int, compression: int) -> None:
    damaged = bytearray(batch({"k": b"v" * 30, "l": b"w"}, COMPRESSIONS[compression], compression))
    damaged[at % len(damaged)] = byte
    assert len(pulsar_bodies(bytes(damaged), 2)) == 2
