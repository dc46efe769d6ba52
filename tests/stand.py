"""Applications that outlive what they serve: making the routes of one takes longer than most tests that need it."""

from __future__ import annotations

from typing import Any


class Stand:
    """Stands for the object that serves in its place now. `parts` are attributes that are stood for likewise, because
    the routes take them when they are made."""

    def __init__(self, **parts: Stand) -> None:
        self._parts = parts
        self._for: Any = None

    def stand_for(self, served: Any) -> None:
        self._for = served
        for name, part in self._parts.items():
            part.stand_for(getattr(served, name))

    def let_go(self) -> None:
        self._for = None
        for part in self._parts.values():
            part.let_go()

    def __getattr__(self, name: str) -> Any:
        return self._parts.get(name) or getattr(self._for, name)
