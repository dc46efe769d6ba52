"""Opening a store by its URL.

    memory://                                     in this process, gone with it
    sqlite:///path/file.db                        relative to the working directory
    sqlite:////path/file.db                       absolute
    etcd://host:port[,host:port…][/root]          with ?ca=&cert=&key=&user=&password_file=
    zk://host:port[,host:port…][/root]            the same

The text after `sqlite:///` up to a `?` is the path, without percent-decoding. `ca`, `cert` and `key` are PEM files; any
of them means TLS. A URL must not contain secrets, because it is shown in process lists and logs; so the password of
`user` comes from a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from metastore.api import MetadataStore
from metastore.backends.credentials import InvalidCredentials, Login, Tls
from metastore.backends.memory import MemoryStore
from metastore.backends.options import EtcdOptions, ZooKeeperOptions
from metastore.backends.sqlite import SqliteStore
from metastore.txn.store import INDEXES
from metastore.types import IndexDefinition

FORMS = (
    "memory://, sqlite:///relative/file.db, sqlite:////absolute/file.db, "
    "etcd://host:port[,host:port...][/root] or zk://host:port[,host:port...][/root], "
    "both with [?ca=&cert=&key=&user=&password_file=]"
)
_PASSWORD = re.compile(r"(?<=//)[^/]*(?=@)|(?<=password=)[^&]*")
_CREDENTIALS = ("ca", "cert", "key", "user", "password_file")
_ZNODES = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._~-]+)*", re.ASCII)
_ENDPOINT = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})", re.ASCII)


class InvalidStoreUrl(ValueError):
    """The URL does not name a store; the message is one line that lists the valid forms."""

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(f"store URL {_PASSWORD.sub('…', url)!r}: {problem} (valid forms: {FORMS})")


async def open_store(url: str, indexes: Iterable[IndexDefinition] = INDEXES, **options: Any) -> MetadataStore:
    """Open the store that `url` names; `options` are those of the backend (see `metastore.backends.options`).

    Raises `InvalidStoreUrl` (a `ValueError`) and the errors of opening the backend.
    """
    scheme, separator, rest = url.partition("://")
    location, _, query = rest.partition("?")
    if not separator:
        raise InvalidStoreUrl(url, "the scheme is missing")
    match scheme:
        case "memory":
            _parameters(url, query, ())
            return _open_memory(url, location, indexes, options)
        case "sqlite":
            _parameters(url, query, ())
            return await _open_sqlite(url, location, indexes, options)
        case "etcd":
            return await _open_etcd(url, location, indexes, _parameters(url, query, _CREDENTIALS), options)
        case "zk":
            return await _open_zookeeper(url, location, indexes, _parameters(url, query, _CREDENTIALS), options)
        case _:
            raise InvalidStoreUrl(url, f"there is no kind of store named {scheme!r}")


async def open_store_to_read(url: str) -> MetadataStore:
    """Open the store that `url` names for reading only, and write nothing; other processes may be serving it.

    Raises the errors of `open_store`, and `InvalidStoreUrl` for `memory://`, which exists only in the process that
    opened it.
    """
    scheme = url.partition("://")[0]
    if scheme == "memory":
        raise InvalidStoreUrl(url, "a store in memory cannot be seen from another process")
    # A client of etcd writes nothing before its first apply.
    options: dict[str, Any] = {} if scheme == "etcd" else {"read_only": True}
    return await open_store(url, **options)


def _open_memory(url: str, location: str, indexes: Iterable[IndexDefinition], options: dict[str, Any]) -> MetadataStore:
    if location:
        raise InvalidStoreUrl(url, "nothing may follow memory://")
    return MemoryStore(indexes, **options)


async def _open_sqlite(
    url: str, location: str, indexes: Iterable[IndexDefinition], options: dict[str, Any]
) -> MetadataStore:
    path = location.removeprefix("/")
    if path == location:
        raise InvalidStoreUrl(url, "the path of the file must follow three slashes")
    if path in ("", "/") or path.endswith("/"):
        raise InvalidStoreUrl(url, "the name of the file is missing")
    if path == ":memory:":
        raise InvalidStoreUrl(url, "the URL of a store in memory is memory://")
    return await SqliteStore.open(path, indexes, **options)


async def _open_etcd(
    url: str, location: str, indexes: Iterable[IndexDefinition], parameters: Mapping[str, str], options: dict[str, Any]
) -> MetadataStore:
    endpoints, root = _endpoints_and_root(url, location)

    # gRPC writes each failed handshake to stderr, past all logs; the errors of the calls say the same.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")

    # Imported here, so that a process with SQLite does not load gRPC.
    from metastore.backends.etcd import EtcdStore

    try:
        tls, login = _credentials(**parameters)
        return await EtcdStore.open(endpoints, root, indexes, EtcdOptions(**options), tls=tls, login=login)
    except InvalidCredentials as error:
        raise InvalidStoreUrl(url, str(error)) from None


async def _open_zookeeper(
    url: str, location: str, indexes: Iterable[IndexDefinition], parameters: Mapping[str, str], options: dict[str, Any]
) -> MetadataStore:
    hosts, root = _endpoints_and_root(url, location)
    if not _ZNODES.fullmatch(root):
        raise InvalidStoreUrl(url, f"the root {root!r} is not a path of plain names")

    # Imported here, so that a process with another store does not load kazoo.
    from metastore.backends.zookeeper import ZooKeeperStore

    try:
        tls, login = _credentials(**parameters)
        return await ZooKeeperStore.open(hosts, root, indexes, ZooKeeperOptions(**options), tls=tls, login=login)
    except InvalidCredentials as error:
        raise InvalidStoreUrl(url, str(error)) from None


def _credentials(
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
    user: str | None = None,
    password_file: str | None = None,
) -> tuple[Tls | None, Login | None]:
    """The credentials in a URL. Raises `InvalidCredentials`."""
    return Tls.of(ca, cert, key), Login.of(user, password_file)


def _endpoints_and_root(url: str, location: str) -> tuple[list[str], str]:
    authority, slash, path = location.partition("/")
    if "@" in authority:
        raise InvalidStoreUrl(url, "credentials must be given as ?user=&password_file=")
    endpoints = authority.split(",")
    for endpoint in endpoints:
        matched = _ENDPOINT.fullmatch(endpoint)
        if not matched or not 0 < int(matched[1]) < 1 << 16:
            raise InvalidStoreUrl(url, f"{endpoint!r} is not host:port")
    return endpoints, (slash + unquote(path)).rstrip("/")


def _parameters(url: str, query: str, known: tuple[str, ...]) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise InvalidStoreUrl(url, "the parameters after ? are not name=value pairs") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            allowed = f"it accepts {', '.join(known)}" if known else "it accepts none"
            raise InvalidStoreUrl(url, f"the parameter {name!r} is not known to this kind of store; {allowed}")
        if name in found:
            raise InvalidStoreUrl(url, f"the parameter {name!r} is given twice")
        if not value:
            raise InvalidStoreUrl(url, f"the parameter {name!r} is empty")
        found[name] = value
    return found
