"""`metatxn audit-log`: who changed what at a service, or tried to."""

from __future__ import annotations

from typing import Any

from metatxn.cli.options import LimitOption, ServiceOptions, takes_session
from metatxn.wire.models import AuditEntry

COLUMNS = ("TIME", "PRINCIPAL", "VERB", "OBJECT", "OUTCOME", "ADDRESS")


@takes_session
def audit_log(session: ServiceOptions, limit: LimitOption = 100) -> None:
    """Print the audit log of the service at --url, the latest line first. Each service has its own, if it was started
    with --audit-log FILE. For administrators."""
    with session.connect() as client:
        session.print_list(client.audit_log(session.service_url), limit, COLUMNS, _row)


def _row(entry: AuditEntry) -> tuple[Any, ...]:
    about = " ".join(str(value) for value in entry.object.values())
    return entry.timestamp, entry.principal, entry.verb, about, entry.outcome, entry.address
