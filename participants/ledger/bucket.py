"""The calls to an object store that object ledgers need, in one replaceable place.

Tests and the simulator replace this class to inject faults: lost replies, late and refused puts. The requirements for a
store are: a put of a new name is atomic and fails if the name is taken, and a get or a listing sees every put that was
acknowledged. S3 (since 2024, also compatible servers that support `If-None-Match`), GCS and Azure satisfy them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError
from obstore.store import LocalStore, ObjectStore, from_url

from participants.ledger.storage import StorageFailed, StorageRefused

if TYPE_CHECKING:  # it exists for type checkers only
    from obstore.store import RetryConfig

_RETRY: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
_PATIENT_RETRY: RetryConfig = {"max_retries": 12, "retry_timeout": timedelta(minutes=1)}
"""The retries of a command that makes thousands of requests, none of which may fail: a backup reads each entry of a
ledger that is not sealed by one. No one waits for a single one of them, as clients of a broker do."""
_LIST_CHUNK = 1000


class Bucket:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @classmethod
    def open(cls, url: str, *, patient: bool = False) -> Self:
        """Open `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///directory` or `memory:///`. Credentials and endpoints
        come from the environment variables of the library (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, …).

        Nothing is sent yet. A request that fails is repeated for some seconds, or for a minute if this is `patient`.
        Raises `StorageRefused` if this is not the URL of an object store.
        """
        options: dict[str, Any] = {"retry_config": _PATIENT_RETRY if patient else _RETRY}
        if url.startswith("file:"):
            options = {"mkdir": True}
        elif url.startswith("memory:"):
            options = {}
        try:
            return cls(from_url(url, **options))
        except (BaseError, ValueError) as error:
            raise StorageRefused(f"{url} is not the URL of an object store: {_first_line(error)}") from error

    async def create(self, name: str, content: bytes) -> None:
        """Create an object atomically. Raises `FileExistsError` if the name is taken, by whatever writer, and
        `StorageFailed` if the object may exist now or later.

        If the call is cancelled, it ends when the put has ended: a caller that deletes what it lists next must not
        leave anything behind that arrives later.
        """
        with _failures(f"cannot write {name}"):
            put = asyncio.ensure_future(
                obstore.put_async(self._store, name, content, mode="create", use_multipart=False)
            )
            try:
                await asyncio.shield(put)
            except asyncio.CancelledError:
                await asyncio.gather(put, return_exceptions=True)
                raise

    async def put(self, name: str, content: bytes | memoryview) -> None:
        """Create or replace an object. Raises `StorageFailed` if the new content may be there now or later."""
        with _failures(f"cannot write {name}"):
            await obstore.put_async(self._store, name, content, mode="overwrite", use_multipart=False)

    async def sync(self, name: str) -> None:
        """Make an object that was put survive a power failure. A service is trusted to have done so before it answered;
        in a directory the file and the directories above it are synced. Raises `StorageFailed`."""
        if isinstance(self._store, LocalStore) and self._store.prefix is not None:
            with _failures(f"cannot sync {name}"):
                await asyncio.to_thread(_sync_file, Path(self._store.prefix), name)

    async def move(self, name: str, target: str) -> None:
        """Move an object. Raises `FileNotFoundError`, and `StorageFailed` if it may be at both places."""
        with _failures(f"cannot move {name}"):
            await obstore.rename_async(self._store, name, target)

    async def get(self, name: str) -> bytes:
        """The content of an object. Raises `FileNotFoundError`, `StorageFailed`."""
        with _failures(f"cannot read {name}"):
            found = await obstore.get_async(self._store, name)
            return bytes(await found.bytes_async())

    async def get_range(self, name: str, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`, or fewer if the object ends before. Raises as `get`."""
        with _failures(f"cannot read {name}"):
            try:
                return bytes(await obstore.get_range_async(self._store, name, start=start, end=end))
            except GenericError:
                # A range that begins where the object ends, or behind that, is refused, by each store in its own words.
                if (await obstore.head_async(self._store, name))["size"] > start:
                    raise
                return b""

    async def sizes(self, directory: str) -> dict[str, int]:
        """The name and the size of every object below `directory`, in the order of the names. Raises
        `StorageFailed`."""
        found: dict[str, int] = {}
        with _failures(f"cannot list {directory}"):
            async for chunk in obstore.list(self._store, directory, chunk_size=_LIST_CHUNK):
                found.update((meta["path"], meta["size"]) for meta in chunk)
        return dict(sorted(found.items()))

    async def directories(self, directory: str) -> list[str]:
        """The last names of the directories directly below `directory` that contain objects. Raises `StorageFailed`."""
        with _failures(f"cannot list {directory}"):
            found = await obstore.list_with_delimiter_async(self._store, directory)
        return sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in found["common_prefixes"])

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects. It is not an error if some do not exist. Raises `StorageFailed`."""
        for name in names:
            try:
                with _failures(f"cannot delete {name}"):
                    await obstore.delete_async(self._store, name)
            except FileNotFoundError:
                continue


def _sync_file(root: Path, name: str) -> None:
    """Sync directories, with the one that has the root, which may be new, too. A process that may not read it has not
    made the root."""
    path = root / name
    for each in (path, *path.parents):
        if each == root.parent and not os.access(each, os.R_OK):
            return
        fd = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        if each == root.parent:
            return


@contextmanager
def _failures(what: str) -> Iterator[None]:
    """Convert the errors of a store to those of `Bucket`."""
    try:
        yield
    except AlreadyExistsError as error:
        raise FileExistsError(f"{what}: it exists") from error
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{what}: it does not exist") from error
    except (BaseError, OSError, ValueError) as error:
        raise StorageFailed(f"{what}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """The first line of an error's text. The library adds pages of debugging output, which may quote request
    headers."""
    return str(error).partition("\n")[0]
