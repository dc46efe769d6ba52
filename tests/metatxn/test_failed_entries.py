"""Goal: an entry that cannot be delivered fails with what is known of it, and is never waited for without an end.

Method: a delivery with a link that answers as the test says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from metatxn.delivery import Batching, OrderedDelivery
from metatxn.topics import Layout
from metatxn.wire.broker import HASH_RANGE_END, SegmentInfo, TopicInfo
from metatxn.wire.errors import MetatxnError, NotFound, SegmentSealed, StoreUnavailable
from metatxn.wire.frames import Entry, PayloadKind

SEGMENT = "segment://public/default/t/0000-ffff-0"
_WHOLE = SegmentInfo(segment=SEGMENT, range=(0, HASH_RANGE_END), state="active", parents=[], children=[])
LAYOUT = Layout(TopicInfo(name="t", segments=[_WHOLE]))


@dataclass(slots=True)
class Word:
    number: int = 0
    whole: ClassVar[bool] = False


@dataclass
class Words:
    """A format."""

    kind = PayloadKind.BYTES
    outcomes: list[str | MetatxnError] = field(default_factory=list)

    def size(self, item: Word) -> int:
        return 1

    def keys(self, items: Iterable[Word]) -> set[Hashable]:
        return {None}

    def split(self, item: Word, layout: Layout) -> Iterable[tuple[str, Word]]:
        return [(SEGMENT, item)]

    def encode(self, items: Sequence[Word]) -> tuple[bytes, int]:
        return b"", len(items)

    def done(self, items: Sequence[Word], outcome: str | MetatxnError) -> None:
        self.outcomes.append(outcome)


class Failing:
    """A link: every entry ends with `failure`, and behind it lies `behind`."""

    def __init__(self, failure: BaseException, behind: Layout | MetatxnError = LAYOUT) -> None:
        self.sending: dict[OrderedDelivery[Any], None] = {}
        self._failure, self._behind = failure, behind

    def new_name(self) -> str:
        return "producer"

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.task = asyncio.ensure_future(work)

    async def layout(self, topic: str) -> Layout:
        return LAYOUT

    async def layout_behind(self, topic: str, segment: str, *, patient: bool) -> Layout:
        if isinstance(self._behind, MetatxnError):
            raise self._behind
        return self._behind

    async def publish(self, segment: str, entry: Entry) -> str:
        raise self._failure


async def failure_with(link: Failing) -> MetatxnError:
    """What `flush` raises, which is what the entry was told."""
    words = Words()
    delivery = OrderedDelivery(link, "t", words, Batching(max_bytes=10, max_items=10))
    await delivery.put(Word(), None)
    with pytest.raises(MetatxnError) as failed:
        await delivery.flush()
    assert words.outcomes == [failed.value]
    return failed.value


async def test_what_is_under_way_when_the_client_is_closed_may_have_arrived() -> None:
    failed = await failure_with(Failing(asyncio.CancelledError()))
    assert not failed.definite and "closed" in str(failed)


async def test_a_bug_reaches_the_caller() -> None:
    bug = ZeroDivisionError("by zero")
    failed = await failure_with(Failing(bug))
    assert not failed.definite and failed.__cause__ is bug and "by zero" in str(failed)


async def test_a_segment_that_is_gone_from_a_layout_that_cannot_be_read_fails_with_the_reason() -> None:
    away = StoreUnavailable("the store is away")
    assert await failure_with(Failing(SegmentSealed("sealed", children=["a"]), behind=away)) is away


async def test_a_segment_that_its_owner_does_not_know_and_that_stays_in_the_layout_fails() -> None:
    unknown = NotFound("there is no such segment")
    assert await failure_with(Failing(unknown)) is unknown
