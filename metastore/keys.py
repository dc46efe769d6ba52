"""The construction of keys, so that no name can ever overlap another.

A key is a path of escaped parts: `/txn-op/<txnId>/<seq>`. A part never contains a `/`, so a prefix that ends in `/`
matches exactly the records below it: subscription `s` never matches `s1`, segment `…/1` never matches `…/10`.
Everything outside `A-Z a-z 0-9 - . _ ~` is percent-encoded (as UTF-8), and so are the parts `.` and `..`, because
ZooKeeper refuses them. Numbers are zero-padded to 20 digits, so that key order is numeric order.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote, unquote

NUMBER_DIGITS = 20
_AS_NUMBER = f"0{NUMBER_DIGITS}d"
_END_OF_NUMBERS = 10**NUMBER_DIGITS


@lru_cache(maxsize=4096)  # the same few segments, topics and subscriptions are in every key
def escape(part: str) -> str:
    """A key part made from any text; `unescape` reverses it. The empty text becomes a lone `%`."""
    if part in (".", ".."):
        return part.replace(".", "%2E")
    return quote(part, safe="") or "%"


def unescape(part: str) -> str:
    return "" if part == "%" else unquote(part, errors="strict")


@lru_cache(maxsize=1024)  # keys written in one millisecond contain the same time
def number(value: int) -> str:
    """A non-negative number as 20 digits."""
    assert 0 <= value < _END_OF_NUMBERS, value
    return format(value, _AS_NUMBER)


def join(*parts: str) -> str:
    """Escaped parts joined by `/`, without a leading one."""
    return "/".join(escape(part) for part in parts)


def split(path: str) -> list[str]:
    """The unescaped parts of what `join` made (a leading `/` is allowed)."""
    return [unescape(part) for part in path.removeprefix("/").split("/")]


def prefix_end(prefix: str) -> str:
    """The smallest key greater than every key that starts with `prefix`."""
    # Nothing sorts after the last code point, so a prefix ending in it ends where its own parent does.
    prefix = prefix.rstrip(chr(0x10FFFF))
    assert prefix, "an empty prefix has no end"
    last = ord(prefix[-1])
    if 0xD7FF <= last < 0xE000:
        return prefix[:-1] + chr(0xE000)
    return prefix[:-1] + chr(last + 1)
