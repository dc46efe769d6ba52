"""A principal and what it may do.

    right      on a topic                               without a topic
    produce    append, publish
    consume    read, browse, look at a segment
    admin      create, split, merge, seal, trim, drop   `admin = true`: all of this on every topic, `/admin/…`,
                                                        and ending, keeping alive and reading anybody's transaction

While authentication is off everybody is `ANYONE`, who may do everything and owns nothing by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool

from metatxn.wire import errors
from metatxn.wire.text import no_control_characters

Right = Literal["produce", "consume", "admin"]


def _topic_pattern(value: str) -> str:
    if value.count("/") != 2 and "*" not in value:
        raise ValueError("is matched with tenant/namespace/topic, so it needs two slashes or a *")
    return value


PrincipalName = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(no_control_characters)]
TopicPattern = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_topic_pattern)]


class Grants(BaseModel):
    """As they stand in the token file, and in the claim `metatxn` of a signed token.

    `topics` maps a pattern (`*`, `?`, `[…]`, over the full name `tenant/namespace/topic`, `*` crosses slashes) to
    rights. Rights only add up: no pattern takes away what another one gives.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    admin: StrictBool = False
    topics: dict[TopicPattern, frozenset[Right]] = {}


@dataclass(frozen=True, slots=True)
class Principal:
    """`name` is what the transactions it begins are owned by; None: nobody is authenticated."""

    name: str | None
    grants: Grants

    @property
    def superuser(self) -> bool:
        return self.grants.admin

    def owns(self, owner: str | None) -> bool:
        """Whether it may end, change or read what belongs to `owner`. What was begun by nobody belongs to all."""
        return owner is None or owner == self.name or self.superuser

    def may(self, right: Right, topic: str) -> bool:
        return self.superuser or any(
            right in rights and fnmatchcase(topic, pattern) for pattern, rights in self.grants.topics.items()
        )

    def may_see(self, topic: str) -> bool:
        """Whether it has any right on the topic: then its name and layout are no secret."""
        return self.superuser or any(
            rights and fnmatchcase(topic, pattern) for pattern, rights in self.grants.topics.items()
        )

    def require(self, right: Right, topic: str) -> None:
        """Raises NOT_ALLOWED naming the right that is missing."""
        if not self.may(right, topic):
            raise self.lacks(f"the right {right} on topic {topic}", right=right, topic=topic)

    def require_admin(self) -> None:
        """Raises NOT_ALLOWED."""
        if not self.superuser:
            raise self.lacks("the right admin", right="admin")

    def lacks(self, what: str, **members: Any) -> errors.MetatxnError:
        return errors.NotAllowed(
            f"principal {self.name!r} lacks {what}",
            action="Use a token of a principal that has this right, or have it granted.",
            principal=self.name,
            **members,
        )


ANYONE = Principal(None, Grants(admin=True))
