"""An apply as bytes of protobuf's wire format: the one message that is built for every write.

Made with the message classes, a small apply costs the caller twice what it costs here, most of it in putting
messages into messages, and a group copies each of its members once more. As bytes, a group is its members one after
the other: protobuf defines that repeated fields concatenate. `tests/metastore/etcd/test_encoding.py` holds
every function to the message classes, and so does etcd.

    field      tag = number * 8 + 2, length, body (text, bytes and messages); tag = number * 8, varint (numbers)
    RequestOp  1 request_range   2 request_put   3 request_delete_range   4 request_txn
    Txn        1 compare   2 success   3 failure
    Compare    2 target   3 key   4 version   5 create_revision   6 mod_revision   64 range_end
    Range      1 key   2 range_end   3 limit          Put  1 key   2 value         DeleteRange  1 key   2 range_end
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_LENGTHS = tuple(map(_varint, range(1 << 12)))


def sized(body: bytes) -> bytes:
    """`body` after its length, which is how every field of text, bytes or a message begins after its tag."""
    size = len(body)
    return (_LENGTHS[size] if size < 4096 else _varint(size)) + body


def _before(field: Callable[[bytes], bytes], after: int) -> Callable[[int], bytes]:
    """The bytes of `field(key)` before its key, which is followed by `after` more: they depend on its length alone, so
    they are built once for every length."""

    @lru_cache(maxsize=1024)
    def before(size: int) -> bytes:
        whole = field(bytes(size))
        return whole[: len(whole) - size - after]

    return before


# -- compares of a transaction --------------------------------------------------------------------------------------

_before_absent = _before(lambda key: b"\x0a" + sized(b"\x10\x01\x1a" + sized(key) + b"\x28\x00"), 2)
_before_first = _before(lambda key: b"\x0a" + sized(b"\x1a" + sized(key) + b"\x20\x01"), 2)


def _at(revision: bytes, key: bytes) -> bytes:
    return b"\x0a" + sized(b"\x10\x02\x1a" + sized(key) + b"\x30" + revision)


_before_at = tuple(_before(partial(_at, bytes(size)), 1 + size) for size in range(11))


def is_absent(key: bytes) -> bytes:
    return _before_absent(len(key)) + key + b"\x28\x00"


def is_first(key: bytes) -> bytes:
    """Compare: the record was created and never written again: version 1 (target 0, the default, is VERSION)."""
    return _before_first(len(key)) + key + b"\x20\x01"


def is_version(key: bytes, version: int) -> bytes:
    """Compare: the record was written this often since it was created; 0: there is none."""
    return b"\x0a" + sized(b"\x1a" + sized(key) + b"\x20" + _varint(version))


def is_at(key: bytes, mod_revision: int) -> bytes:
    revision = _varint(mod_revision)
    return _before_at[len(revision)](len(key)) + key + b"\x30" + revision


def is_empty(key: bytes, end: bytes) -> bytes:
    """Compare: there is no record in `[key, end)`."""
    return b"\x0a" + sized(b"\x10\x01\x1a" + sized(key) + b"\x28\x00\x82\x04" + sized(end))


# -- what a transaction does if its compares hold -------------------------------------------------------------------


def then(operation: bytes) -> bytes:
    return b"\x12" + sized(operation)


@lru_cache(maxsize=4096)
def _around_key_of_put(key_size: int, value_size: int) -> tuple[bytes, bytes]:
    """The bytes before the key and between the key and the value, which depend only on their lengths."""
    key, value = sized(bytes(key_size)), sized(bytes(value_size))
    between = b"\x12" + value[: len(value) - value_size]
    whole = then(b"\x12" + sized(b"\x0a" + key + b"\x12" + value))
    return whole[: len(whole) - key_size - len(between) - value_size], between


def put(key: bytes, value: bytes) -> bytes:
    before, between = _around_key_of_put(len(key), len(value))
    return before + key + between + value


_before_delete = _before(lambda key: then(b"\x1a" + sized(b"\x0a" + sized(key))), 0)


def delete(key: bytes) -> bytes:
    return _before_delete(len(key)) + key


def delete_range(key: bytes, end: bytes) -> bytes:
    return then(b"\x1a" + sized(b"\x0a" + sized(key) + b"\x12" + sized(end)))


_before_then_read = _before(lambda key: then(b"\x0a" + sized(b"\x0a" + sized(key))), 0)


def then_read(key: bytes) -> bytes:
    return _before_then_read(len(key)) + key


def then_range(request: bytes) -> bytes:
    """A serialized `RangeRequest` as an operation."""
    return then(b"\x0a" + sized(request))


def txn(fields: bytes) -> bytes:
    """A nested transaction of fields, one after the other."""
    return then(b"\x22" + sized(fields))


# -- and if they do not ---------------------------------------------------------------------------------------------

_before_read = _before(lambda key: b"\x1a" + sized(b"\x0a" + sized(b"\x0a" + sized(key))), 0)


def else_read(key: bytes) -> bytes:
    return _before_read(len(key)) + key


def else_read_first(key: bytes, end: bytes) -> bytes:
    """Read the first record in `[key, end)`."""
    return b"\x1a" + sized(b"\x0a" + sized(b"\x0a" + sized(key) + b"\x12" + sized(end) + b"\x18\x01"))
