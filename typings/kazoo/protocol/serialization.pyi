from collections.abc import Callable
from typing import Any

class GetChildren:
    def __init__(self, path: str, watcher: Callable[[Any], None] | None) -> None: ...
