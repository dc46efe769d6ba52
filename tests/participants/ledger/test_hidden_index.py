"""Goal: an index of hidden entries is read back as it was written for its ledger, and nothing else passes for one.

Method: round trips of generated indexes, every truncation and every flipped bit, what a writer gone wrong would make,
and the example of the format's page. DESIGN §5.6.
"""

from __future__ import annotations

import re
import zlib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metatxn.wire.ids import TxnId
from participants.ledger.hidden_index import (
    HiddenIndex,
    HiddenRanges,
    HiddenReason,
    HiddenTransaction,
    IndexDamaged,
    IndexTooNew,
)
from participants.ledger.local import LocalStorage
from participants.ledger.reading import checked_hidden
from participants.ledger.storage import LedgerTooNew
from tests.participants.ledger.ledgers import SEGMENT
from tests.participants.prefixes.steps import InPlace, MortalDisk, Steps

PAGE = Path(__file__).parents[3] / "docs" / "ledger-format.md"
EXAMPLE = HiddenIndex(
    3,
    40,
    (
        HiddenTransaction(TxnId(1, 42), HiddenReason.ABORTED, ((4, 6), (17, 17))),
        HiddenTransaction(TxnId(1, 43), HiddenReason.VOID_WRITERS, ((20, 20),)),
    ),
)


def ranges_of(bounds: set[int]) -> tuple[tuple[int, int], ...]:
    """Ranges that neither overlap nor touch."""
    ordered = sorted(bounds)
    found = [(first, last - 1) for first, last in pairwise(ordered)][::2]
    return tuple(found)


TRANSACTIONS = st.dictionaries(
    st.builds(TxnId, st.integers(0, 3), st.integers(1, 1 << 100)),
    st.tuples(st.sampled_from(HiddenReason), st.sets(st.integers(0, 1 << 63), min_size=2, max_size=8).map(ranges_of)),
    max_size=5,
)


@given(st.integers(0, 1 << 63), TRANSACTIONS)
def test_round_trip(ledger: int, found: dict[TxnId, tuple[HiddenReason, tuple[tuple[int, int], ...]]]) -> None:
    transactions = tuple(HiddenTransaction(txn_id, *found[txn_id]) for txn_id in sorted(found))
    index = HiddenIndex(ledger, 1 << 63, transactions)
    assert HiddenIndex.decode(index.encode(), ledger, 1 << 63) == index


@given(st.sets(st.integers(0, 60)))
def test_an_entry_is_hidden_if_and_only_if_a_range_has_it(hidden: set[int]) -> None:
    ranges = HiddenRanges((entry, entry) for entry in hidden)
    assert {entry for entry in range(70) if entry in ranges} == hidden
    assert ranges.size_bytes <= HiddenRanges((2 * entry, 2 * entry) for entry in range(len(hidden))).size_bytes


def test_the_example_of_the_page() -> None:
    block = re.search(r"## The index of hidden entries.*?```hex\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    raw = b"".join(bytes.fromhex(line[:50]) for line in block[1].splitlines())
    assert f"{len(raw)} bytes" in block[0]
    assert EXAMPLE.encode() == raw
    assert HiddenIndex.decode(raw, 3, 40) == EXAMPLE
    assert [entry for entry in range(40) if entry in EXAMPLE.ranges] == [4, 5, 6, 17, 20]


def test_every_truncation_and_every_flipped_bit_is_refused() -> None:
    raw = EXAMPLE.encode()
    damaged = [raw[:size] for size in range(len(raw))] + [raw + b"\0"]
    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for content in damaged:
        with pytest.raises(IndexDamaged):
            HiddenIndex.decode(content, 3, 40)


def test_the_index_of_another_ledger_is_refused() -> None:
    for ledger, entries in [(4, 40), (3, 41)]:
        with pytest.raises(IndexDamaged, match="of ledger 3 with 40 entries"):
            HiddenIndex.decode(EXAMPLE.encode(), ledger, entries)


def resealed(raw: bytes, at: int, byte: int) -> bytes:
    """With one byte replaced and a CRC that fits, as only a writer gone wrong would make it."""
    changed = raw[12:at] + bytes([byte]) + raw[at + 1 :]
    return raw[:8] + zlib.crc32(changed).to_bytes(4, "little") + changed


@pytest.mark.parametrize(
    ("at", "byte", "why"),
    [
        (12, 0, "version 0 has never been written"),
        (29, 1, "something follows"),
        (29, 3, "unpack_from requires"),
        (49, 2, "not a valid HiddenReason"),
        (50, 9, "ends too early"),
        (62, 40, "not in order"),
        (48, 0x2C, "not in order"),
        (107, 21, "does not have"),
        (115, 40, "does not have"),
    ],
)
def test_what_fits_its_crc_and_makes_no_sense_is_refused(at: int, byte: int, why: str) -> None:
    with pytest.raises(IndexDamaged, match=why):
        HiddenIndex.decode(resealed(EXAMPLE.encode(), at, byte), 3, 40)


def test_the_index_of_a_later_release_is_not_called_damaged() -> None:
    newer = resealed(EXAMPLE.encode(), 12, 2)
    with pytest.raises(IndexTooNew, match="its version is 2, and this release knows 1"):
        HiddenIndex.decode(newer, 3, 40)
    with pytest.raises(LedgerTooNew, match="hidden entries of ledger 3 is of a later release"):
        checked_hidden(newer, 3, 40)


async def test_an_index_is_durable_when_it_is_written(tmp_path: Path) -> None:
    """The file and its name, in this order."""
    steps = Steps()
    async with LocalStorage.open(tmp_path, disk=MortalDisk(steps), executor=InPlace()) as storage:
        await (await storage.create(SEGMENT, 3)).seal()
        steps.arm(None)
        await storage.write_hidden(SEGMENT, 7, EXAMPLE)
        steps.disarm()
    name = "00000000000000000003.hidden.7"
    assert steps.trace == [f"create {name}.tmp", "write", "fsync", f"rename to {name}", "fsync of a directory"]
