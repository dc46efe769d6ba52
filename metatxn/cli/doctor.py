"""`metatxn doctor`: check everything that may be set up wrongly, and say what to do."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import typer

import metatxn
from metatxn.cli import services
from metatxn.cli.certificates import expires_at
from metatxn.cli.logs import set_up_logs
from metatxn.cli.members import asked_at_once, members_of
from metatxn.cli.options import CliError, ServiceOptions, shared, takes_session
from metatxn.cli.output import print_json, print_rows
from metatxn.cli.status import hanging_problems, oldest_hanging, unserved_segments
from metatxn.cli.store import looking_into
from metatxn.health import (
    FULL_STORE_ACTION,
    HANGING_MS,
    STORE_ACTION,
    AskedService,
    draining_problems,
    store_away,
    unannounced_problem,
)
from metatxn.wire.access import end_of_token
from metatxn.wire.models import STORE, Process
from metatxn.words import duration, size_text

MOST_SKEW_MS = 500
"""What a coordinator allows by default: `--max-clock-skew-ms`."""
SLOW_STORE_MS = 100.0
FILLING_PERCENT = 80
SOON_S = 14 * 86_400
LOOPBACK = ("127.0.0.1", "localhost", "::1")
OPEN_WITHIN_S = 5.0
OF_THE_STORE = ("upgrade", "segments", "transactions")
COLUMNS = ("CHECK", "VERDICT", "ABOUT", "WHAT", "DO")


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of one check: `ok`, `advice` (all is well and could be better), `problem`, or `skipped`."""

    check: str
    about: str
    verdict: str
    what: str
    action: str = ""


class Answered(NamedTuple):
    """What a service has answered: see `SeenService`."""

    status: metatxn.ServiceStatus
    ahead_ms: float
    within_ms: float


@dataclass(frozen=True, slots=True)
class SeenService:
    """A service that was asked: its status and how far its clock is ahead of this machine's, at most `within_ms`
    wrong; or why there is no answer."""

    name: str
    process: Process
    status: metatxn.ServiceStatus | None
    ahead_ms: float = 0.0
    within_ms: float = 0.0
    silence: str = ""

    @property
    def about(self) -> str:
        return f"{self.name} {self.process.id}"


@takes_session
def doctor(
    session: ServiceOptions,
    store: Annotated[
        str | None,
        typer.Option(envvar="METATXN_STORE", metavar="URL", help="Also examine this metadata store itself."),
    ] = None,
    data_dir: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Also check whether a broker serves this data directory. May be repeated."),
    ] = None,
) -> None:
    """Check everything that may be set up wrongly, and say what to do. The exit code is 1 if there is a problem."""
    set_up_logs("error")
    with session.client() as client:
        url = session.service_url
        found = list(of_cluster(client, url, session.authorities))
        found += of_credentials(session.token or shared(session.context).token, url, session.authorities)
    of_store = list(examined(store)) if store is not None else [_not_examined()]
    found += [*of_store, *of_directories(data_dir or [], of_store)]
    if session.json:
        print_json([asdict(each) for each in found])
    else:
        print_rows(COLUMNS, [(each.check, each.verdict, each.about, each.what, each.action) for each in found])
    raise typer.Exit(1 if any(each.verdict == "problem" for each in found) else 0)


def of_cluster(
    client: metatxn.Client, url: str, ca: str | None = None, clock: Callable[[], float] = time.time
) -> Iterator[Checked]:
    members = members_of(client, url)
    answers = asked_at_once(members.services, lambda process: _asked(client, process, clock))
    seen = [_seen(*service, answer) for service, answer in zip(members.services, answers, strict=True)]
    services = [AskedService(each.name, each.process, each.status) for each in seen]
    if (away := store_away(services)) is not None:
        yield Checked("store", "cluster", "problem", away.text, STORE_ACTION)
    for service in seen:
        yield _address(service, url)
    if members.unannounced is not None:
        wrong = unannounced_problem(members.unannounced)
        yield Checked("address", wrong.about, "problem", wrong.problem, wrong.action)
    for service in seen:
        yield from _readiness(service, store_is_away=away is not None)
    for each in draining_problems(services):
        yield Checked("drain", each.about, "problem", each.problem, each.action)
    for service in seen:
        yield from _endings(service, url, ca, clock())
    yield from clocks(seen)
    yield from versions(seen)
    if members.blind:
        action = "Begin with the store." if away is not None else "Name another service with --url."
        what = "not known: the service that was asked does not reach the metadata store"
        yield from (Checked(check, "cluster", "skipped", what, action) for check in OF_THE_STORE)
        return
    yield upgraded(client)
    unserved = list(unserved_segments(client, members.broker_urls))
    yield from (Checked("segments", each.about, "problem", each.problem, each.action) for each in unserved)
    if not unserved:
        yield Checked("segments", "cluster", "ok", "each has a broker")
    found, more = oldest_hanging(client)
    hanging = list(hanging_problems(found, more=more))
    yield from (Checked("transactions", each.about, "problem", each.problem, each.action) for each in hanging)
    if not hanging:
        yield Checked("transactions", "cluster", "ok", f"none has been open for {duration(HANGING_MS)}")


def _asked(client: metatxn.Client, process: Process, clock: Callable[[], float]) -> Answered:
    before = clock()
    status = client.service_status(process.url)
    half_ms = (clock() - before) * 500
    return Answered(status, status.now_ms - before * 1000 - half_ms, half_ms)


def _seen(name: str, process: Process, answer: Answered | metatxn.MetatxnError) -> SeenService:
    if isinstance(answer, metatxn.MetatxnError):
        return SeenService(name, process, None, silence=str(answer))
    return SeenService(name, process, answer.status, answer.ahead_ms, answer.within_ms)


def _address(service: SeenService, url: str) -> Checked:
    announced = service.process.url
    said = ("address", service.about)
    if service.status is None:
        action = f"Start it, correct its --advertise-url, which is {announced}, or check the network to it."
        return Checked(*said, "problem", f"{announced} does not answer from here: {service.silence}", action)
    if urlsplit(announced).hostname in LOOPBACK and urlsplit(url).hostname not in LOOPBACK:
        action = "Start it with --advertise-url and an address that its clients can reach."
        return Checked(*said, "problem", f"{announced} is announced, which only its own machine can reach", action)
    return Checked(*said, "ok", f"{announced} answers")


def _readiness(service: SeenService, *, store_is_away: bool) -> Iterator[Checked]:
    if service.status is None:
        return
    for what, why in service.status.waiting_for.items():
        said, action = f"{what}: {why}", "Wait a moment; then its log says why."
        if what == STORE and store_is_away:
            said, action = f"it waits for the {STORE}", "See above."
        elif what == STORE:
            action = f"Check the network between it and the {STORE}, which answers others."
        yield Checked("ready", service.about, "problem", said, action)
    if not service.status.waiting_for:
        yield Checked("ready", service.about, "ok", f"for {duration(service.status.up_ms)} in service")
    if service.status.draining:
        action = f"When that is over: metatxn broker undrain {service.process.id}"
        yield Checked("drain", service.about, "advice", "it is being drained and gets no new work", action)
    if (disk := service.status.disk) is not None and disk.capacity_bytes and "storage" not in service.status.warnings:
        used = 100 * disk.used_bytes / disk.capacity_bytes
        filling = used >= FILLING_PERCENT
        action = "Set a retention, trim, delete topics, or give it a larger disk." if filling else ""
        said = f"{used:.0f} % of {size_text(disk.capacity_bytes)} is used"
        yield Checked("disk", service.about, "advice" if filling else "ok", said, action)
    for what, why in service.status.warnings.items():
        action = FULL_STORE_ACTION if what == STORE else "It still serves; act before it stops."
        yield Checked(what, service.about, "problem", why, action)
    store = service.status.store
    if store is not None:
        slow = store.read_ms > SLOW_STORE_MS
        action = "Check how busy the store, its disk and the network to it are." if slow else ""
        verdict, said = "problem" if slow else "ok", f"{store.kind} read in {store.read_ms} ms"
        yield Checked("store latency", service.about, verdict, said, action)


def clocks(seen: Sequence[SeenService]) -> Iterator[Checked]:
    """Compare each clock with the slowest one. The time that the answers may have been under way does not count."""
    known = [each for each in seen if each.status is not None]
    if not known:
        return
    slowest = min(known, key=lambda each: each.ahead_ms)
    for service in known:
        apart_ms = service.ahead_ms - slowest.ahead_ms
        surely_ms = apart_ms - service.within_ms - slowest.within_ms
        wrong = surely_ms > MOST_SKEW_MS
        what = f"{apart_ms / 1000:.3f} s ahead of the slowest clock"
        action = "Run NTP on every machine: deadlines count on clocks that differ by at most 0.5 s." if wrong else ""
        yield Checked("clock", service.about, "problem" if wrong else "ok", what, action)


def versions(seen: Sequence[SeenService]) -> Iterator[Checked]:
    found: dict[str, list[str]] = {}
    for service in seen:
        if service.status is not None:
            found.setdefault(service.status.version, []).append(service.about)
    if len(found) > 1:
        what = "; ".join(f"{version}: {', '.join(who)}" for version, who in sorted(found.items()))
        yield Checked("version", "cluster", "problem", what, "Finish the upgrade: see docs/upgrade.md.")
    elif found:
        yield Checked("version", "cluster", "ok", f"all run {next(iter(found))}")


def upgraded(client: metatxn.Client) -> Checked:
    try:
        found = client.upgrade_status()
    except metatxn.NotFound as error:
        return Checked("upgrade", "cluster", "skipped", error.detail, error.action)
    if found.version >= found.target:
        return Checked("upgrade", "cluster", "ok", f"the cluster version is {found.version}")
    what = f"the cluster version is {found.version}, and {found.target} is possible"
    return Checked("upgrade", "cluster", "advice", what, "See `metatxn upgrade status`.")


def of_credentials(
    token: str | None, url: str, ca: str | None, clock: Callable[[], float] = time.time
) -> Iterator[Checked]:
    """Check the token that was given, if it says when it expires, and the certificate at the URL that was given."""
    ends_s = end_of_token(token)
    if ends_s is not None:
        yield _ending("token", "the token of this command", ends_s - clock(), "Ask for a new one, and distribute it.")
    yield from _certificate(url, url, ca, clock())


def _endings(service: SeenService, url: str, ca: str | None, now_s: float) -> Iterator[Checked]:
    """Check the token that a broker shows to others, and the certificate of a service that answers. That at `url` is
    looked at in any case."""
    if service.status is None:
        return
    if (ends_ms := service.status.peer_token_ends_ms) is not None:
        action = "Ask for a new one, and restart the broker with it as its --peer-token."
        yield _ending("peer token", service.about, ends_ms / 1000 - now_s, action)
    if service.process.url.rstrip("/") != url.rstrip("/"):
        yield from _certificate(service.about, service.process.url, ca, now_s)


def _certificate(about: str, url: str, ca: str | None, now_s: float) -> Iterator[Checked]:
    ends_s = expires_at(url, ca) if url.startswith("https://") else None
    if ends_s is not None:
        action = "Renew it, and restart the services with the new --tls-cert."
        yield _ending("certificate", about, ends_s - now_s, action)


def _ending(check: str, about: str, left_s: float, action: str) -> Checked:
    what = f"ends in {duration(int(left_s * 1000))}" if left_s > 0 else "has ended"
    soon = left_s < SOON_S
    return Checked(check, about, "problem" if soon else "ok", what, action if soon else "")


def examined(url: str) -> Iterator[Checked]:
    found: list[Checked] = []

    async def run(opened: services.Store) -> None:
        async for each in services.load("store_doctor")(opened):
            found.append(Checked(each.check, each.about, each.verdict, each.what, each.action))

    try:
        looking_into(url, run, open_within_s=OPEN_WITHIN_S)
    except CliError as error:
        yield Checked("store", "--store", "problem", str(error), "Start it, or correct --store.")
    yield from found


def _not_examined() -> Checked:
    action = "Give --store to check its server, its history and the storages of segments."
    return Checked("store", "cluster", "skipped", "the store itself was not examined", action)


def of_directories(directories: Sequence[Path], of_store: Sequence[Checked]) -> Iterator[Checked]:
    """Check whether each directory belongs to this cluster, and whether a broker has it open."""
    storages = {each.about.removeprefix("storage "): each for each in of_store if each.check == "storage"}
    for directory in directories:
        about = f"data directory {directory}"
        try:
            path = next(each for each in (directory, directory / "broker") if (each / "storage.json").is_file())
            storage = str(json.loads((path / "storage.json").read_text())["storage_id"])
        except (StopIteration, OSError, ValueError, KeyError, TypeError):
            action = "Name the directory that a broker was started with as --data-dir."
            yield Checked("data directory", about, "problem", "there is no storage.json that can be read", action)
            continue
        if [each.check for each in of_store] == ["store"]:
            yield Checked("data directory", about, "skipped", f"it is storage {storage}", "Give --store, too.")
        elif storage not in storages:
            action = "Do nothing if it is new or empty; otherwise --store is that of another cluster."
            yield Checked("data directory", about, "advice", f"no segment is in its storage {storage}", action)
        elif storages[storage].verdict == "ok":
            yield Checked("data directory", about, "ok", storages[storage].what)
        else:
            action = f"Start `metatxn broker --data-dir {shlex.quote(str(path))}` there."
            yield Checked("data directory", about, "problem", storages[storage].what, action)
