"""Goal: it is known who consumes, who may, and who is gone. Method: the time is handed in."""

from __future__ import annotations

import pytest

from participants.subscription.sessions import ConsumerBusy, Sessions


def test_a_consumer_is_gone_once_it_was_silent_for_the_timeout() -> None:
    sessions = Sessions("shared", 30)
    for name, now in (("a", 0), ("b", 20)):
        sessions.enter(name, now)
        sessions.exit(name, now)
    assert sessions.next_expiry_s() == 30
    assert sessions.expire(29.9) == [] and sessions.expire(30) == ["a"]
    assert sessions.consumers == ["b"] and sessions.next_expiry_s() == 50


def test_who_waits_is_not_silent_however_long_it_takes() -> None:
    sessions = Sessions("shared", 30)
    sessions.enter("a", 0)
    sessions.enter("a", 1)
    sessions.exit("a", 2)
    assert sessions.next_expiry_s() is None and sessions.expire(1000) == []
    sessions.exit("a", 1000)
    assert sessions.next_expiry_s() == 1030


def test_exclusive_has_one_until_it_is_gone() -> None:
    sessions = Sessions("exclusive", 30)
    sessions.enter("a", 0)
    sessions.enter("a", 0)
    with pytest.raises(ConsumerBusy) as busy:
        sessions.enter("b", 0)
    assert busy.value.holder == "a" and sessions.consumers == ["a"]
    assert sessions.leave("a") and not sessions.leave("a")
    sessions.enter("b", 0)
    assert sessions.may_receive("b") and not sessions.may_receive("a")


def test_failover_has_one_that_is_active_and_the_next_one_follows() -> None:
    sessions = Sessions("failover", 30)
    for name in "abc":
        sessions.enter(name, 0)
    assert [name for name in "abc" if sessions.may_receive(name)] == ["a"]
    sessions.leave("a")
    sessions.enter("a", 1)  # back, and at the end of the queue
    assert [name for name in "abc" if sessions.may_receive(name)] == ["b"]


def test_a_request_that_ends_after_its_consumer_has_left_changes_nothing() -> None:
    sessions = Sessions("failover", 30)
    sessions.enter("a", 0)
    sessions.leave("a")
    sessions.exit("a", 1)
    assert sessions.consumers == [] and sessions.next_expiry_s() is None
