"""One answer for a request that is carried out in parts, by segments, brokers or applies, of which some have failed.

Never "nothing happened" when something did: whoever is told so may send it again, or do without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metastore.errors import MetastoreError
from metatxn.wire.problems import ErrorCode, ServiceError


def one_error(
    errors: Sequence[BaseException], parts: int, is_final: Callable[[ServiceError], bool], done: str, action: str
) -> BaseException:
    """The first error that `is_final`; an error that says it all; else OUTCOME_UNKNOWN, with what is `done` and the
    `action` to take. It is definite only if every part has failed, and each of them for certain."""
    nothing_done = len(errors) == parts and all(map(_is_definite, errors))
    final = next((error for error in errors if isinstance(error, ServiceError) and is_final(error)), None)
    if final is not None:
        return final if nothing_done else final.partly()
    if nothing_done or parts == 1:
        return errors[0]
    detail = f"{parts - len(errors)} of {parts} {done}; of the others: {errors[0]}"
    return ServiceError(ErrorCode.OUTCOME_UNKNOWN, detail, action=action)


def _is_definite(error: BaseException) -> bool:
    return isinstance(error, ServiceError | MetastoreError) and error.definite
