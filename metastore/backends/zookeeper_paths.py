"""Keys as znodes: which path a key has, and back.

    /a/b/c   →   <root>/records/a+/b+/c          the record
                 <root>/records/a+/b+            the directory of all keys that begin with /a/b/

A record is always a leaf and a directory never holds a record: their names differ (a directory ends in `+`), so the
records `/a/b` and `/a/b/c` meet nowhere, the data version of a record counts its writes and nothing else, and an empty
directory is never mistaken for a record.

Names keep what our keys are made of (see `metastore.keys`), so that people can read them in `zkCli`. Everything else is
`=XX` per UTF-8 byte: ZooKeeper refuses control characters, surrogates and the parts `.` and `..`, and `+` and `=` are
ours. An empty part is a lone `=`. Keys that do not begin with `/` live below the directory `=_+`, which no part can be
called. The order of keys is not the order of names, so listings are sorted by key.
"""

from __future__ import annotations

import re

from metastore.backends.zookeeper_wire import OPEN_ACL, create_op

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_~%&:,@!-][A-Za-z0-9._~%&:,@!-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9._~%&:,@!-]")
_ESCAPED = re.compile(r"(?:=[0-9A-F]{2})+")
_NO_SLASH = "/=_+"
DIRECTORY = "+"
_MAX_PLACES = 100_000


def _escape(part: str) -> str:
    if part in (".", ".."):
        return part.replace(".", "=2E")
    return _UNSAFE.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), part) or "="


def _unescape(name: str) -> str:
    if "=" not in name:
        return name
    if name == "=":
        return ""
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("=", "")).decode(), name)


class Paths:
    """The znodes below one root, which all get the same `acl`. `root` is empty, or begins with a slash and does not
    end in one."""

    def __init__(self, root: str, acl: bytes = OPEN_ACL) -> None:
        self.root = root
        self._acl = acl
        self.tip = f"{root}/tip"
        self.log = f"{root}/log"
        self.alive = f"{root}/alive"
        self.held = f"{root}/held"
        self.guards = f"{root}/guard"
        self.records = f"{root}/records"
        self._places: dict[str, str] = {}

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> bytes:
        """See `zookeeper_wire.create`."""
        return create_op(path, data, ephemeral=ephemeral, acl=self._acl)

    def place(self, key: str) -> tuple[str, str]:
        """The directory of the record `key`, and its znode."""
        prefix, slash, name = key.rpartition("/")
        prefix += slash
        directory = self._places.get(prefix)
        if directory is None:
            if len(self._places) >= _MAX_PLACES:
                self._places.clear()
            directory = self._places[prefix] = self.directory(prefix)
        if not _PLAIN_NAME.fullmatch(name):
            name = _escape(name)
        return directory, f"{directory}/{name}"

    def record(self, key: str) -> str:
        """The znode of the record `key`."""
        return self.place(key)[1]

    def directory(self, prefix: str) -> str:
        """The znode of the directory of all keys that begin with `prefix`, which ends in `/` (or is empty)."""
        if prefix == "/":
            return self.records
        if not prefix:
            return self.records + _NO_SLASH
        head = "/" if prefix.startswith("/") else f"{_NO_SLASH}/"
        parts = prefix[:-1].removeprefix("/").split("/")
        return f"{self.records}{head}{'+/'.join(map(_escape, parts))}{DIRECTORY}"

    @staticmethod
    def child(name: str) -> tuple[str, bool]:
        """The key part that a name in a directory stands for, and whether it is a directory."""
        is_directory = name.endswith(DIRECTORY)
        return _unescape(name.removesuffix(DIRECTORY)), is_directory

    @staticmethod
    def is_special(name: str) -> bool:
        """Whether the name is that of the directory of keys without a leading slash."""
        return f"/{name}" == _NO_SLASH


def parent(path: str) -> str:
    """The path of the znode above."""
    return path[: path.rindex("/")]
