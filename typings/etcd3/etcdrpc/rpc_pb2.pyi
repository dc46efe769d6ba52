"""The part of etcd's API that this project uses. Messages are declared as they behave, not as they are generated."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from etcd3.etcdrpc.kv_pb2 import Event, KeyValue
from google.protobuf.message import Message

_M = TypeVar("_M", bound=Message)

class Messages(Generic[_M]):
    """A repeated field: `add` makes a message in place, which costs a third of making one and copying it in."""

    def add(self, **fields: object) -> _M: ...
    def __iter__(self) -> Iterator[_M]: ...
    def __getitem__(self, index: int) -> _M: ...
    def __len__(self) -> int: ...

class ResponseHeader(Message):
    cluster_id: int
    member_id: int
    revision: int
    def __init__(self, *, cluster_id: int = ..., member_id: int = ..., revision: int = ...) -> None: ...

class Member(Message):
    ID: int
    clientURLs: Sequence[str]
    def __init__(self, *, ID: int = ..., clientURLs: Iterable[str] = ...) -> None: ...

class MemberListRequest(Message):
    def __init__(self) -> None: ...

class MemberListResponse(Message):
    header: ResponseHeader
    members: Sequence[Member]
    def __init__(self, *, header: ResponseHeader = ..., members: Iterable[Member] = ...) -> None: ...

class StatusRequest(Message):
    def __init__(self) -> None: ...

class StatusResponse(Message):
    header: ResponseHeader
    version: str
    dbSize: int
    errors: Sequence[str]
    def __init__(
        self,
        *,
        header: ResponseHeader = ...,
        version: str = ...,
        dbSize: int = ...,
        errors: Sequence[str] = ...,
    ) -> None: ...

class RangeRequest(Message):
    ASCEND: int
    DESCEND: int
    KEY: int
    key: bytes
    range_end: bytes
    limit: int
    revision: int
    def __init__(
        self,
        *,
        key: bytes = ...,
        range_end: bytes = ...,
        limit: int = ...,
        revision: int = ...,
        sort_order: int = ...,
        sort_target: int = ...,
        keys_only: bool = ...,
        count_only: bool = ...,
    ) -> None: ...

class RangeResponse(Message):
    header: ResponseHeader
    kvs: Sequence[KeyValue]
    more: bool
    def __init__(self, *, kvs: Iterable[KeyValue] = ..., more: bool = ...) -> None: ...

class PutRequest(Message):
    key: bytes
    value: bytes
    lease: int
    def __init__(self, *, key: bytes = ..., value: bytes = ..., lease: int = ...) -> None: ...

class PutResponse(Message):
    header: ResponseHeader

class DeleteRangeRequest(Message):
    key: bytes
    range_end: bytes
    def __init__(self, *, key: bytes = ..., range_end: bytes = ...) -> None: ...

class RequestOp(Message):
    request_range: RangeRequest
    request_put: PutRequest
    request_delete_range: DeleteRangeRequest
    request_txn: TxnRequest
    def __init__(
        self,
        *,
        request_range: RangeRequest = ...,
        request_put: PutRequest = ...,
        request_delete_range: DeleteRangeRequest = ...,
        request_txn: TxnRequest = ...,
    ) -> None: ...

class ResponseOp(Message):
    response_range: RangeResponse
    response_txn: TxnResponse
    def __init__(self, *, response_range: RangeResponse = ..., response_txn: TxnResponse = ...) -> None: ...

class Compare(Message):
    EQUAL: int
    VERSION: int
    CREATE: int
    MOD: int
    def __init__(
        self,
        *,
        result: int = ...,
        target: int = ...,
        key: bytes = ...,
        version: int = ...,
        create_revision: int = ...,
        mod_revision: int = ...,
        range_end: bytes = ...,
    ) -> None: ...

class TxnRequest(Message):
    compare: Messages[Compare]
    success: Messages[RequestOp]
    failure: Messages[RequestOp]
    def __init__(
        self,
        *,
        compare: Iterable[Compare] = ...,
        success: Iterable[RequestOp] = ...,
        failure: Iterable[RequestOp] = ...,
    ) -> None: ...

class TxnResponse(Message):
    header: ResponseHeader
    succeeded: bool
    responses: Sequence[ResponseOp]
    def __init__(
        self, *, header: ResponseHeader = ..., succeeded: bool = ..., responses: Iterable[ResponseOp] = ...
    ) -> None: ...

class CompactionRequest(Message):
    def __init__(self, *, revision: int = ..., physical: bool = ...) -> None: ...

class CompactionResponse(Message):
    header: ResponseHeader

class WatchCreateRequest(Message):
    def __init__(
        self, *, key: bytes = ..., range_end: bytes = ..., start_revision: int = ..., fragment: bool = ...
    ) -> None: ...

class WatchRequest(Message):
    def __init__(self, *, create_request: WatchCreateRequest = ...) -> None: ...

class WatchResponse(Message):
    header: ResponseHeader
    created: bool
    canceled: bool
    compact_revision: int
    cancel_reason: str
    fragment: bool
    events: Sequence[Event]

class LeaseGrantRequest(Message):
    def __init__(self, *, TTL: int = ..., ID: int = ...) -> None: ...

class LeaseGrantResponse(Message):
    ID: int
    TTL: int

class LeaseRevokeRequest(Message):
    def __init__(self, *, ID: int = ...) -> None: ...

class LeaseRevokeResponse(Message):
    header: ResponseHeader

class LeaseKeepAliveRequest(Message):
    def __init__(self, *, ID: int = ...) -> None: ...

class LeaseKeepAliveResponse(Message):
    ID: int
    TTL: int

class AuthenticateRequest(Message):
    def __init__(self, *, name: str = ..., password: str = ...) -> None: ...

class AuthenticateResponse(Message):
    token: str
