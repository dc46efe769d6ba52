"""Gives up messages that were delivered too often: each is published to the dead-letter topic and acknowledged, in one
transaction of the broker.

    begin ─▶ publish the letters ─▶ acknowledge ─▶ commit, until that is known
                     any failure ─▶ abort, and begin again

So a message has its letter exactly if it is given up, whatever dies in between (DESIGN §5.10). What consumers have
acknowledged before, by themselves, has no letter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import structlog

from metastore.errors import MetastoreError
from metatxn.service.retry import until_it_succeeds
from metatxn.wire import errors
from metatxn.wire.broker import Message, ReadMessage
from metatxn.wire.ids import TxnId
from participants.subscription.places import Place
from participants.subscription.segment_subscription import SegmentSubscription
from participants.txn.own_transactions import OwnTransactions

log = structlog.get_logger()
TOGETHER = 100
"""The number of messages that are given up in one transaction. After a failure each has one of its own."""
_FAILURES = (errors.MetatxnError, MetastoreError)


class Publish(Protocol):
    async def __call__(self, topic: str, messages: Sequence[Message], txn_id: TxnId) -> object: ...


class DeadLetters:
    def __init__(self, publish: Publish, transactions: OwnTransactions) -> None:
        self._publish = publish
        self._transactions = transactions

    def send(self, part: SegmentSubscription, places: Sequence[Place]) -> None:
        """Give the messages up in the background. The task ends with the segment; the next owner finds them again."""
        for start in range(0, len(places), TOGETHER):
            part.segment.spawn(self._until_done(part, places[start : start + TOGETHER]))

    async def _until_done(self, part: SegmentSubscription, places: Sequence[Place]) -> None:
        try:
            await self._give_up(part, places)
        except _FAILURES as error:
            _report(part, error)
            await asyncio.gather(*(self._until_one_is(part, place) for place in places))

    async def _until_one_is(self, part: SegmentSubscription, place: Place) -> None:
        await until_it_succeeds(lambda: self._give_up(part, [place]), _FAILURES, partial(_report, part))

    async def _give_up(self, part: SegmentSubscription, places: Sequence[Place]) -> None:
        """Give messages up. Returns once they are given up, or acknowledged elsewhere, or no longer this broker's
        concern."""
        if part.is_gone:
            return
        found = {place: await part.message(place) for place in places if part.is_dying(place)}
        await part.forget_unreadable([place for place, message in found.items() if message is None])
        letters = {place: _letter(part, message) for place, message in found.items() if message is not None}
        if not letters:
            return
        topic = part.definition.record.dead_letter_topic
        assert topic is not None
        txn_id = await self._transactions.begin(f"gives up messages of subscription {part.definition.name}")
        try:
            await self._publish(topic, list(letters.values()), txn_id)
            await part.give_up(txn_id, list(letters))
            await until_it_succeeds(lambda: self._transactions.commit(txn_id), MetastoreError)
        except (*_FAILURES, asyncio.CancelledError):
            with suppress(*_FAILURES):
                await self._transactions.abort(txn_id)
            await part.gave_up(txn_id)
            raise
        await part.gave_up(txn_id)
        part.segment.traffic.became_dead_letters(len(letters))


def _report(part: SegmentSubscription, error: Exception) -> None:
    name = part.definition.name
    log.warning("messages are given up again", segment=part.segment.id, subscription=name, error=str(error))


def _letter(part: SegmentSubscription, found: ReadMessage) -> Message:
    origin = {
        "metatxn.origin-topic": part.definition.topic,
        "metatxn.origin-subscription": part.definition.name,
        "metatxn.origin-message-id": found.message_id,
    }
    body = {"value_base64": found.value_base64} if found.value_base64 is not None else {"value": found.value}
    return Message.model_validate({"properties": found.properties | origin, "key": found.key, **body})
