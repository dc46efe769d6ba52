import logging
from typing import Any

from kazoo.client import KazooClient

class ConnectionHandler:
    client: KazooClient
    def __init__(
        self, client: KazooClient, retry_sleeper: Any, logger: logging.LoggerAdapter[logging.Logger] | None = ...
    ) -> None: ...
    def _connect_attempt(self, host: str, hostip: str, port: int, retry: Any) -> Any: ...
