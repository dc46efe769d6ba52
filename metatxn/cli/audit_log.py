"""`metatxn audit-log`: who changed what, or tried to."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Annotated, Any

import typer

import metatxn
from metatxn.cli.options import CliError, LimitOption, ServiceOptions, takes_session
from metatxn.cli.output import as_json, print_note
from metatxn.health import processes_of
from metatxn.wire.models import AuditEntry, AuditOutcome

COLUMNS = ("TIME", "PRINCIPAL", "VERB", "OBJECT", "OUTCOME", "ADDRESS")
VERB_HELP = "Only this verb, such as topic.delete, or all verbs of topic."

LinesOf = Callable[[str], Iterator[AuditEntry]]


@takes_session
def audit_log(
    session: ServiceOptions,
    everywhere: Annotated[bool, typer.Option("--all", help="Of all services that are running, in one list.")] = False,
    principal: Annotated[str | None, typer.Option(help="Only what this principal did, or tried to.")] = None,
    verb: Annotated[str | None, typer.Option(help=VERB_HELP)] = None,
    text: Annotated[
        str | None, typer.Option(help="Only lines with this text in the name of the object or in the arguments.")
    ] = None,
    outcome: Annotated[AuditOutcome | None, typer.Option(help="Only lines with this outcome.")] = None,
    limit: LimitOption = 100,
) -> None:
    """Print the audit log of the service at --url, the latest line first. Each service has its own, if it was started
    with --audit-log FILE; --all asks all of them. For administrators."""
    with session.connect() as client:

        def lines(url: str) -> Iterator[AuditEntry]:
            return iter(client.audit_log(url, principal=principal, verb=verb, text=text, outcome=outcome))

        if not everywhere:
            session.print_list(lines(session.service_url), limit, COLUMNS, _row)
            return
        found = _merged(client, lines)
        if session.json:
            session.print_list(({"service": name} | as_json(entry) for name, entry in found), limit, (), lambda _: ())
        else:
            session.print_list(found, limit, (*COLUMNS, "SERVICE"), lambda each: (*_row(each[1]), each[0]))


def _merged(client: metatxn.Client, lines: LinesOf) -> Iterator[tuple[str, AuditEntry]]:
    """The lines of all services, each with its service, and once if services of one process share a file. Notes say
    which services have not answered. Raises `CliError` if none has."""
    silent: list[str] = []
    services = [(f"{role} {process.id}", process.url) for role, process in processes_of(client.cluster())]

    def of_service(name: str, url: str) -> Iterator[tuple[str, str, AuditEntry]]:
        try:
            for entry in lines(url):
                yield entry.timestamp, name, entry
        except (metatxn.NotFound, metatxn.ServiceUnreachable) as error:
            silent.append(name)
            print_note(f"{name}: {error}")

    same_time: list[AuditEntry] = []
    for at, name, entry in heapq.merge(*(of_service(*each) for each in services), key=itemgetter(0), reverse=True):
        if same_time and same_time[0].timestamp != at:
            same_time.clear()
        if entry not in same_time:
            same_time.append(entry)
            yield name, entry
    if services and len(silent) == len(services):
        raise CliError("no service has answered with its audit log. Start each of them with --audit-log FILE.")


def _row(entry: AuditEntry) -> tuple[Any, ...]:
    about = " ".join(str(value) for value in entry.object.values())
    return entry.timestamp, entry.principal, entry.verb, about, entry.outcome, entry.address
