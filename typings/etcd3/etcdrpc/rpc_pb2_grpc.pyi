"""etcd's service stubs as they behave on a `grpc.aio` channel."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from etcd3.etcdrpc import rpc_pb2

_Request = TypeVar("_Request", contravariant=True)
_Response = TypeVar("_Response", covariant=True)
_Metadata = Sequence[tuple[str, str]]

class Unary(Protocol[_Request, _Response]):
    async def __call__(
        self,
        request: _Request,
        *,
        timeout: float | None = ...,
        metadata: _Metadata | None = ...,
        wait_for_ready: bool | None = ...,
    ) -> _Response: ...

class Stream(Protocol[_Request, _Response]):
    async def write(self, request: _Request) -> None: ...
    async def read(self) -> _Response | object: ...
    async def done_writing(self) -> None: ...
    def cancel(self) -> bool: ...

class Streaming(Protocol[_Request, _Response]):
    def __call__(
        self, *, timeout: float | None = ..., metadata: _Metadata | None = ..., wait_for_ready: bool | None = ...
    ) -> Stream[_Request, _Response]: ...

class KVStub:
    Range: Unary[rpc_pb2.RangeRequest, rpc_pb2.RangeResponse]
    Put: Unary[rpc_pb2.PutRequest, rpc_pb2.PutResponse]
    Txn: Unary[rpc_pb2.TxnRequest, rpc_pb2.TxnResponse]
    Compact: Unary[rpc_pb2.CompactionRequest, rpc_pb2.CompactionResponse]
    def __init__(self, channel: Any) -> None: ...

class WatchStub:
    Watch: Streaming[rpc_pb2.WatchRequest, rpc_pb2.WatchResponse]
    def __init__(self, channel: Any) -> None: ...

class LeaseStub:
    LeaseGrant: Unary[rpc_pb2.LeaseGrantRequest, rpc_pb2.LeaseGrantResponse]
    LeaseRevoke: Unary[rpc_pb2.LeaseRevokeRequest, rpc_pb2.LeaseRevokeResponse]
    LeaseKeepAlive: Streaming[rpc_pb2.LeaseKeepAliveRequest, rpc_pb2.LeaseKeepAliveResponse]
    def __init__(self, channel: Any) -> None: ...

class AuthStub:
    Authenticate: Unary[rpc_pb2.AuthenticateRequest, rpc_pb2.AuthenticateResponse]
    def __init__(self, channel: Any) -> None: ...

class ClusterStub:
    MemberList: Unary[rpc_pb2.MemberListRequest, rpc_pb2.MemberListResponse]
    def __init__(self, channel: Any) -> None: ...

class MaintenanceStub:
    Status: Unary[rpc_pb2.StatusRequest, rpc_pb2.StatusResponse]
    def __init__(self, channel: Any) -> None: ...
