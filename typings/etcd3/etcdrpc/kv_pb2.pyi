from google.protobuf.message import Message

class KeyValue(Message):
    key: bytes
    create_revision: int
    mod_revision: int
    version: int
    value: bytes
    lease: int
    def __init__(
        self,
        *,
        key: bytes = ...,
        create_revision: int = ...,
        mod_revision: int = ...,
        version: int = ...,
        value: bytes = ...,
        lease: int = ...,
    ) -> None: ...

class Event(Message):
    PUT: int
    DELETE: int
    type: int
    kv: KeyValue
    def __init__(self, *, type: int = ..., kv: KeyValue | None = ...) -> None: ...
