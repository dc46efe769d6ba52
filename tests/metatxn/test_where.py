"""Goal: an expression over columns means what its page says, and one that means nothing is refused in words.

Method: values of every type beside expressions, and every way to end too early.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

import metatxn
from metatxn.stored.where import LONGEST, parsed_where

ROW: dict[str, Any] = {
    "amount": 100,
    "price": Decimal("17.50"),
    "country": "DE",
    "urgent": True,
    "none": None,
    "a b": {"c.d": 1},
    "customer": {"name": "Ada"},
    "at": datetime(2026, 3, 2, 9, 4, tzinfo=UTC),
    "day": date(2026, 3, 2),
    "tags": ["a"],
    "raw": b"a",
    "and": 1,
}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("amount = 100", True),
        ("amount=100.0", True),
        ("amount > 100", False),
        ("amount >= 1e2 AND amount <= 100", True),
        ("amount != 100", False),
        ("price > 17.4", True),
        ("price < 17.6", True),
        ('country = "DE"', True),
        ('country ~ "d"', True),
        ('country ~ "x"', False),
        ('country != "FR"', True),
        ('country < "FR"', True),
        ("urgent = true", True),
        ("urgent != false", True),
        ("urgent = 1", False),
        ("amount = true", False),
        ('amount != "100"', False),
        ("none = null", True),
        ("missing = null", True),
        ("missing != 1", False),
        ("amount != null", True),
        ('customer.name = "Ada"', True),
        ("customer.name.first = null", True),
        ("`a b`.`c.d` = 1", True),
        ("`and` = 1", True),
        ('at >= "2026-03-02 09:00" and at < "2026-03-03"', True),
        ('day = "2026-03-02"', True),
        ('tags = "a" or raw = "a" or customer = "Ada"', False),
        ('amount = 1 and country = "DE" or urgent = true', True),
        ('amount = 100 or country = "DE" and urgent = false', True),
        ("value = null", True),
        ('country = "D\\u0045"', True),
    ],
)
def test_it_matches_what_it_says(text: str, matches: bool) -> None:
    assert parsed_where(text).matches(ROW) == matches


def test_a_value_that_is_no_object_is_the_column_value() -> None:
    assert parsed_where('value ~ "ell"').matches("hello")
    assert parsed_where("value > 1").matches(2)
    assert not parsed_where("other = 2").matches(2)
    assert not parsed_where('value = "a"').matches(b"a")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("amount", "ends where one of"),
        ("amount =", "ends where a value"),
        ("amount = 1 and", "ends where a column"),
        ("amount = 1 amount = 2", "`and` or `or`"),
        ("= 1", "a column"),
        ("amount 1", "one of"),
        ("amount = DE", "text must be in quotes"),
        ('amount = "DE', "cannot be read"),
        ('amount = "\\x"', "not a value"),
        ("amount = 1; drop", "cannot be read"),
        ("urgent < true", "= and !="),
        ("none ~ null", "= and !="),
        ("amount ~ 1", "a text in quotes"),
        ("amount = `x`", "not a value"),
        ("a = 1 or " * 100, "characters"),
        ("((((", "cannot be read"),
    ],
)
def test_what_means_nothing_is_refused(text: str, words: str) -> None:
    with pytest.raises(metatxn.InvalidArgument, match=r"^where: ") as refused:
        parsed_where(text)
    assert words in refused.value.detail and len(refused.value.detail) < LONGEST
