"""What a verb may claim about itself after a reply was lost.

"Nothing happened" (`definite: true`) is a promise. Once a write of a call was sent and its answer lost, an error that
ends the call must not make that promise, however definite the error itself is: the earlier copy may have landed.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from coordinator.settling import Overtaken
from metastore.errors import MetastoreError, OutcomeUnknown
from metatxn.wire import errors

ACTION_AFTER_BEGIN = (
    "Read this transaction and use it if it is there; otherwise begin another one: this one times out by itself."
)


class Doubt:
    """A block in which a refusal or a store error becomes OUTCOME_UNKNOWN while a reply is lost.

    `action` is what the caller shall do then, and `members` go into the answer.
    """

    def __init__(self, action: str | None = None, **members: str) -> None:
        self._action = action
        self._members = members
        self.lost = False

    def about(self, **members: str) -> None:
        self._members |= members

    def note(self, overtaken: Overtaken) -> None:
        self.lost = self.lost or overtaken.perhaps_ours

    def settle(self) -> None:
        """The records were read since, and they say what became of the lost write."""
        self.lost = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, OutcomeUnknown) or (self.lost and isinstance(error, MetastoreError | errors.MetatxnError)):
            raise outcome_unknown(error, self._action, **self._members) from error


def outcome_unknown(cause: BaseException, action: str | None = None, **members: Any) -> errors.MetatxnError:
    return errors.OutcomeUnknown(f"a reply of the store was lost: {cause}", action=action, **members)
