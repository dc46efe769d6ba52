"""What holds for every test: its place in the suite, that nothing fails for being slow, and that nothing is skipped.

And the servers that tests of several packages use."""

from __future__ import annotations

import gc
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import fastapi.dependencies.models
import httpx
import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from metatxn.cli.services import YOUNG_OBJECTS
from participants.ledger.watermark import Space, Watermark
from tests.extent import QUICK, is_quick, is_quick_file
from tests.order import Scheduling, place_of
from tests.servers import EtcdServer, S3Server, ZooKeeperServer

# httpx looks for it with every request to an application in this process. It is not installed, and each look along the
# whole path takes a third of a millisecond.
sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]

# httpx reads the certificates of all authorities of the web for each client, which takes longer than most requests.
httpx._transports.default.create_ssl_context = cache(httpx.create_ssl_context)  # type: ignore[attr-defined]

# Unless it is told otherwise, structlog shows each traceback with all local variables, which takes a tenth of a second.
*_processors, _ = structlog.get_config()["processors"]
_shown = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*_processors, _shown])

# On top of the profile that hypothesis takes by itself, which in CI is another one.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("patient"), max_examples=10)
settings.load_profile("quick" if QUICK else "patient")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if QUICK and collection_path.name.startswith("test_") and collection_path.is_file():
        return not is_quick_file(collection_path) or None
    return None


def pytest_sessionstart() -> None:
    """Brokers refuse messages when their disk is as full as that, and hundreds of tests fail for it."""
    disk = shutil.disk_usage(tempfile.gettempdir())
    watermark = Watermark()
    watermark.measured(Space(disk.used, disk.used + disk.free))
    if watermark.refusal is not None:
        pytest.exit(f"{tempfile.gettempdir()}: {watermark.refusal}", returncode=1)


def pytest_configure() -> None:
    """What is collected stays to the end: looking for garbage in it takes a fifth of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What tests leave behind is looked through as seldom as in a service, which saves a tenth of their time."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if QUICK:
        others = [item for item in items if not is_quick(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if is_quick(item)]
    items.sort(key=lambda item: place_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """FastAPI remembers the endpoints that it has looked at, and so all services of tests that are over: a million
    objects that every look for garbage goes through."""
    if nextitem is None or nextitem.path != item.path:
        for remembered in vars(fastapi.dependencies.models).values():
            if hasattr(remembered, "cache_clear"):
                remembered.cache_clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that is skipped proves nothing, and nobody notices: it fails."""
    report = yield
    if report.skipped:
        report.outcome, report.longrepr = "failed", f"{item.nodeid} was skipped: {report.longrepr}"
    return report


@pytest.fixture(scope="module")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """For tests that leave the server alone; each works under a root of its own. One for each file: it starts at once,
    and with nothing to do it takes a hundredth of a core."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """For tests that leave the server alone; each works under a root of its own."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """For tests that leave the server alone; each works below a prefix of its own."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server
