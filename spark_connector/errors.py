"""What a user of Spark sees when something fails: one line with the code, what happened and what to do.

Spark shows the last line of a Python traceback, so this line must contain everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import metatxn


@contextmanager
def one_line() -> Iterator[None]:
    """Raise errors of the client library again, as the same class, with their code and action in the text."""
    try:
        yield
    except metatxn.MetatxnError as error:
        raise _worded(error) from error


class DataLossError(RuntimeError):
    """Data that was to be read no longer exists."""


def data_lost(what: str, reason: str) -> DataLossError:
    """`what` is a segment or a topic."""
    return DataLossError(
        f"DATA_LOSS: {what} cannot be read any further: {reason}. Rows were dropped before this query had read them; "
        "with option failOnDataLoss=false it continues without them."
    )


def taken_over(app_id: str, cause: metatxn.MetatxnError) -> metatxn.ExpiredTransaction:
    return metatxn.ExpiredTransaction(
        f"another run took over application id {app_id!r}, so this run must stop ({cause.detail})",
        action="Stop this run; the newer one continues from the last committed batch. "
        "Jobs that run at the same time need different application ids.",
    )


def _worded(error: metatxn.MetatxnError) -> metatxn.MetatxnError:
    code = str(error.code or error.members.get("code") or "UNREACHABLE")
    if str(error).startswith(f"{code}: "):
        return error
    line = f"{code}: {error.detail}. {error.action}".replace("..", ".")
    return type(error)(line, action=error.action, retriable=error.retriable, definite=error.definite, **error.members)
