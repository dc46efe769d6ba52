"""The home of a topic's subscriptions, as the segments know it."""

from __future__ import annotations

from typing import NamedTuple


class Home(NamedTuple):
    """The broker that owns the topic's segment with the lowest number, at this generation. A later home is greater:
    while that segment exists its generation grows, and once it is removed, the number does."""

    number: int
    generation: int


NO_HOME = Home(-1, 0)
