"""One answer for a request that is carried out in parts (by segments, brokers or applies), some of which have failed.

It never says "nothing happened" if something did: a caller who is told so may repeat the request, or do without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metastore.errors import MetastoreError
from metatxn.wire import errors


def one_error(
    failures: Sequence[BaseException],
    parts: int,
    is_final: Callable[[errors.MetatxnError], bool],
    done: str,
    action: str,
) -> BaseException:
    """The first error that `is_final`; or an error that is the whole answer; or else OUTCOME_UNKNOWN, which says what
    is `done` and which `action` to take. It is definite only if every part has failed, and each of them definitely."""
    nothing_done = len(failures) == parts and all(map(_is_definite, failures))
    final = next((error for error in failures if isinstance(error, errors.MetatxnError) and is_final(error)), None)
    if final is not None:
        return final if nothing_done else final.not_definite()
    if nothing_done or parts == 1:
        return failures[0]
    detail = f"{parts - len(failures)} of {parts} {done}; of the others: {failures[0]}"
    return errors.OutcomeUnknown(detail, action=action)


def _is_definite(error: BaseException) -> bool:
    return isinstance(error, errors.MetatxnError | MetastoreError) and error.definite
