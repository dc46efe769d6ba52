"""Messages as files to download."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.responses import Response

from metatxn.console.formats import plain_topic, segment_part
from metatxn.stored.files import FILE_FORMS
from metatxn.stored.looking import StoredMessage
from metatxn.wire.broker import TopicInfo

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


def download(form: str, topic: TopicInfo, segment: str, messages: Sequence[StoredMessage]) -> Response:
    made = FILE_FORMS[form]
    name = _UNSAFE.sub("_", f"{plain_topic(topic.name)}-{segment_part(segment)}")[:100]
    disposition = f'attachment; filename="{name}.{made.ending}"'
    headers = {"Content-Disposition": disposition}
    return Response(made.write(topic, segment, messages), media_type=made.media_type, headers=headers)
