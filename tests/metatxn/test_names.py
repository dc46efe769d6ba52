"""The texts that name places: of a segment, of a time, of how far a browse has come."""

from __future__ import annotations

import pytest

from metatxn.wire.names import BrowseToken, ReadTime, _encode, number_of_segment, token_or_time
from metatxn.wire.position import Position

SEGMENT = "segment://public/default/t/0000-ffff-3"


def test_a_segment_has_a_number_and_nothing_else_has() -> None:
    assert number_of_segment(SEGMENT) == 3
    assert number_of_segment("segment://public/default/t") == -1


@pytest.mark.parametrize("text", ["@yesterday", "@", "@2026-11-22T10:00:00"])
def test_a_time_needs_a_zone(text: str) -> None:
    with pytest.raises(ValueError, match="with a time zone"):
        token_or_time(text)


def test_a_time_is_what_it_was_written_as() -> None:
    assert token_or_time("@1970-01-01T01:00:00.250+01:00") == ReadTime(250)
    assert ReadTime.parse(str(ReadTime(250))) == ReadTime(250)


@pytest.mark.parametrize("place", [["1:0", -1], ["1:0"], "1:0", [1, 0], ["1:0", 1.5], ["1:0", "1"]])
def test_a_token_with_a_place_that_is_none_is_refused(place: object) -> None:
    good = BrowseToken({SEGMENT: (Position(1, 0), 2)})
    assert BrowseToken.parse(str(good)) == good
    with pytest.raises(ValueError, match="browse token"):
        BrowseToken.parse(_encode([{SEGMENT: place}, None]))
