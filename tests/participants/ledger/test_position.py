"""Goal: positions order as the log does, and their text form is unique. Method: round trips and malformed texts."""

from __future__ import annotations

import pytest

from metatxn.wire.position import Position


@pytest.mark.parametrize("text", ["0:0", "3:17", "3:-1", "18446744073709551615:18446744073709551615"])
def test_text_round_trip(text: str) -> None:
    assert str(Position.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "3:",
        ":3",
        "3:-2",
        "-1:0",
        "03:1",
        "3:01",
        "3:1 ",
        "3:1:1",
        "a:b",
        "3:+1",
        "٣:1",
        "18446744073709551616:0",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a position"):
        Position.parse(text)


def test_order_is_ledger_then_entry() -> None:
    assert Position(1, 99) < Position(2, -1) < Position(2, 0)


def test_neighbours() -> None:
    assert Position(2, 0).before == Position(2, -1)
    assert Position(2, -1).next == Position(2, 0)
