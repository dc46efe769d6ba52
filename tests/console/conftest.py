"""One browser, and one cluster without and one with tokens, for all tests of pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser

import metatxn
from metatxn.console import live
from metatxn.service.exposure import open_exposure
from tests.console.browser import Visitor, running_browser
from tests.console.cluster import ConsoleCluster
from tests.console.forms import Sender
from tests.console.life import Life, lived
from tests.service.security import TokenFile
from tests.services_thread import Loop


@dataclass(frozen=True, slots=True)
class Secured:
    """A cluster with tokens, by principal."""

    cluster: ConsoleCluster
    tokens: dict[str, str]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Not for the whole session: as long as it runs, no coroutine can run in this thread."""
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="package", autouse=True)
def short_looks() -> Iterator[None]:
    """Anyone who waits for a page to follow waits less, and no other test sees more of the services."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "LOOK_EVERY_S", 0.2)
        yield


@pytest.fixture(scope="package")
def loop() -> Iterator[Loop]:
    with Loop() as loop:
        yield loop


@pytest.fixture(scope="package")
def cluster(loop: Loop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleCluster]:
    with ConsoleCluster(loop, tmp_path_factory.mktemp("console")) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def life(cluster: ConsoleCluster) -> Life:
    """What has happened in the cluster without tokens. Tests add to it and take nothing away."""
    with cluster.client() as client:
        return lived(client)


@pytest.fixture
def client(cluster: ConsoleCluster) -> Iterator[metatxn.Client]:
    with cluster.client() as client:
        yield client


@pytest.fixture
def sender(cluster: ConsoleCluster) -> Iterator[Sender]:
    with Sender(cluster.url) as sender:
        yield sender


@pytest.fixture(scope="package")
def secured(loop: Loop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    listed = TokenFile(tmp_path_factory.mktemp("tokens"))
    tokens = {"root": listed.add("root", admin=True)}
    tokens["ada"] = listed.add("ada", topics={"public/default/orders*": "produce,consume"})
    tokens["eve"] = listed.add("eve", topics={"public/default/orders*": "consume"})
    exposure = open_exposure(token_file=listed.path)
    with ConsoleCluster(loop, tmp_path_factory.mktemp("secured"), exposure=exposure) as cluster:
        yield Secured(cluster, tokens)


@pytest.fixture
def visitor(browser: Browser, cluster: ConsoleCluster) -> Iterator[Visitor]:
    """Somebody at the console of the cluster without tokens. No page may have caused trouble in the end."""
    visitor = Visitor(browser, cluster.url)
    yield visitor
    visitor.context.close()
    assert visitor.troubles == []


@pytest.fixture
def stranger(browser: Browser, secured: Secured) -> Iterator[Visitor]:
    """Somebody who has not signed in yet, at the console of the cluster with tokens."""
    visitor = Visitor(browser, secured.cluster.url)
    yield visitor
    visitor.context.close()
    assert visitor.troubles == []
