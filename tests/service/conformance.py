"""What a service answers to requests that are made from its OpenAPI page.

It is imported by the test that needs it: schemathesis takes more than a second, in each worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import schemathesis
from hypothesis import HealthCheck, given, settings
from requests import RequestException
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from metatxn.wire.entry_groups import MEDIA_TYPE
from tests.extent import usually

schemathesis.serializer.alias(MEDIA_TYPE, "application/octet-stream")

HELD = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]
EXAMPLES = {GenerationMode.POSITIVE: usually(2, 15), GenerationMode.NEGATIVE: usually(1, 15)}
"""Of each operation; more in `make test-all`."""


def failures(url: str, kind: Literal["positive", "negative"]) -> list[str]:
    """Of all operations of the page of the service at `url`: requests that follow it, or requests that do not."""
    mode = GenerationMode(kind)
    page = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = []
    for found in page.get_all_operations():
        assert isinstance(found, Ok), f"the page is not valid: {found}"
        operations.append(found.ok())
    assert len(operations) > 10
    if mode is GenerationMode.NEGATIVE:
        operations = [operation for operation in operations if takes_what_may_be_wrong(operation)]
    return [failure for operation in operations for failure in failures_of(operation, mode)]


def takes_what_may_be_wrong(operation: APIOperation[Any, Any, Any, Any]) -> bool:
    """Any text is right in a path that is all there is to a request; a thousand attempts find nothing else."""
    return bool(operation.body or operation.query or operation.headers or operation.cookies)


def failures_of(operation: APIOperation[Any, Any, Any, Any], mode: GenerationMode) -> Iterator[str]:
    """At most one: the smallest request that is answered wrongly."""

    @settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=EXAMPLES[mode],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def conforms(case: Case[Any]) -> None:
        case.call_and_validate(checks=HELD)

    try:
        conforms()
    except (FailureGroup, RequestException) as failure:
        yield f"{operation.label}: {failure}"
