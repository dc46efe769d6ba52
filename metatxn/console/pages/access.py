"""What the caller may do, as the services tell it: from the token file, or from the claims of a signed token."""

from __future__ import annotations

from starlette.responses import Response

import metatxn
from metatxn.console.visit import Visit
from metatxn.wire.access import Right
from metatxn.wire.names import topic_name

RIGHTS: tuple[tuple[Right, str], ...] = (
    ("produce", "publish messages"),
    ("consume", "read messages, and see its segments and subscriptions"),
    ("admin", "create and delete it, and change its segments, its schema and its policy"),
)
MOST_PATTERNS = 200


async def access(visit: Visit) -> Response:
    topic = visit.query("topic")
    try:
        name = topic_name(topic) if topic else ""
    except ValueError as error:
        raise metatxn.InvalidArgument(f"topic: {error}", field="topic") from None
    given = sorted(visit.access.topics.items())
    return visit.page(
        "access.html",
        given=given[:MOST_PATTERNS],
        more=max(0, len(given) - MOST_PATTERNS),
        rights=RIGHTS,
        topic=topic,
        name=name,
        allowed=[right for right, _ in RIGHTS if name and visit.access.may(right, name)],
    )
