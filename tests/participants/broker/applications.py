"""The HTTP application of a broker in a test, lent from a pool: making its routes takes longer than most of the tests.

A test gives back what it has borrowed when it ends, and not when a broker stops: what a dead broker has still under way
must not meet the next one. Nothing that a broker keeps stays in an application: the parts of it that have a state are
made for each broker.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

from metatxn.service.direct import add_routes
from metatxn.service.http import create_app
from participants.api import routes
from participants.broker.broker import Broker
from participants.common.metrics import BrokerMetrics
from participants.topic.layout import LayoutUpkeep
from participants.topic.messages import Messages
from participants.topic.subscriptions import Subscriptions
from tests.stand import Stand

_idle: list[Application] = []


class Application:
    def __init__(self) -> None:
        self._broker = Stand(store=Stand())
        self._layout, self._messages, self._subscriptions, self._registry = Stand(), Stand(), Stand(), Stand()
        registry: Any = self._registry
        self.app = create_app("broker", "under test", "0", registry)
        broker: Any = self._broker
        layout: Any = self._layout
        with (
            mock.patch.object(routes, "Messages", return_value=self._messages),
            mock.patch.object(routes, "Subscriptions", return_value=self._subscriptions),
        ):
            add_routes(self.app, routes.router(broker, layout), first=True)

    @classmethod
    def borrow(cls, broker: Broker, layout: LayoutUpkeep, metrics: BrokerMetrics) -> Application:
        """One that serves `broker`, until `give_back`."""
        application = _idle.pop() if _idle else cls()
        application._broker.stand_for(broker)
        application._layout.stand_for(layout)
        application._messages.stand_for(Messages(broker))
        application._subscriptions.stand_for(Subscriptions(broker, Messages(broker)))
        application._registry.stand_for(metrics.registry)
        return application

    def give_back(self) -> None:
        for stand in (self._broker, self._layout, self._messages, self._subscriptions, self._registry):
            stand.let_go()
        _idle.append(self)
