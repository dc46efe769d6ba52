from collections.abc import Callable
from typing import Any

class GetChildren:
    def __init__(self, path: str, watcher: Callable[[Any], None] | None) -> None: ...

class Connect:
    def __init__(
        self,
        protocol_version: int,
        last_zxid_seen: int,
        time_out: int,
        session_id: int,
        passwd: bytes,
        read_only: bool,
    ) -> None: ...
    def serialize(self) -> bytearray: ...
