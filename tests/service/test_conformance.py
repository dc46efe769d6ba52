"""Both services answer as their own OpenAPI pages say (issue of the coordinator): whatever is sent, no 5xx and no
answer that the page does not show.

Method: schemathesis makes requests from the page, as it says and against it, the same ones in every run; a real server
answers them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest

from tests.metatxn.dev_server import DevServer


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    with DevServer(tmp_path_factory.mktemp("dev") / "data") as server:
        yield server


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("service", ["coordinator", "broker"])
def test_every_answer_is_on_the_page(dev: DevServer, service: str, mode: Literal["positive", "negative"]) -> None:
    from tests.service.conformance import failures

    url = dev.coordinator_url if service == "coordinator" else dev.broker_url
    found = failures(url, mode)
    assert not found, "\n\n".join(found)
