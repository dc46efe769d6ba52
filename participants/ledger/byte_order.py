"""Numbers in files have the same bytes on every machine."""

from __future__ import annotations

import sys
from array import array


def little_endian(numbers: array[int]) -> array[int]:
    """Numbers of this machine with their bytes in little-endian order, or such numbers as this machine has them."""
    if sys.byteorder == "little":
        return numbers
    swapped = array(numbers.typecode, numbers)
    swapped.byteswap()
    return swapped
