"""Where a client sends the keys of a topic, by the layout that it knows."""

from __future__ import annotations

import pytest

from metatxn.errors import NotFound
from metatxn.topics import Layout
from participants.api.models import SegmentInfo, TopicInfo

TOPIC = "public/default/t"


def segment(name: str, state: str, parents: list[str], children: list[str]) -> SegmentInfo:
    low, high, _ = name.split("-")
    return SegmentInfo.model_validate(
        {
            "segment": f"segment://{TOPIC}/{name}",
            "range": [int(low, 16), int(high, 16)],
            "state": state,
            "parents": [f"segment://{TOPIC}/{each}" for each in parents],
            "children": [f"segment://{TOPIC}/{each}" for each in children],
        }
    )


def test_a_segment_that_was_sealed_for_good_does_not_bring_its_parents_back() -> None:
    """The client looped: the parent named its child, and the child was sealed."""
    parent = segment("0000-ffff-0", "sealed", [], ["0000-ffff-1"])
    child = segment("0000-ffff-1", "sealed", ["0000-ffff-0"], [])
    layout = Layout(TopicInfo(name=TOPIC, segments=[parent, child]))
    assert layout.segment_of("k") == child.segment, "its owner knows whether children are yet to come"
    ended = layout.without({child.segment})
    with pytest.raises(NotFound, match="no active segment"):
        ended.segment_of("k")
    with pytest.raises(NotFound, match="no active segment"):
        ended.any_segment(0)
