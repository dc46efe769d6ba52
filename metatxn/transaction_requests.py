"""What a client asks about transactions and their keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Literal

from metatxn.ahead import BegunAhead
from metatxn.answers import parsed
from metatxn.connection import Connection, post
from metatxn.http import Call, FixedEndpoint, json_body, path_of
from metatxn.paging import Listing
from metatxn.transaction import AsyncTransaction
from metatxn.wire.broker import (
    TransactionWork,
    WorkOnSegment,
)
from metatxn.wire.coordinator import (
    ConnectAnswer,
    HangingTransaction,
    Operation,
    StoredRecord,
    TransactionHeader,
    TransactionKeyInfo,
)
from metatxn.wire.errors import (
    InvalidArgument,
    NotFound,
    ServiceUnreachable,
    StoreUnavailable,
)

KEYS_PATH = "/admin/v2/transactions/transaction-keys"
HANGING_PATH = "/admin/v2/transactions/hanging"


class TransactionRequests:
    """The part of `AsyncClient` for requests about transactions."""

    def __init__(self, connection: Connection, ahead: BegunAhead) -> None:
        self._connection = connection
        self._ahead = ahead

    async def begin(
        self,
        timeout_ms: int = 60_000,
        key: str | None = None,
        epoch: int | None = None,
        version: int | None = None,
        properties: dict[str, str] | None = None,
        owner: str | None = None,
    ) -> AsyncTransaction:
        """Begin a transaction, which is aborted if it is open for longer than `timeout_ms`. While a program begins one
        after another, the next ones are begun ahead, and have a second more.

        A `key` requires the `epoch` that `connect_key` returned. If a `version` is given too, retrying an open version
        returns the same transaction, and a committed one returns a transaction whose `already_committed` is true.
        Raises `NotAllowed` for a stale epoch.
        """
        if key is not None and epoch is None:
            raise InvalidArgument(
                "epoch: a transaction under a key requires the key's epoch",
                action="Call connect_key(key), which takes over the key, and pass the epoch that it returns.",
                field="epoch",
            )
        if key is None and owner is None and version is None and not properties:
            begun = await self._ahead.take(timeout_ms)
            if begun is not None:
                return AsyncTransaction(self._connection, begun.txn_id or "", begun, ends_with_client=True)
        body = {
            "timeout_ms": timeout_ms,
            "owner": owner,
            "transaction_key": key,
            "epoch": epoch,
            "version": version,
            "properties": properties,
        }
        # A begin that is sent twice leaves at most an empty transaction, which its timeout ends.
        header = parsed(TransactionHeader, await self._connection.coordinator(post(path_of("txns"), body)))
        # Several programs may work on the same version, in the same transaction.
        return AsyncTransaction(self._connection, header.txn_id or "", header, ends_with_client=version is None)

    @contextlib.asynccontextmanager
    async def transaction(
        self,
        timeout_ms: int = 60_000,
        key: str | None = None,
        epoch: int | None = None,
        version: int | None = None,
        properties: dict[str, str] | None = None,
        owner: str | None = None,
    ) -> AsyncIterator[AsyncTransaction]:
        """`begin` for use with `async with`, which commits on leaving, and aborts on an exception or a failed send."""
        async with await self.begin(timeout_ms, key, epoch, version, properties, owner) as txn:
            yield txn

    def attach(self, txn_id: str) -> AsyncTransaction:
        """A transaction that was begun elsewhere, to write inside it or to end it. Nothing is read yet."""
        return AsyncTransaction(self._connection, txn_id)

    def transactions(
        self,
        state: Literal["OPEN", "COMMITTED", "ABORTED"] | None = None,
        *,
        key: str | None = None,
        owner: str | None = None,
        segment: str | None = None,
        older_than_ms: int | None = None,
        younger_than_ms: int | None = None,
        newest_first: bool = False,
        text: str | None = None,
        limit: int | None = None,
    ) -> Listing[TransactionHeader]:
        """The headers of the transactions that match the filters. `older_than_ms` and `younger_than_ms` are ages;
        `text` is searched for in ids, keys, owners, reasons and properties; `limit` is the size of a page, not of the
        result. With `newest_first`, which excludes `segment`, the latest begin
        comes first, or with `state` the latest deadline of open ones and the latest decision of others."""
        params = {
            "state": state,
            "transaction_key": key,
            "owner": owner,
            "segment": segment,
            "older_than_ms": older_than_ms,
            "younger_than_ms": younger_than_ms,
            "text": text,
            "order": "newest" if newest_first else None,
            "limit": limit,
        }
        connection = self._connection
        return Listing(connection, connection.coordinators, path_of("txns"), params, TransactionHeader)

    def hanging(
        self, max_age_ms: int | None = None, *, holding: bool = False, limit: int | None = None
    ) -> Listing[HangingTransaction]:
        """Transactions that have been open for longer than `max_age_ms` (default: a minute), and where each of them
        holds readers back, oldest first. With `holding` only those that have written or acknowledged something. They
        are read in pages of `limit`.
        """
        connection = self._connection
        params = {"max_age_ms": max_age_ms, "holding": "true" if holding else None, "limit": limit}
        return Listing(connection, connection.coordinators, HANGING_PATH, params, HangingTransaction)

    def operations(self, txn_id: str) -> Listing[Operation]:
        """The operation records of a transaction that no broker has cleaned up yet. Raises `TransactionNotFound`."""
        connection = self._connection
        return Listing(connection, connection.coordinators, path_of("txns", txn_id, "ops"), {}, Operation)

    async def transaction_work(self, txn_id: str) -> list[WorkOnSegment]:
        """What the brokers remember of what a transaction has written and acknowledged, and since when readers see it.
        Brokers that do not answer are left out. Raises `TransactionNotFound`."""
        brokers = (await self._connection.directory.read(patient=True)).brokers
        told = await asyncio.gather(*(self._work_at(broker.url, txn_id) for broker in brokers), return_exceptions=True)
        found: list[WorkOnSegment] = []
        for answer in told:
            if isinstance(answer, ServiceUnreachable | StoreUnavailable | NotFound):
                continue
            if isinstance(answer, BaseException):
                raise answer
            found += answer
        return found

    async def _work_at(self, url: str, txn_id: str) -> list[WorkOnSegment]:
        call = Call("GET", path_of("txns", txn_id, "work"))
        answer = await self._connection.http.request(FixedEndpoint(url), call, patient=False)
        return parsed(TransactionWork, answer).segments

    def transaction_records(self, txn_id: str) -> Listing[StoredRecord]:
        """The records of a transaction as they are in the metadata store. Raises `TransactionNotFound`."""
        connection = self._connection
        return Listing(connection, connection.coordinators, path_of("txns", txn_id, "records"), {}, StoredRecord)

    async def connect_key(
        self, key: str, epoch: int = -1, session: str | None = None, owner: str | None = None
    ) -> ConnectAnswer:
        """Take over a transaction key (`epoch` -1): its open transaction is aborted, and its previous holder gets
        `NotAllowed` from now on. Any other `epoch` connects only if it is the current one."""
        # With a session, a repeated request returns the same epoch. By default, each call is a session of its own.
        body = {"epoch": epoch, "session": session or self._connection.new_name(), "owner": owner}
        call = post(path_of("transaction-keys", key, "connect"), body)
        return parsed(ConnectAnswer, await self._connection.coordinator(call))

    def keys(self, owner: str | None = None, *, limit: int | None = None) -> Listing[TransactionKeyInfo]:
        """All transaction keys, or those of one owner; a page has at most `limit` of them."""
        connection, params = self._connection, {"owner": owner, "limit": limit}
        return Listing(connection, connection.coordinators, KEYS_PATH, params, TransactionKeyInfo)

    async def key(self, key: str, owner: str | None = None) -> TransactionKeyInfo:
        """One transaction key. Raises `NotFound`."""
        call = Call("GET", KEYS_PATH + path_of(key).removeprefix("/v1"), {"owner": owner})
        return parsed(TransactionKeyInfo, await self._connection.coordinator(call))

    async def fence_key(self, key: str, epoch: int, owner: str | None = None) -> ConnectAnswer:
        """End the connection of a transaction key that has this epoch, no matter who owns it: its open transaction is
        aborted, unless it is prepared, and its holder gets `NotAllowed` from now on. Only administrators may. Raises
        `NotFound`, and `NotAllowed` if the key has another epoch."""
        path = KEYS_PATH + path_of(key, "fence").removeprefix("/v1")
        call = Call("POST", path, {"owner": owner}, json_body({"epoch": epoch}))
        return parsed(ConnectAnswer, await self._connection.coordinator(call))

    async def delete_key(self, key: str, owner: str | None = None) -> None:
        """Delete a transaction key, and abort the transaction that it holds. Raises `NotFound`."""
        connection = self._connection
        call = Call("DELETE", KEYS_PATH + path_of(key).removeprefix("/v1"), {"owner": owner})
        await connection.http.request(connection.coordinators, call)
