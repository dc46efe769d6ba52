"""The requests between brokers about a subscription. They are not for clients, who ask any broker for the whole
subscription."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from metatxn.wire.broker import Name, ReceivedMessage, Text
from metatxn.wire.models import RequestBody, example

_SEGMENT = "segment://public/default/orders/0000-ffff-0"


class ShareTakeRequest(RequestBody):
    """A request of the subscription's home, at this generation of its segment, which has the number `home_segment`, for
    messages for one consumer. Of the consumers up to the number `newest`, only `sessions` are present: what the others
    hold returns. `segments` are in the order in which they are to be read. `most_held` is how many messages the
    consumer may hold here."""

    model_config = example(
        incarnation=1, home=3, session=7, sessions=[6, 7], newest=7, segments=[_SEGMENT], max=100, max_bytes=4194304
    )

    incarnation: int
    home: Annotated[int, Field(ge=1)]
    home_segment: Annotated[int, Field(ge=0)] = 0
    session: int
    sessions: list[int]
    newest: int
    segments: Annotated[list[Name], Field(min_length=1)]
    max: Annotated[int, Field(ge=1, le=1000)]
    max_bytes: Annotated[int, Field(ge=1)]
    most_held: int | None = None


class ShareTakeAnswer(BaseModel):
    """The answer. `ended` are segments that have nothing left except what is to be delivered later. `held` is how many
    messages the consumer holds here, and `full` means that it may hold no more. `others_hold` says whether there are
    unacknowledged messages that it does not hold."""

    model_config = example(messages=[], ended=[_SEGMENT], held=0, full=False, others_hold=False)

    messages: list[ReceivedMessage]
    ended: list[str]
    held: int = 0
    full: bool = False
    others_hold: bool = False


class ShareWaitRequest(RequestBody):
    """A request that is answered once one of these segments has a message to deliver. On a `key_shared` subscription it
    is made for one consumer, among those that are present, and is also answered once everything is acknowledged that
    one of the segments will ever contain, except for those that have `ended`, as the home knows."""

    model_config = example(incarnation=1, segments=[_SEGMENT], wait_ms=10_000)

    incarnation: int
    segments: Annotated[list[Name], Field(min_length=1)]
    wait_ms: Annotated[int, Field(ge=0, le=60_000)]
    session: int | None = None
    sessions: list[int] | None = None
    ended: list[Name] | None = None


class SharePreviewRequest(RequestBody):
    """What a move of this incarnation to these positions would do; a segment that is missing would begin with its
    earliest entry. `acked` has ranges of places behind its position that would count as acknowledged. With `within`
    only the segments that it names are counted, between two places of each."""

    model_config = example(incarnation=1, positions={_SEGMENT: "7:0"}, acked={_SEGMENT: [["7:4:0", "7:6:0"]]})

    incarnation: int
    positions: dict[Name, Text] = Field(default_factory=dict)
    acked: dict[Name, list[Annotated[list[Text], Field(min_length=2, max_length=2)]]] = Field(default_factory=dict)
    within: dict[Name, Annotated[list[Text], Field(min_length=2, max_length=2)]] | None = None
