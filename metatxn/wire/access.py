"""The rights of a caller, and what they allow. The services and the console share this module, so that what is offered
is what is granted."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from pydantic import BaseModel

from metatxn.wire.models import example

Right = Literal["produce", "consume", "admin"]


def grants(patterns: Mapping[str, Collection[Right]], right: Right | None, topic: str) -> bool:
    """Whether one of the patterns that match the full name of a topic grants the right; None means any right."""
    return any(
        (right in rights if right is not None else bool(rights)) and fnmatchcase(topic, pattern)
        for pattern, rights in patterns.items()
    )


def grants_below(patterns: Mapping[str, Collection[Right]], right: Right, prefix: str) -> bool:
    """Whether a pattern grants the right on every topic whose name begins with `prefix`.

    A pattern that ends in `*` and matches the prefix alone matches whatever follows, too. Others do not count.
    """
    return any(
        right in rights and pattern.endswith("*") and fnmatchcase(prefix, pattern)
        for pattern, rights in patterns.items()
    )


def end_of_token(token: str | None) -> float | None:
    """When a signed token (JWT) says that it expires, in seconds since 1970; None for a token of another kind. Its
    signature is not checked."""
    parts = token.split(".") if token else []
    if len(parts) != 3:
        return None
    try:
        claims: Any = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        ends_s = float(claims["exp"])
    except (binascii.Error, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return ends_s if math.isfinite(ends_s) else None


class AcceptedToken(BaseModel):
    """What a service accepts as a token. A `listed` one is an entry of the token file, with its `id`, its principal and
    its rights. A `signed` one has these in its claims: the principal in `sub`, and `admin` and `topics` in `metatxn`;
    what is shown of it is the algorithm of a key, and the audience that it must name."""

    kind: Literal["listed", "signed"]
    id: str | None = None
    principal: str | None = None
    admin: bool | None = None
    topics: dict[str, list[Right]] = {}
    algorithm: str | None = None
    audience: str | None = None


class AcceptedTokenPage(BaseModel):
    model_config = example(
        items=[
            {"kind": "signed", "algorithm": "ES256", "audience": "metatxn"},
            {
                "kind": "listed",
                "id": "b82e53f652ac9503",
                "principal": "billing",
                "admin": False,
                "topics": {"public/default/orders*": ["consume", "produce"]},
            },
        ],
        next_page_token=None,
    )

    items: list[AcceptedToken]
    next_page_token: str | None = None


class AccessInfo(BaseModel):
    """The rights of the caller. `topics` has, by pattern, the rights on the topics whose full name matches it. With
    `admin` the caller may do everything. `principal` is null if the service does not authenticate its callers."""

    model_config = example(principal="billing", admin=False, topics={"public/default/orders*": ["consume", "produce"]})

    principal: str | None = None
    admin: bool
    topics: dict[str, list[Right]] = {}

    def may(self, right: Right, topic: str) -> bool:
        return self.admin or grants(self.topics, right, topic)

    def may_below(self, right: Right, prefix: str) -> bool:
        """Whether the caller has the right on every topic whose name begins with `prefix`."""
        return self.admin or grants_below(self.topics, right, prefix)

    def may_see(self, topic: str) -> bool:
        """Whether the caller has any right on the topic."""
        return self.admin or grants(self.topics, None, topic)
