"""Each story runs once for each kind of store, and for each kind of storage. All stories of a pair share the services.

The two have to do with each other only through the broker. So the gate has each store with one storage, and
`make test-all` has all pairs."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.extent import usually
from tests.participants.every_store.running import Running, running
from tests.servers import EtcdServer, S3Server

ALL_PAIRS = tuple(itertools.product(("sqlite", "etcd", "zookeeper"), ("files", "objects")))
PAIRS = usually((("sqlite", "files"), ("etcd", "objects"), ("zookeeper", "files")), ALL_PAIRS)


@pytest.fixture(scope="package", params=PAIRS, ids="-".join)
def running_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The store is a real server, or a file; the storage is local files, or objects in a server that speaks S3.

    It ends with the last story: services that went on in this process would change the global `random`, and hypothesis
    takes that for a mistake of whatever it tests then."""
    store, storage = request.param
    directory = tmp_path_factory.mktemp(f"{store}-{storage}")
    name = secrets.token_hex(6)
    place: dict[str, Any] = {"data_dir": directory / "ledgers"}
    with pytest.MonkeyPatch.context() as patch, ExitStack() as servers:
        if store == "sqlite":
            url = f"sqlite:///{directory}/metadata.db"
        elif store == "etcd":
            url = f"etcd://{servers.enter_context(EtcdServer(directory / 'etcd')).endpoint}/{name}"
        else:
            url = f"zk://{request.getfixturevalue('zookeeper_server').endpoint}/{name}"
        if storage == "objects":
            s3: S3Server = request.getfixturevalue("s3_server")
            for variable, value in s3.environment.items():
                patch.setenv(variable, value)
            place = {"storage": f"s3://{s3.BUCKET}/{name}"}
        with running(url, directory, place) as services:
            yield services
            assert services.findings() == []


@pytest.fixture
def cluster(running_cluster: Running) -> Iterator[Running]:
    """With no topic in it. Those that are left are deleted, so that no pass looks at them any more."""
    yield running_cluster
    running_cluster.delete_topics()
