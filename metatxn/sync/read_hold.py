"""`ReadHold`: the blocking counterpart of `AsyncReadHold`."""

from __future__ import annotations

from metatxn.read_hold import AsyncReadHold
from metatxn.sync.background import Facade, blocking
from metatxn.wire.errors import MetatxnError


class ReadHold(Facade[AsyncReadHold]):
    """A hold of a topic at `revision`, to be passed to reads with `isolation="snapshot"`. It is prolonged in the
    background. Leaving its `with` releases it."""

    prolong = blocking(AsyncReadHold.prolong)
    release = blocking(AsyncReadHold.release)

    @property
    def topic(self) -> str:
        return self._core.topic

    @property
    def revision(self) -> int:
        return self._core.revision

    @property
    def lost(self) -> MetatxnError | None:
        """Why it has ended without having been released, once that is known."""
        return self._core.lost
