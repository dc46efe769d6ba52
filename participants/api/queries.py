"""Query parameters that several endpoints have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Query
from pydantic import BeforeValidator

from metatxn.wire.names import parse_page_token


def parsed_by(parse: Callable[[str], object]) -> BeforeValidator:
    """A query parameter in its typed form; what it raises becomes a 422 that names the parameter."""
    return BeforeValidator(lambda text: parse(text) if isinstance(text, str) else text)


PageTokenQuery = Annotated[str | None, parsed_by(parse_page_token), Query(max_length=1024)]
