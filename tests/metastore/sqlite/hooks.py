"""Connections that fail on purpose, and the processes the tests kill.

A `Hooked` connection sees every statement before and after SQLite does. `Hooks.connect` is handed to
`SqliteStore.open`, so the production code runs unchanged.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Any

Hook = Callable[[str], None]


def _nothing(statement: str) -> None:
    pass


class Hooks:
    def __init__(self) -> None:
        self.before: Hook = _nothing
        self.after: Hook = _nothing
        self.statements: list[str] = []
        self.connections: list[sqlite3.Connection] = []

    def connect(self, database: str, **options: Any) -> sqlite3.Connection:
        hooks = self

        class Hooked(sqlite3.Connection):
            def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
                hooks.statements.append(sql)
                hooks.before(sql)
                cursor = super().execute(sql, *parameters)
                hooks.after(sql)
                return cursor

        connection = sqlite3.connect(database, factory=Hooked, **options)
        self.connections.append(connection)
        return connection


def in_writer() -> bool:
    """Whether the writer's thread asks, and not the reader's."""
    return threading.current_thread().name.startswith("sqlite writer")


def disk_error(message: str = "disk I/O error") -> sqlite3.OperationalError:
    return sqlite3.OperationalError(message)
