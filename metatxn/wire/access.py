"""The rights of a caller, and what they allow. The services and the console share this module, so that what is offered
is what is granted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import BaseModel

from metatxn.wire.models import example

Right = Literal["produce", "consume", "admin"]


def grants(patterns: Mapping[str, Collection[Right]], right: Right | None, topic: str) -> bool:
    """Whether one of the patterns that match the full name of a topic grants the right; None means any right."""
    return any(
        (right in rights if right is not None else bool(rights)) and fnmatchcase(topic, pattern)
        for pattern, rights in patterns.items()
    )


class AccessInfo(BaseModel):
    """The rights of the caller. `topics` has by pattern the rights on the topics whose full name matches it. With
    `admin` the caller may do everything. `principal` is null if the service does not authenticate its callers."""

    model_config = example(principal="billing", admin=False, topics={"public/default/orders*": ["consume", "produce"]})

    principal: str | None = None
    admin: bool
    topics: dict[str, list[Right]] = {}

    def may(self, right: Right, topic: str) -> bool:
        return self.admin or grants(self.topics, right, topic)

    def may_see(self, topic: str) -> bool:
        """Whether the caller has any right on the topic."""
        return self.admin or grants(self.topics, None, topic)
