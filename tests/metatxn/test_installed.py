"""Goal: what a user installs is light, stands beside files of any name, and tells type checkers and readers the truth.

Method: the wheel in environments of its own, with no more than it needs; see `tests/installed.py`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import metatxn
from examples.flights.demo import running_dev
from tests.documents import examples, outputs
from tests.installed import ROOT, Environment, build_wheel, install
from tests.spark_connector.helpers import JAVA_OPTIONS

README = (ROOT / "README.md").read_text()
DEFAULT_URL = "http://127.0.0.1:8470"
IN_THE_WAY = ("service", "coordinator", "participants", "metastore", "spark_connector", "tests", "models", "errors")
"""Names that users give to files of their own, too."""
SERVERS = ("grpc", "kazoo", "fastapi", "uvicorn", "uvloop", "obstore", "cryptography")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return install(wheel, tmp_path_factory.mktemp("client"))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_dev(tmp_path_factory.mktemp("dev"), None) as url:
        yield url


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    for name in IN_THE_WAY:
        (tmp_path / f"{name}.py").write_text(f"raise AssertionError('{name}.py of the user was imported')\n")
    return tmp_path


def test_the_ten_lines_run_with_the_client_alone(client: Environment, url: str, crowded: Path) -> None:
    """In a directory where files have the names of our packages."""
    (source,), (expected,) = examples(README, "python"), outputs(README)
    (crowded / "mine.py").write_text(source.replace(DEFAULT_URL, url))
    done = client.run(client.python, "mine.py", cwd=crowded)
    assert (done.stdout, done.stderr) == (expected, "")
    found = client.run(client.python, "-c", f"import {', '.join(SERVERS)}", cwd=crowded)
    assert "ModuleNotFoundError" in found.stderr, "or the test would show nothing"


def test_the_verbs_of_the_client_run_beside_any_names(client: Environment, url: str, crowded: Path) -> None:
    for verb in (["topic", "list"], ["txn", "list"], ["key", "list"], ["--help"], ["--version"]):
        done = client.run(client.metatxn, *verb, cwd=crowded, METATXN_URL=url, PYTHONPATH=str(crowded))
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize(
    "verb", [["dev"], ["coordinator", "--store", "sqlite:///x.db"], ["store", "check", "--store", "sqlite:///x.db"]]
)
def test_a_verb_of_the_server_says_what_it_needs(client: Environment, verb: list[str], tmp_path: Path) -> None:
    done = client.run(client.metatxn, *verb, cwd=tmp_path)
    assert done.returncode == 1
    assert re.search(r"needs \w+, .* `pip install 'metatxn\[server\]'`", done.stderr), done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


SCHEMA: pa.Schema = pa.Table.from_pylist([{"id": 7, "item": "tea"}]).schema
JOB = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.createDataFrame([(7, "tea")], "id long, item string")
rows.write.format("metatxn").option("url", sys.argv[1]).option("topic", "from-spark").mode("append").save()
read = spark.read.format("metatxn").option("url", sys.argv[1]).option("subscribe", "from-spark").load()
print(read.select("id", "item").collect())
"""


def test_spark_finds_the_format_where_the_package_is_installed(
    wheel: Path, url: str, crowded: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A job in another directory, with what the extra `spark` brings and no servers."""
    environment = install(wheel, tmp_path_factory.mktemp("spark"), "spark")
    with metatxn.connect(url) as client:
        client.create_topic("from-spark", schema=SCHEMA)
    (crowded / "spark_connector.py").unlink()  # the one name that a job has to leave to us
    (crowded / "job.py").write_text(JOB)
    variables = {"PYSPARK_PYTHON": environment.python, "SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": JAVA_OPTIONS}
    done = environment.run(environment.python, "job.py", url, cwd=crowded, **variables)
    assert done.stdout == "[Row(id=7, item='tea')]\n", done.stderr


def test_the_client_is_small(client: Environment) -> None:
    """What Arrow brings is nine tenths of it."""
    others = [path for path in client.packages.iterdir() if not path.name.startswith(("pyarrow", "metatxn"))]
    sizes = {path.name: size_of(path) for path in others}
    assert sum(sizes.values()) < 40 << 20, sizes
    requirements = [line for line in metadata_of(client).splitlines() if line.startswith("Requires-Dist:")]
    assert len([line for line in requirements if "extra ==" not in line]) <= 8


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())


def metadata_of(environment: Environment) -> str:
    (directory,) = environment.packages.glob("metatxn-*.dist-info")
    return (directory / "METADATA").read_text()


USER = """
import metatxn

client = metatxn.connect("http://127.0.0.1:8470")
reveal_type(client)
reveal_type(client.begin())
reveal_type(client.producer("t"))
reveal_type(client.subscribe("t", "s"))
reveal_type(client.subscribe("t", "s").receive())
reveal_type(client.reader("t"))
reveal_type(client.topic("t"))
reveal_type(client.transactions())
metatxn.tpyo
"""
REVEALED = [
    *("metatxn.sync.client.Client", "metatxn.sync.transaction.Transaction", "metatxn.sync.producer.Producer"),
    *("metatxn.sync.consumer.Consumer", "metatxn.reader.Message | None", "metatxn.sync.reader.Reader"),
    *("metatxn.wire.broker.TopicInfo", "typing.Iterator[metatxn.wire.coordinator.TransactionHeader]"),
]


def test_a_type_checker_sees_the_types(client: Environment, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(USER)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", client.python, "--cache-dir=cache"]
    done = client.run(*command, "mine.py", cwd=tmp_path)
    assert re.findall(r'Revealed type is "(.*)"', done.stdout) == REVEALED, done.stdout
    assert re.findall(r"error: (.*)", done.stdout) == ['Module has no attribute "tpyo"  [attr-defined]'], done.stdout


def test_the_blocking_classes_speak_of_themselves() -> None:
    assert "-> 'Consumer'" in str(inspect.signature(metatxn.Client.subscribe))
    assert "-> 'Listing[TransactionHeader]'" in str(inspect.signature(metatxn.Client.transactions))
    for name in metatxn.__all__:
        if hasattr(metatxn, f"Async{name}"):
            for method, found in inspect.getmembers(getattr(metatxn, name), inspect.isfunction):
                if not method.startswith("_"):
                    assert found.__doc__ and "Async" not in str(inspect.signature(found)), found


def test_objects_say_what_they_are() -> None:
    with metatxn.connect(DEFAULT_URL) as client:
        assert repr(client) == f"Client('{DEFAULT_URL}')"
        assert repr(client.producer("orders")) == "Producer('orders')"
        assert repr(client.consumer("orders", "s", name="c")) == "Consumer('orders', 's', 'c')"
        assert repr(client.attach("00" * 16)) == f"Transaction('{'00' * 16}', not read yet)"
