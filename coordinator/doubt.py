"""What a request may claim about its effect after a reply was lost.

"The request had no effect" (`definite: true`) is a guarantee. Once a write of a request was sent and its answer lost,
an error that ends the request must not give that guarantee, however definite the error itself is: the earlier copy may
have taken effect.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from coordinator.settling import Overtaken
from metastore.errors import MetastoreError, OutcomeUnknown
from metatxn.wire import errors

ACTION_AFTER_BEGIN = (
    "Read this transaction, and use it if it exists. Otherwise begin another one; this one ends by its timeout."
)


class Doubt:
    """A block in which a refusal or a store error becomes OUTCOME_UNKNOWN while a reply is lost.

    `action` is what the caller should do in that case, and `members` are added to the answer.
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
        """The records have been read since then, and show what happened to the lost write."""
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
