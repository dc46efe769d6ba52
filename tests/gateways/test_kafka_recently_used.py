"""What is in use is found, however much was used since: two requests never hold two things of one key."""

from __future__ import annotations

from metatxn_gateways.kafka.recently_used import RecentlyUsed


class Thing:
    pass


def test_the_last_ones_are_kept_and_those_in_use_are_found() -> None:
    recent: RecentlyUsed[int, Thing] = RecentlyUsed(2)
    held = recent.setdefault(0, Thing())
    for number in range(1, 4):
        assert recent.setdefault(number, Thing()) is recent.get(number)
    assert recent.get(1) is None and recent.get(0) is held, "somebody holds it"
    assert recent.setdefault(0, Thing()) is held
    del held
    for number in range(1, 4):
        recent.setdefault(number, Thing())
    assert recent.get(0) is None
