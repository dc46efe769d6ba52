"""The few requests that the store sends, as ZooKeeper's bytes.

kazoo serializes operations one by one into objects and back. A group has hundreds of them, so here they are bytes
from the start; kazoo sends a request (anything with `type`, `serialize` and `deserialize`) and matches its answer.

    multi (14), multi-read (22)     header(type, done, error)  operation  …  header(-1, true, -1)
    answer to a multi               header(type, done, error)  result     …  header(-1, true, -1)
    answer to a multi that failed   header(-1, false, error)   error      …  for every operation:
                                    0 before the culprit, its error code, -2 after it
    stat                            czxid mzxid ctime mtime version cversion aversion owner length children pzxid

Multi-read (ZooKeeper 3.6) reads any number of znodes in one request; one that is missing is an answer, no failure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

CREATE, DELETE, GET_DATA, SET_DATA, GET_CHILDREN, SYNC, CHECK, MULTI, MULTI_READ = 1, 2, 4, 5, 8, 9, 13, 14, 22
_ERROR = -1

# Error codes of single operations.
NO_NODE, NO_AUTH, BAD_VERSION, NODE_EXISTS, NOT_EMPTY = -101, -102, -103, -110, -111
_OK, _BEHIND_THE_CULPRIT = 0, -2

ANY_VERSION = -1
_EPHEMERAL = 1

_INT = struct.Struct("!i")
_HEADER = struct.Struct("!iBi")
_STAT = struct.Struct("!qqqqiiiqiiq")
_END = _HEADER.pack(-1, 1, -1)
_HEADERS = {kind: _HEADER.pack(kind, 0, -1) for kind in (CREATE, DELETE, GET_DATA, SET_DATA, GET_CHILDREN, CHECK)}
# The access control list of a znode: one entry with all permissions (31), and for whom. For the scheme `auth`
# the server records the users of the connection.
OPEN_ACL = _INT.pack(1) + _INT.pack(31) + _INT.pack(5) + b"world" + _INT.pack(6) + b"anyone"
CREATOR_ACL = _INT.pack(1) + _INT.pack(31) + _INT.pack(4) + b"auth" + _INT.pack(0)


class Stat(NamedTuple):
    """What ZooKeeper keeps about a znode, in its order."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    length: int
    children: int
    pzxid: int


@dataclass(frozen=True, slots=True)
class Node:
    """A znode as it was read."""

    data: bytes
    stat: Stat


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _INT.pack(len(encoded)) + encoded


# -- operations of a multi ----------------------------------------------------------------------------------------


def create_op(path: str, data: bytes = b"", *, ephemeral: bool = False, acl: bytes = OPEN_ACL) -> bytes:
    """Fails with NODE_EXISTS, or NO_NODE without a parent."""
    flags = _INT.pack(_EPHEMERAL if ephemeral else 0)
    return b"".join((_HEADERS[CREATE], _text(path), _INT.pack(len(data)), data, acl, flags))


def delete_op(path: str, version: int = ANY_VERSION) -> bytes:
    """Fails with NO_NODE, BAD_VERSION or NOT_EMPTY."""
    return b"".join((_HEADERS[DELETE], _text(path), _INT.pack(version)))


def set_data(path: str, data: bytes, version: int = ANY_VERSION) -> bytes:
    """Fails with NO_NODE or BAD_VERSION. The data version grows by one."""
    return b"".join((_HEADERS[SET_DATA], _text(path), _INT.pack(len(data)), data, _INT.pack(version)))


def check_op(path: str, version: int = ANY_VERSION) -> bytes:
    """Fails with NO_NODE or BAD_VERSION."""
    return b"".join((_HEADERS[CHECK], _text(path), _INT.pack(version)))


# -- operations of a multi-read -----------------------------------------------------------------------------------


def get_data(path: str) -> bytes:
    return b"".join((_HEADERS[GET_DATA], _text(path), b"\0"))


def get_children(path: str) -> bytes:
    return b"".join((_HEADERS[GET_CHILDREN], _text(path), b"\0"))


# -- requests -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Culprit:
    """Why a multi had no effect, or a multi-read no result: the first operation that failed, and its error code."""

    index: int
    code: int


class Multi:
    """All of the operations, or none. The answer is a list of one item, because kazoo looks into it: the stat that
    the operation at `stat_at` gave (a `set_data`; before it only operations without a result), or a `Culprit`."""

    type = MULTI

    def __init__(self, operations: Sequence[bytes], stat_at: int = 0) -> None:
        self._operations = operations
        self._stat_at = stat_at

    def serialize(self) -> bytes:
        return b"".join((*self._operations, _END))

    def deserialize(self, answer: bytes, offset: int) -> list[Stat | Culprit | None]:
        index = 0
        while True:
            kind, done, _ = _HEADER.unpack_from(answer, offset)
            offset += _HEADER.size
            if done:
                return [None]
            if kind == _ERROR:
                (code,) = _INT.unpack_from(answer, offset)
                if code not in (_OK, _BEHIND_THE_CULPRIT):
                    return [Culprit(index, code)]
                offset += _INT.size
            elif kind == SET_DATA:
                if index == self._stat_at:
                    return [Stat._make(_STAT.unpack_from(answer, offset))]
                offset += _STAT.size
            elif kind == CREATE:
                # The stats in the rest are not needed.
                return [None]
            index += 1


class MultiRead:
    """The answer has one item per operation: a `Node`, a list of names, or None where there is no znode. Or it is a
    `Culprit`: an operation that was refused."""

    type = MULTI_READ

    def __init__(self, operations: Sequence[bytes]) -> None:
        self._operations = operations

    def serialize(self) -> bytes:
        return b"".join((*self._operations, _END))

    def deserialize(self, answer: bytes, offset: int) -> list[Node | list[str] | None] | Culprit:
        found: list[Node | list[str] | None] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(answer, offset)
            offset += _HEADER.size
            if done:
                return found
            if kind == GET_DATA:
                (length,) = _INT.unpack_from(answer, offset)
                offset += _INT.size
                data = bytes(answer[offset : offset + length]) if length > 0 else b""
                offset += max(length, 0)
                found.append(Node(data, Stat._make(_STAT.unpack_from(answer, offset))))
                offset += _STAT.size
            elif kind == GET_CHILDREN:
                (count,) = _INT.unpack_from(answer, offset)
                offset += _INT.size
                names = []
                for _ in range(count):
                    (length,) = _INT.unpack_from(answer, offset)
                    offset += _INT.size
                    names.append(str(answer[offset : offset + length], "utf-8"))
                    offset += length
                found.append(names)
            else:
                (code,) = _INT.unpack_from(answer, offset)
                offset += _INT.size
                if code != NO_NODE:
                    return Culprit(len(found), code)
                found.append(None)


class Sync:
    """The reads after it in this session see everything that was committed before this request arrived."""

    type = SYNC

    def __init__(self, path: str) -> None:
        self._path = path

    def serialize(self) -> bytes:
        return _text(self._path)

    def deserialize(self, answer: bytes, offset: int) -> None:
        return None


class Watched:
    """Read a znode and be called once when it changes next, or when the connection is lost. kazoo looks at `path`
    and `watcher`, and calls on one of its own threads."""

    type = GET_DATA

    def __init__(self, path: str, watcher: Callable[[Any], None]) -> None:
        self.path = path
        self.watcher = watcher

    def serialize(self) -> bytes:
        return _text(self.path) + b"\1"

    def deserialize(self, answer: bytes, offset: int) -> Node:
        (length,) = _INT.unpack_from(answer, offset)
        offset += _INT.size
        data = bytes(answer[offset : offset + length]) if length > 0 else b""
        return Node(data, Stat._make(_STAT.unpack_from(answer, offset + max(length, 0))))
