"""The query parameters that several endpoints share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Query
from pydantic import BeforeValidator

from metatxn.wire.names import parse_page_token


def parsed_by(parse: Callable[[str], object]) -> BeforeValidator:
    """Parses a query parameter. A `ValueError` becomes a 422 that names the parameter."""
    return BeforeValidator(lambda text: parse(text) if isinstance(text, str) else text)


PageTokenQuery = Annotated[str | None, parsed_by(parse_page_token), Query(max_length=1024)]
