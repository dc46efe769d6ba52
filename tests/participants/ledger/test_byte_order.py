"""Goal: a ledger that was written on one machine can be read on any other."""

from __future__ import annotations

import struct
import sys
from array import array
from types import SimpleNamespace

import pytest

from participants.ledger import byte_order
from participants.ledger.byte_order import little_endian


def test_numbers_have_the_same_bytes_in_the_files_of_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = array("Q", [1, 300, 1 << 40])
    in_files = struct.pack("<3Q", *numbers)
    assert little_endian(numbers).tobytes() == in_files
    assert little_endian(array("Q", in_files)) == numbers
    # On a machine with the other byte order, the array of the same numbers has the bytes that this one has swapped.
    monkeypatch.setattr(byte_order, "sys", SimpleNamespace(byteorder={"little": "big", "big": "little"}[sys.byteorder]))
    there = array("Q", numbers)
    there.byteswap()
    kept = there[:]
    assert little_endian(there).tobytes() == in_files
    assert there == kept, "what the caller has stays as it is"
    assert little_endian(array("Q", in_files)) == there
