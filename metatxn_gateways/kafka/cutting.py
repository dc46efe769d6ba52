"""Reading and writing Kafka's primitive types in place. Numbers are big-endian.

From a *flexible* version on, lengths are unsigned variable-length numbers that are one higher, and every structure ends
in tagged fields.
"""

from __future__ import annotations

import struct

from metatxn_gateways.listener import MalformedRequest

_INT = {1: struct.Struct(">b"), 2: struct.Struct(">h"), 4: struct.Struct(">i"), 8: struct.Struct(">q")}


class Cutter:
    """Cuts a request. Raises `MalformedRequest`, and nothing else."""

    def __init__(self, view: memoryview, *, flexible: bool = False) -> None:
        self._view = view
        self._size = len(view)
        self.at = 0
        self.flexible = flexible

    def number(self, size: int) -> int:
        number: int = _INT[size].unpack_from(self._view, self._pass(size))[0]
        return number

    def length(self, size: int = 4) -> int | None:
        """The number of the bytes or items that follow, or None for null. `size` is that of the number in versions that
        are not flexible."""
        found = self.uvarint() - 1 if self.flexible else self.number(size)
        if found < -1:
            raise MalformedRequest(f"a length of {found}")
        return None if found == -1 else found

    def items(self) -> range:
        """A range with one number for each item of a list, which is empty for null."""
        found = self.length() or 0
        if found > self._size - self.at:
            raise MalformedRequest(f"a list of {found} items in {self._size - self.at} bytes")
        return range(found)

    def text(self) -> str | None:
        size = self.length(2)
        if size is None:
            return None
        try:
            return str(self._take(size), "utf-8")
        except UnicodeDecodeError:
            raise MalformedRequest("a text is not UTF-8") from None

    def name(self) -> str:
        found = self.text()
        if found is None:
            raise MalformedRequest("a name is null")
        return found

    def blob(self) -> memoryview | None:
        size = self.length()
        return None if size is None else self._take(size)

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._view[self._pass(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise MalformedRequest("a number is too long")

    def tags(self) -> None:
        """Skip the tagged fields at the end of a structure."""
        if self.flexible:
            for _ in range(self.uvarint()):
                self.uvarint()
                self._take(self.uvarint())

    @property
    def rest(self) -> memoryview:
        return self._view[self.at :]

    def _take(self, size: int) -> memoryview:
        begin = self._pass(size)
        return self._view[begin : self.at]

    def _pass(self, size: int) -> int:
        """Go on behind this many bytes; returns where they begin."""
        begin = self.at
        if begin + size > self._size:
            raise MalformedRequest("the request ends too early")
        self.at = begin + size
        return begin


class ReplyWriter:
    """Collects the parts of an answer. Blobs are not copied."""

    def __init__(self, *, flexible: bool) -> None:
        self.flexible = flexible
        self.parts: list[bytes | bytearray | memoryview] = []
        self._open = bytearray()

    def number(self, size: int, value: int) -> None:
        self._open += _INT[size].pack(value)

    def numbers(self, layout: struct.Struct, *values: int) -> None:
        self._open += layout.pack(*values)

    def length(self, value: int | None, size: int = 4) -> None:
        number = -1 if value is None else value
        if self.flexible:
            self.uvarint(number + 1)
        else:
            self.number(size, number)

    def text(self, value: str) -> None:
        raw = value.encode()
        self.length(len(raw), 2)
        self._open += raw

    def blobs(self, blobs: list[bytes | memoryview]) -> None:
        self.length(sum(map(len, blobs)))
        self.parts.append(self._open)
        self.parts += blobs
        self._open = bytearray()

    def uvarint(self, value: int) -> None:
        while value > 0x7F:
            self._open.append(value & 0x7F | 0x80)
            value >>= 7
        self._open.append(value)

    def tags(self) -> None:
        if self.flexible:
            self._open.append(0)

    def finished(self) -> list[bytes | bytearray | memoryview]:
        return [*self.parts, self._open]
