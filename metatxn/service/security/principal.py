"""A principal and what it may do.

    right      on a topic                               without a topic
    produce    append, publish
    consume    read, browse, look at a segment
    admin      create, split, merge, seal, trim, drop,  `admin = true`: all of this on every topic, `/admin/…`,
               set policies                             and ending, keeping alive and reading anyone's transaction

While authentication is off, every caller is `ANYONE`, who may do everything and owns nothing by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool

from metatxn.wire import errors
from metatxn.wire.access import AccessInfo, Right, grants, grants_below
from metatxn.wire.text import no_control_characters


def _topic_pattern(value: str) -> str:
    if value.count("/") != 2 and "*" not in value:
        raise ValueError("is matched against tenant/namespace/topic, so it needs two slashes or a *")
    return value


PrincipalName = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(no_control_characters)]
TopicPattern = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_topic_pattern)]


class Grants(BaseModel):
    """The grants of a principal, as they are in the token file and in the claim `metatxn` of a signed token.

    `topics` maps a pattern (`*`, `?`, `[…]`, over the full name `tenant/namespace/topic`, `*` crosses slashes) to
    rights. Rights only add up: a pattern never takes away what another one grants.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    admin: StrictBool = False
    topics: dict[TopicPattern, frozenset[Right]] = {}


@dataclass(frozen=True, slots=True)
class Principal:
    """A principal. `name` is the owner of the transactions that it begins; it is None if the caller is not
    authenticated."""

    name: str | None
    grants: Grants

    @property
    def superuser(self) -> bool:
        return self.grants.admin

    def owns(self, owner: str | None) -> bool:
        """Whether the principal may end, change or read what belongs to `owner`. What has no owner belongs to all."""
        return owner is None or owner == self.name or self.superuser

    def may(self, right: Right, topic: str) -> bool:
        return self.superuser or grants(self.grants.topics, right, topic)

    def may_see(self, topic: str) -> bool:
        """Whether the principal has any right on the topic. If so, the topic's name and layout are not secret from
        it."""
        return self.superuser or grants(self.grants.topics, None, topic)

    def access(self) -> AccessInfo:
        topics = {pattern: sorted(rights) for pattern, rights in self.grants.topics.items()}
        return AccessInfo(principal=self.name, admin=self.superuser, topics=topics)

    def require(self, right: Right, topic: str) -> None:
        """Raises NOT_ALLOWED, which names the right that is missing."""
        if not self.may(right, topic):
            raise self.lacks(f"the right {right} on topic {topic}", right=right, topic=topic)

    def require_below(self, right: Right, prefix: str) -> None:
        """Raises NOT_ALLOWED unless the principal has the right on every topic whose name begins with `prefix`."""
        if not self.superuser and not grants_below(self.grants.topics, right, prefix):
            raise self.lacks(f"the right {right} on all topics {prefix}*", right=right)

    def require_admin(self) -> None:
        """Raises NOT_ALLOWED if the right admin is missing."""
        if not self.superuser:
            raise self.lacks("the right admin", right="admin")

    def lacks(self, what: str, **members: Any) -> errors.MetatxnError:
        return errors.NotAllowed(
            f"principal {self.name!r} lacks {what}",
            action="Use a token of a principal that has this right, or have the right granted.",
            principal=self.name,
            **members,
        )


ANYONE = Principal(None, Grants(admin=True))
