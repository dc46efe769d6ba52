"""The coordinator's REST endpoints: they read the request, call the core, and answer. They contain no rule of the
protocol."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, Field

from coordinator.batches import Done, ItemAnswer, run_batch
from coordinator.hanging import MAX_AGE_MS, hanging_transactions
from coordinator.listings import Filter, Listings
from coordinator.ownership import owned, visible_owner
from coordinator.paging import DEFAULT_LIMIT, MAX_LIMIT, make_token, position_of
from coordinator.store_checks import StoreChecks
from coordinator.stored_records import StoredRecords
from coordinator.transactions import Transactions
from metastore.errors import MetastoreError
from metatxn.service import audit
from metatxn.service.answers import json_response
from metatxn.service.audited import address_of, audited
from metatxn.service.direct import DirectRoute
from metatxn.service.http import Caller, PathText, TxnIdPath, from_store
from metatxn.service.openapi import problems
from metatxn.service.security.authentication import Authenticator
from metatxn.service.security.principal import Principal
from metatxn.service.strict import StrictRoute
from metatxn.wire.access import AcceptedTokenPage
from metatxn.wire.coordinator import (
    MAX_NUMBER,
    AbortItem,
    AbortRequest,
    BatchAnswer,
    BatchRequest,
    BeginRequest,
    CommitRequest,
    ConnectAnswer,
    ConnectRequest,
    DeletedTransactionKey,
    FenceRequest,
    HangingPage,
    KeepAliveRequest,
    OperationPage,
    OwnerName,
    PrepareRequest,
    State,
    StoreCheckPage,
    StoredRecordPage,
    TransactionHeader,
    TransactionKeyInfo,
    TransactionKeyName,
    TransactionKeyPage,
    TransactionPage,
    WritersRequest,
    valid_key,
)
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from metatxn.wire.names import short_page_token
from metatxn.wire.problems import problem_of
from metatxn.wire.text import encodable

ALWAYS = (ErrorCode.INVALID_ARGUMENT, ErrorCode.STORE_UNAVAILABLE)
WRITES = (*ALWAYS, ErrorCode.OUTCOME_UNKNOWN, ErrorCode.STORAGE_FULL)
ENDS = (*WRITES, ErrorCode.TXN_NOT_FOUND, ErrorCode.INVALID_TXN_STATE, ErrorCode.EXPIRED_TRANSACTION)
"""The errors that an endpoint of this kind can answer."""

TRANSACTION: dict[str, Any] = {"response_model": TransactionHeader, "response_model_exclude_none": True}
"""What the endpoints of one transaction answer. They return its members, which need no second validation."""


KeyPath = Annotated[PathText, AfterValidator(valid_key)]


SegmentName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1024,
        description="Only transactions with writes to this segment that no broker has cleaned up yet.",
    ),
]


class PageQuery(BaseModel):
    """Query parameters of every list."""

    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT
    page_token: (
        Annotated[str, Field(description="The `next_page_token` of the page before."), AfterValidator(short_page_token)]
        | None
    ) = None


class TransactionQuery(PageQuery):
    state: State | None = None
    older_than_ms: (
        Annotated[int, Field(ge=0, le=MAX_NUMBER, description="Only transactions that began at least this long ago.")]
        | None
    ) = None
    younger_than_ms: (
        Annotated[int, Field(ge=0, le=MAX_NUMBER, description="Only transactions that began at most this long ago.")]
        | None
    ) = None
    segment: SegmentName | None = None
    transaction_key: TransactionKeyName | None = None
    owner: OwnerName | None = None
    text: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=256,
                description="Only transactions that have this text, ignoring case, in their id, key, owner, reason or "
                "properties.",
            ),
        ]
        | None
    ) = None
    order: (
        Annotated[
            Literal["newest"],
            Field(
                description="The latest begun first; with `state`, the latest deadline of open ones or the latest "
                "decision first. Excludes `segment`."
            ),
        ]
        | None
    ) = None


class RecordQuery(PageQuery):
    prefix: Annotated[
        str,
        Field(max_length=2_048, pattern="^/", description="Only records whose keys begin with it."),
        AfterValidator(encodable),
    ] = "/"


class HangingQuery(PageQuery):
    max_age_ms: Annotated[
        int, Field(ge=0, le=MAX_NUMBER, description="Only transactions that have been open for longer than this.")
    ] = MAX_AGE_MS
    holding: Annotated[
        bool, Field(description="Only transactions that have written or acknowledged something. A page may be shorter.")
    ] = False


class KeyListQuery(PageQuery):
    owner: OwnerName | None = None


class OwnerQuery(BaseModel):
    owner: OwnerName | None = None


def _page(
    page: TransactionPage
    | OperationPage
    | TransactionKeyPage
    | HangingPage
    | StoredRecordPage
    | StoreCheckPage
    | AcceptedTokenPage,
) -> Response:
    """The items without members that have no value, and always `next_page_token`: null marks the last page."""
    return JSONResponse(page.model_dump(mode="json", exclude_none=True) | {"next_page_token": page.next_page_token})


def _item(answer: ItemAnswer) -> dict[str, Any]:
    """A `BatchItemAnswer` as JSON members."""
    if isinstance(answer, Done):
        return {"status": 201 if answer.created else 200, "txn": answer.txn}
    problem = problem_of(from_store(answer) if isinstance(answer, MetastoreError) else answer)
    return {"status": problem.status, "problem": problem.model_dump(mode="json", exclude_none=True)}


def _record_force(txn_id: TxnId, status: int, caller: Principal, request: Request) -> None:
    address = address_of(request.scope)
    about = {"txn_id": str(txn_id)}
    audit.record("transaction.abort_by_force", about, status, principal=caller.name, address=address)


def transaction_routes(transactions: Transactions) -> APIRouter:
    """The routes of one transaction, and of many of them in a batch."""
    router = APIRouter(prefix="/v1/txns", tags=["transactions"], route_class=DirectRoute)

    _add_begins(router, transactions)

    @router.get("/{txn_id}", **TRANSACTION, responses=problems(*ALWAYS, ErrorCode.TXN_NOT_FOUND))
    async def get_transaction(txn_id: TxnIdPath, caller: Caller) -> Response:
        """The current state of a transaction."""
        return json_response(await transactions.get(txn_id, caller=caller))

    @router.post("/{txn_id}/commit", **TRANSACTION, responses=problems(*ENDS, ErrorCode.NOT_ALLOWED))
    async def commit(txn_id: TxnIdPath, caller: Caller, body: CommitRequest | None = None) -> Response:
        """Commit. A repeated commit succeeds; if it has a list of `writers`, only with the same list."""
        return json_response(await transactions.commit(txn_id, body.writers if body else None, caller=caller))

    @router.post("/{txn_id}/abort", **TRANSACTION, responses=problems(*ENDS))
    @audited("transaction.abort_by_force", only_if="force")
    async def abort(txn_id: TxnIdPath, caller: Caller, body: AbortRequest | None = None) -> Response:
        """Abort. A repeated abort succeeds, and so does aborting a transaction that has timed out or was fenced."""
        body = body or AbortRequest()
        return json_response(await transactions.abort(txn_id, body.reason, force=body.force, caller=caller))

    @router.post("/{txn_id}/writers", **TRANSACTION, responses=problems(*ENDS, ErrorCode.TXN_CONFLICT))
    async def add_writers(txn_id: TxnIdPath, body: WritersRequest, caller: Caller) -> Response:
        """Remember writers that count; a commit without `writers` uses that list."""
        return json_response(await transactions.add_writers(txn_id, body.add, caller=caller))

    @router.post("/{txn_id}/keep-alive", **TRANSACTION, responses=problems(*ENDS, ErrorCode.TXN_CONFLICT))
    async def keep_alive(txn_id: TxnIdPath, body: KeepAliveRequest, caller: Caller) -> Response:
        """Move the deadline to `timeout_ms` from now."""
        return json_response(await transactions.keep_alive(txn_id, body.timeout_ms, caller=caller))

    @router.post("/{txn_id}/prepare", **TRANSACTION, responses=problems(*ENDS))
    async def prepare(txn_id: TxnIdPath, caller: Caller, body: PrepareRequest | None = None) -> Response:
        """The first phase of an external two-phase commit: from now on the transaction can only be committed or
        aborted."""
        timeout_ms = body.prepared_timeout_ms if body else None
        return json_response(await transactions.prepare(txn_id, timeout_ms, caller=caller))

    return router


def _add_begins(router: APIRouter, transactions: Transactions) -> None:
    @router.post(
        "",
        status_code=201,
        **TRANSACTION,
        responses=problems(*WRITES, ErrorCode.NOT_ALLOWED, ErrorCode.TXN_CONFLICT)
        | {
            200: {
                "model": TransactionHeader,
                "description": "The same transaction is already open, or its version is already committed",
            }
        },
    )
    async def begin(caller: Caller, body: BeginRequest | None = None) -> Response:
        """Begin a transaction.

        Under a `transaction_key`, with the `epoch` that its connect returned, only one transaction is open: an older
        one is aborted, the same `version` returns the open transaction (200), and a `version` that is already committed
        is answered with `already_committed` (200). With authentication, the caller is its `owner`.
        """
        begun = await transactions.begin(body, caller=caller)
        return json_response(begun.txn, 201 if begun.created else 200)

    @router.post("/batch", response_model=BatchAnswer, response_model_exclude_none=True, responses=problems(*ALWAYS))
    async def batch(body: BatchRequest, caller: Caller, request: Request) -> Response:
        """Begin, commit and abort up to 1,000 transactions, each answered like a single request, in the same order.

        Items that touch the same transaction are done in the order of the list; the others share requests to the store.
        If one item is malformed, the whole request is refused and has no effect.
        """
        answers = [_item(answer) for answer in await run_batch(transactions, body.items, caller=caller)]
        for item, answer in zip(body.items, answers, strict=True):
            if isinstance(item, AbortItem) and item.force:
                _record_force(item.txn_id, answer["status"], caller, request)
        return json_response({"items": answers})


def listing_routes(transactions: Transactions, listings: Listings, stored: StoredRecords) -> APIRouter:
    router = APIRouter(prefix="/v1/txns", tags=["transactions"], route_class=StrictRoute)

    @router.get("", response_model=TransactionPage, responses=problems(*ALWAYS))
    async def list_transactions(query: Annotated[TransactionQuery, Query()], caller: Caller) -> Response:
        """Transactions that match every filter. A page may hold fewer than `limit` items without being the last one.

        With authentication these are the caller's own; an administrator sees all.
        """
        wanted = Filter(
            state=query.state,
            older_than_ms=query.older_than_ms,
            younger_than_ms=query.younger_than_ms,
            newest=query.order == "newest",
            segment=query.segment,
            transaction_key=query.transaction_key,
            text=query.text,
            owner=visible_owner(query.owner, caller),
        )
        return _page(await listings.transactions(wanted, query.limit, query.page_token))

    @router.get("/{txn_id}/ops", response_model=OperationPage, responses=problems(*ALWAYS, ErrorCode.TXN_NOT_FOUND))
    async def operations(txn_id: TxnIdPath, query: Annotated[PageQuery, Query()], caller: Caller) -> Response:
        """Operation records that no broker has cleaned up yet."""
        if not caller.superuser:
            await transactions.get(txn_id, caller=caller)
        return _page(await listings.operations(txn_id, query.limit, query.page_token))

    @router.get(
        "/{txn_id}/records", response_model=StoredRecordPage, responses=problems(*ALWAYS, ErrorCode.TXN_NOT_FOUND)
    )
    async def records(txn_id: TxnIdPath, query: Annotated[PageQuery, Query()], caller: Caller) -> Response:
        """The records of a transaction as they are in the metadata store: its header, its deadline after a
        keep-alive, whether it is prepared, the writers that count, and the operations that no broker has cleaned up
        yet."""
        if not caller.superuser:
            await transactions.get(txn_id, caller=caller)
        return _page(await stored.of_transaction(txn_id, query.limit, query.page_token))

    return router


def store_routes(stored: StoredRecords, checks: StoreChecks) -> APIRouter:
    router = APIRouter(prefix="/admin/v2/store", tags=["store"], route_class=StrictRoute)

    @router.get("/records", response_model=StoredRecordPage, responses=problems(*ALWAYS))
    async def stored_records(query: Annotated[RecordQuery, Query()]) -> Response:
        """The records of the metadata store in the order of their keys."""
        return _page(await stored.below(query.prefix, query.limit, query.page_token))

    @router.get("/check", response_model=StoreCheckPage, responses=problems(*ALWAYS))
    async def check_store(query: Annotated[PageQuery, Query()]) -> Response:
        """Compare records with each other, `limit` of them, in the order of their keys. Nothing is changed.

        The pages together are a check of the whole store. The records of a page are counted by the beginning of their
        keys, so a beginning may come again on the next page.
        """
        return _page(await checks.step(query.limit, query.page_token))

    return router


def token_routes(authenticator: Authenticator | None) -> APIRouter:
    router = APIRouter(prefix="/admin/v2/tokens", tags=["access"], route_class=StrictRoute)

    @router.get("", response_model=AcceptedTokenPage, responses=problems(ErrorCode.INVALID_ARGUMENT))
    async def accepted_tokens(query: Annotated[PageQuery, Query()]) -> Response:
        """The tokens that this coordinator accepts, and what may be done with each. Nothing here gives access: a listed
        token is shown without its secret and its hash. Without authentication there are none."""
        found = authenticator.accepted() if authenticator is not None else []
        place = int(position_of("tokens", query.page_token) or 0)
        end = place + query.limit
        return _page(
            AcceptedTokenPage(
                items=found[place:end], next_page_token=make_token("tokens", str(end)) if end < len(found) else None
            )
        )

    return router


def hanging_routes(listings: Listings) -> APIRouter:
    router = APIRouter(prefix="/admin/v2/transactions", tags=["transactions"], route_class=StrictRoute)

    @router.get("/hanging", response_model=HangingPage, responses=problems(*ALWAYS))
    async def hanging(query: Annotated[HangingQuery, Query()]) -> Response:
        """Transactions that have been open for longer than `max_age_ms`, and the segments whose readers they hold back.

        The oldest transaction is first, of the 100,000 with the earliest deadlines.
        """
        page = await hanging_transactions(
            listings, query.max_age_ms, query.limit, query.page_token, holding=query.holding
        )
        return _page(page)

    return router


def transaction_key_routes(transactions: Transactions, listings: Listings) -> APIRouter:
    router = APIRouter(tags=["transaction keys"], route_class=StrictRoute)
    keys = transactions.keys
    admin = "/admin/v2/transactions/transaction-keys"

    @router.post(
        "/v1/transaction-keys/{key}/connect",
        response_model_exclude_none=True,
        responses=problems(*WRITES, ErrorCode.NOT_ALLOWED),
    )
    @audited("transaction_key.connect")
    async def connect(key: KeyPath, body: ConnectRequest, caller: Caller) -> ConnectAnswer:
        """Become the only connection of a key: the epoch is incremented, and the open transaction of the previous
        connection is aborted.

        With authentication the key belongs to the caller; other owners may have keys with the same name.
        """
        return await keys.connect(key, owned(body, caller))

    @router.get(admin, response_model=TransactionKeyPage, responses=problems(*ALWAYS))
    async def list_keys(query: Annotated[KeyListQuery, Query()]) -> Response:
        """Keys in use, of one owner or of all."""
        return _page(await listings.transaction_keys(query.owner, query.limit, query.page_token))

    @router.get(admin + "/{key}", response_model_exclude_none=True, responses=problems(*ALWAYS, ErrorCode.NOT_FOUND))
    async def get_key(key: KeyPath, query: Annotated[OwnerQuery, Query()]) -> TransactionKeyInfo:
        """One key: its epoch and the transaction that it holds."""
        return await keys.get(key, query.owner)

    @router.post(
        admin + "/{key}/fence",
        response_model_exclude_none=True,
        responses=problems(*WRITES, ErrorCode.NOT_ALLOWED, ErrorCode.NOT_FOUND),
    )
    @audited("transaction_key.fence", query=("owner",), body=("epoch",))
    async def fence_key(key: KeyPath, body: FenceRequest, query: Annotated[OwnerQuery, Query()]) -> ConnectAnswer:
        """End the connection of a key that has this epoch: the epoch is incremented, and its open transaction is
        aborted, unless it is prepared. The next connection can go on."""
        return await keys.fence(key, body.epoch, query.owner)

    @router.delete(admin + "/{key}", response_model_exclude_none=True, responses=problems(*WRITES, ErrorCode.NOT_FOUND))
    @audited("transaction_key.delete", query=("owner",))
    async def delete_key(key: KeyPath, query: Annotated[OwnerQuery, Query()]) -> DeletedTransactionKey:
        """Delete a key, and abort the transaction that it holds. Its epochs never repeat, and committed versions stay
        committed."""
        return await keys.delete(key, query.owner)

    return router
