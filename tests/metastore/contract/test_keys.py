"""Goal: key parts come back as they were, never overlap, and sort as promised.

Method: properties over arbitrary text (hypothesis).
"""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from metastore import keys

TEXT = st.text(st.characters(exclude_categories=["Cs"]))  # lone surrogates are no text
ANY_ORDER = st.integers(0, 10**20 - 1)


@given(TEXT)
def test_escape_round_trip(part: str) -> None:
    escaped = keys.escape(part)
    assert keys.unescape(escaped) == part
    assert escaped.isascii() and escaped
    assert "/" not in escaped and ":" not in escaped and "&" not in escaped
    assert escaped not in (".", "..")


@given(st.lists(TEXT, min_size=1))
def test_join_round_trip(parts: list[str]) -> None:
    assert keys.split(keys.join(*parts)) == parts
    assert keys.split("/" + keys.join(*parts)) == parts


@given(TEXT, TEXT, TEXT)
def test_the_prefix_of_one_name_never_matches_another(name: str, other: str, rest: str) -> None:
    assume(name != other)
    assert not keys.join(other, rest).startswith(keys.join(name) + "/")
    assert not (keys.join(other) + ":").startswith(keys.join(name) + ":")


@given(TEXT, TEXT)
def test_escaping_is_unambiguous(name: str, other: str) -> None:
    assert (keys.escape(name) == keys.escape(other)) == (name == other)


@given(ANY_ORDER, ANY_ORDER)
def test_numbers_sort_as_numbers(one: int, two: int) -> None:
    assert (keys.number(one) < keys.number(two)) == (one < two)
    assert len(keys.number(one)) == 20


@pytest.mark.parametrize("value", [-1, 10**20])
def test_numbers_out_of_range_are_a_programming_error(value: int) -> None:
    with pytest.raises(AssertionError):
        keys.number(value)


@given(TEXT, TEXT)
def test_prefix_end_splits_what_starts_with_the_prefix_from_what_does_not(prefix: str, key: str) -> None:
    assume(prefix.strip("\U0010ffff"))
    end = keys.prefix_end(prefix)
    end.encode()
    assert (prefix.encode() <= key.encode() < end.encode()) == key.startswith(prefix)
    assert prefix <= prefix + key < end


@pytest.mark.parametrize("last", ["\ud7ff", "\ue000", "\uffff", "\U0010fffe", "a\U0010ffff", "a\U0010ffff\U0010ffff"])
def test_prefix_end_at_the_edges_of_the_code_points(last: str) -> None:
    end = keys.prefix_end("/" + last)
    assert ("/" + last + "\U0010ffff" * 3).encode() < end.encode()
    assert end.encode() <= b"/b" or last[0] != "a"


def test_an_empty_prefix_has_no_end() -> None:
    with pytest.raises(AssertionError):
        keys.prefix_end("")


@given(TEXT)
def test_code_point_order_is_byte_order(text: str) -> None:
    assert sorted(text) == sorted(text, key=str.encode)
