"""Goal: it is known who consumes, who may, and who is gone. Method: the time is handed in."""

from __future__ import annotations

import pytest

from participants.subscription.sessions import ConsumerBusy, Sessions


def test_a_consumer_is_gone_once_it_was_silent_for_the_timeout() -> None:
    sessions = Sessions("shared", 30)
    for name, now in (("a", 0), ("b", 20)):
        sessions.exit(name, sessions.enter(name, now), now)
    assert sessions.next_expiry_s() == 30
    assert sessions.expire(29.9) == [] and sessions.expire(30) == ["a"]
    assert sessions.consumers == ["b"] and sessions.next_expiry_s() == 50


def test_each_request_says_how_long_its_consumer_may_be_silent() -> None:
    sessions = Sessions("shared", 30)
    sessions.exit("a", sessions.enter("a", 0, 5), 0)
    assert sessions.next_expiry_s() == 5
    sessions.exit("a", sessions.enter("a", 1), 1)
    assert sessions.next_expiry_s() == 31 and sessions.expire(30.9) == []


def test_who_waits_is_not_silent_however_long_it_takes() -> None:
    sessions = Sessions("shared", 30)
    session = sessions.enter("a", 0)
    assert sessions.enter("a", 1) == session
    sessions.exit("a", session, 2)
    assert sessions.next_expiry_s() is None and sessions.expire(1000) == []
    sessions.exit("a", session, 1000)
    assert sessions.next_expiry_s() == 1030


def test_exclusive_has_one_until_it_is_gone() -> None:
    sessions = Sessions("exclusive", 30)
    first = sessions.enter("a", 0)
    sessions.enter("a", 0)
    with pytest.raises(ConsumerBusy) as busy:
        sessions.enter("b", 0)
    assert busy.value.holder == "a" and sessions.consumers == ["a"]
    assert sessions.leave("a") and not sessions.leave("a")
    second = sessions.enter("b", 0)
    assert sessions.may_receive(second) and not sessions.may_receive(first)


def test_failover_has_one_that_is_active_and_the_next_one_follows() -> None:
    sessions = Sessions("failover", 30)
    numbers = {name: sessions.enter(name, 0) for name in "abc"}
    assert [name for name in "abc" if sessions.may_receive(numbers[name])] == ["a"]
    sessions.leave("a")
    numbers["a"] = sessions.enter("a", 1)  # back, and at the end of the queue
    assert [name for name in "abc" if sessions.may_receive(numbers[name])] == ["b"]


def test_who_comes_back_under_the_same_name_has_another_session() -> None:
    """So that what it held in the one before returns, and a request of that one changes nothing in this."""
    sessions = Sessions("shared", 30)
    first = sessions.enter("a", 0)
    sessions.leave("a")
    second = sessions.enter("a", 1)
    assert sessions.numbers == [second] != [first]
    assert not sessions.may_receive(first)
    sessions.exit("a", first, 2)
    assert sessions.next_expiry_s() is None, "its own request still waits"


def test_a_request_that_ends_after_its_consumer_has_left_changes_nothing() -> None:
    sessions = Sessions("failover", 30)
    session = sessions.enter("a", 0)
    sessions.leave("a")
    sessions.exit("a", session, 1)
    assert sessions.consumers == [] and sessions.next_expiry_s() is None
