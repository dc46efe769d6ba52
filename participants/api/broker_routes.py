"""The administration of brokers: how far a drain is, its begin and its end."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from metastore.versions import Feature
from metatxn.service.audited import audited
from metatxn.service.http import PathText, problems
from metatxn.service.listeners import UsedListener
from metatxn.service.versions import require
from metatxn.wire.models import BrokerInfo, BrokerSegmentPage
from participants.api.queries import PageTokenQuery
from participants.api.rights import administering_cluster
from participants.broker.broker import Broker
from participants.broker.draining import assert_asked, broker_info, segments_page

MOST_SEGMENTS = 1_000
"""The most segments of one page."""


def add_broker_routes(api: APIRouter, broker: Broker) -> None:
    admin = [Depends(administering_cluster)]

    @api.get(
        "/v1/brokers/{broker_id}",
        tags=["brokers"],
        responses=problems(307, 404, 422, 503),
        dependencies=admin,
    )
    async def get_broker(broker_id: PathText, listener: UsedListener) -> BrokerInfo:
        """One broker, and how far its drain is."""
        await assert_asked(broker, broker_id)
        return broker_info(broker, listener)

    @api.get(
        "/v1/brokers/{broker_id}/segments",
        tags=["brokers"],
        responses=problems(307, 404, 422, 503),
        dependencies=admin,
    )
    async def list_segments(
        broker_id: PathText,
        limit: Annotated[int, Query(ge=1, le=MOST_SEGMENTS)] = 100,
        page_token: PageTokenQuery = None,
    ) -> BrokerSegmentPage:
        """The segments that a broker has, or is about to open, in the order of their names."""
        await assert_asked(broker, broker_id)
        return segments_page(broker, page_token or "", limit)

    @api.post(
        "/v1/brokers/{broker_id}/drain",
        tags=["brokers"],
        responses=problems(307, 404, 409, 422, 503, 504),
        dependencies=admin,
    )
    @audited("broker.drain")
    async def drain_broker(broker_id: PathText, listener: UsedListener) -> BrokerInfo:
        """Begin to drain a broker. Its segments go to the other brokers of its storage, a few at a time, while
        everything is served. With local files they stay, and new topics go to other brokers.

        The drain lasts until it is ended or, with an object store, until the process ends."""
        await assert_asked(broker, broker_id)
        await require(broker.store, broker.version, Feature.DRAIN)
        await broker.announcement.drain()
        return broker_info(broker, listener)

    @api.post(
        "/v1/brokers/{broker_id}/undrain",
        tags=["brokers"],
        responses=problems(307, 404, 422, 503, 504),
        dependencies=admin,
    )
    @audited("broker.undrain")
    async def undrain_broker(broker_id: PathText, listener: UsedListener) -> BrokerInfo:
        """End a drain: the broker gets its share of the segments again."""
        await assert_asked(broker, broker_id)
        await broker.announcement.undrain()
        return broker_info(broker, listener)
