"""The query parameters that several endpoints share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import AfterValidator, BeforeValidator

from metatxn.wire.ids import TxnId
from metatxn.wire.names import (
    parse_column_list,
    parse_page_token,
    parse_pair_token,
    place_or_time,
    token_or_time,
)
from metatxn.wire.text import no_control_characters


def parsed_by(parse: Callable[[str], object]) -> BeforeValidator:
    """Parse a query parameter. A `ValueError` becomes a 422 that names the parameter."""
    return BeforeValidator(lambda text: parse(text) if isinstance(text, str) else text)


MAX_WAIT_MS = 60_000
MAX_READ_BYTES = 16 << 20
MAX_ENTRIES_BACK = 1_000
PlaceQuery = Annotated[
    Any,
    parsed_by(place_or_time),
    Query(description="`Metatxn-Next`, or a position, exclusive; or a time such as @2026-11-22T10:00:00Z"),
]
TokenQuery = Annotated[
    Any,
    parsed_by(token_or_time),
    Query(description="`next` of an earlier answer, or a time such as @2026-11-22T10:00:00Z"),
]
RevisionQuery = Annotated[int | None, Query(ge=0, le=2**63 - 1, description="Store revision, for `snapshot`")]
StartQuery = Annotated[Literal["earliest", "latest"], Query(description="Where to begin without `after`")]
WaitQuery = Annotated[int, Query(ge=0, le=MAX_WAIT_MS, description="Long-poll: wait for the first visible entry")]
ColumnsQuery = Annotated[
    Any,
    parsed_by(parse_column_list),
    Query(description="The columns of tables that the reader needs, with commas between"),
]
MaxBytesQuery = Annotated[int, Query(ge=1, le=MAX_READ_BYTES)]
TxnIdQuery = Annotated[TxnId | None, Query(description="32 hex digits")]
PageTokenQuery = Annotated[str | None, parsed_by(parse_page_token), Query()]
PairTokenQuery = Annotated[Any, parsed_by(parse_pair_token), Query()]
TextQuery = Annotated[
    str | None,
    Query(min_length=1, max_length=256, description="Only what has this text in its full name, in any case."),
    AfterValidator(no_control_characters),
]
