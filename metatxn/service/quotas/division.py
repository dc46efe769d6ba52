"""How a quota is divided among the processes that let a principal use it.

A process that has refused something lately wants as much as it can get; any other one wants a little more than it has
used. No process gets more than it wants, and what is short is divided equally among those that want more (max-min
fairness). What none of them wants is divided equally, too. So the parts add up to the quota, whichever process computes
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

HEADROOM = 1.05
"""A process that has refused nothing gets this multiple of what it has used, and can use more once it is short."""
LEAST = 0.02
"""All processes together that use next to nothing keep this part of the quota, so that each can begin."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a process has lately used per second, and whether it has refused more."""

    rate: float
    limited: bool


def part_of(total: float, own: Use, others: Sequence[Use]) -> float:
    """The part of the process with `own`; never 0."""
    uses = [own, *others]
    least = total * LEAST / len(uses)
    wants = [math.inf if use.limited else use.rate * HEADROOM + least for use in uses]
    left, level = total, total
    for place, want in enumerate(sorted(wants)):
        level = left / (len(wants) - place)
        if want >= level:
            break
        left -= want
    else:
        return wants[0] + left / len(wants)
    return min(wants[0], level)
