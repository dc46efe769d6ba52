"""The meaning of an answer, whether a service or something in front of it gave it.

2xx and understood               done
a problem of the contract        as the problem says: `retriable`, `definite`, `action`, even with an unknown code
below 500, and no such problem   a gateway let nothing through
from 500 on, or 2xx and not      a question (GET) was not answered; any other request may have been carried out:
understood                       a gateway's 502 or 504 says that the *answer* did not come
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ValidationError

from metatxn.transport.api import Answer
from metatxn.wire.errors import MetatxnError, OutcomeUnknown, ServiceUnreachable
from metatxn.wire.problems import from_problem

QUESTION = "GET"
"""The one method that changes nothing."""
_PASSES = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
"""The statuses with which a gateway answers while it lacks something that may come back."""
_NOT_JSON = "is not JSON, so it is not from a metatxn service"

M = TypeVar("M", bound=BaseModel)


def error_of(answer: Answer) -> MetatxnError:
    """The error in an answer that is not a 2xx."""
    problem = _problem_in(answer)
    if problem is None:
        return _not_ours(answer)
    error = from_problem(problem, _retry_after_s(answer))
    error.members.setdefault("status", answer.status)
    return error


def json_of(answer: Answer) -> Any:
    """The JSON of a 2xx answer. Raises `ServiceUnreachable` if there is none, and `OutcomeUnknown` if that may hide an
    effect of the request."""
    try:
        return answer.json()
    except ValueError:
        raise _not_understood(answer, _NOT_JSON) from None


def parsed(model: type[M], answer: Answer) -> M:
    """A 2xx answer as a model of this version of the services. Raises the errors of `json_of`."""
    try:
        return model.model_validate_json(answer.body)
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            raise _not_understood(answer, _NOT_JSON) from None
        raise _not_understood(answer, _not_the(model, error)) from error


def parsed_part(model: type[M], value: Any, answer: Answer) -> M:
    """Like `parsed`, for a value in the answer's JSON."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _not_understood(answer, _not_the(model, error)) from error


def _problem_in(answer: Answer) -> dict[str, Any] | None:
    """The problem in the answer if it has the form of the contract: with a code and two facts, which a gateway's own
    problems lack."""
    try:
        body = answer.json()
    except ValueError:
        return None
    if not isinstance(body, dict) or not isinstance(body.get("code"), str):
        return None
    return body if all(isinstance(body.get(fact), bool) for fact in ("retriable", "definite")) else None


def _not_ours(answer: Answer) -> MetatxnError:
    status = answer.status
    base, path = _parts(answer)
    said = f"{base} answered {status} to {path}, but not like a metatxn service"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and answer.method != QUESTION:
        return OutcomeUnknown(said, status=status)
    return ServiceUnreachable(said, retriable=status in _PASSES, retry_after_s=_retry_after_s(answer), status=status)


def _not_understood(answer: Answer, why: str) -> MetatxnError:
    base, path = _parts(answer)
    said = f"the answer of {base} to {path} {why}"
    if answer.method != QUESTION:
        return OutcomeUnknown(said)
    return ServiceUnreachable(said, retriable=False)


def _not_the(model: type[M], error: ValidationError) -> str:
    return f"is not the {model.__name__} of a metatxn service: {error}"


def _parts(answer: Answer) -> tuple[str, str]:
    url = urlsplit(answer.url)
    return f"{url.scheme}://{url.netloc}", unquote(url.path)


def _retry_after_s(answer: Answer) -> float | None:
    try:
        return max(0.0, float(answer.header("Retry-After") or ""))
    except ValueError:
        return None
