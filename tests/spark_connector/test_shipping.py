"""Goal: the wheel is all that a job needs beside what the package depends on: installed, or sent along.

Method: virtual environments that see what is installed here, but neither this checkout nor one another; jobs in them,
started as a user starts them, write and read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from examples.flights.processes import ROOT
from tests.spark_connector.helpers import PATIENCE_S, STREAMS_TOPICS
from tests.spark_connector.matrix.cluster import CONF, LOCAL, SPARK_HOME

PACKAGES = ("coordinator", "metastore", "metatxn", "participants", "spark_connector")
JOB = Path(__file__).parent / "matrix" / "shipped_job.py"

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of a copy, because building leaves things behind."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "pyspark_metatxn.py"):
        shutil.copy(ROOT / file, source)
    _pip("wheel", "--no-deps", "--wheel-dir", str(built), str(source))
    (wheel,) = built.iterdir()
    return wheel


def test_the_wheel_holds_every_module(wheel: Path) -> None:
    modules = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == {*modules, "pyspark_metatxn.py"}


def test_an_installed_wheel_is_enough(wheel: Path, url: str, tmp_path: Path) -> None:
    python = _environment(tmp_path / "environment")
    _pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    said = _run([str(SPARK_HOME / "bin" / "spark-submit")], python, url, tmp_path)
    everything = list(range(20))
    assert said["read"] == everything
    if STREAMS_TOPICS:
        assert said["stream"] == everything
    assert {Path(file).is_relative_to(tmp_path / "environment") for file in said["driver"] + said["task"]} == {True}


def test_what_make_setup_has_installed_is_enough_from_anywhere(url: str, tmp_path: Path) -> None:
    """The job runs in another directory than the checkout."""
    said = _run([str(SPARK_HOME / "bin" / "spark-submit")], Path(sys.executable), url, tmp_path)
    assert said["read"] == list(range(20))
    assert {Path(file).is_relative_to(ROOT) for file in said["driver"] + said["task"]} == {True}


def test_a_wheel_that_is_sent_along_is_enough_but_for_reading_streams(wheel: Path, url: str, tmp_path: Path) -> None:
    """Spark shows what was sent along to tasks and to those who plan, but for the one that plans streams."""
    python = _environment(tmp_path / "environment")
    sent = shutil.copy(wheel, tmp_path / "metatxn.zip")
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--py-files", str(sent)]
    said = _run(submit, python, url, tmp_path, "register")
    assert said["read"] == list(range(20))
    assert "No module named 'spark_connector'" in said["stream"]
    assert {Path(file).parents[1].name for file in said["driver"] + said["task"]} == {"metatxn.zip"}


def _environment(directory: Path) -> Path:
    """Its Python. Of a directory that is named in a `.pth` file Python heeds no `.pth` files: what is installed there
    as a link to a checkout, as this package is, is not seen."""
    venv.create(directory, with_pip=False)
    (site,) = directory.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{SPARK_HOME.parent}\n{sysconfig.get_path('purelib')}\n")
    return directory / "bin" / "python"


def _run(submit: list[str], python: Path, url: str, directory: Path, *options: str) -> dict[str, Any]:
    """What the job says."""
    command = [*submit, "--master", LOCAL]
    for name, value in CONF.items():
        command += ["--conf", f"{name}={value}"]
    work = directory / "work"
    work.mkdir()
    job = shutil.copy(JOB, directory)
    interpreter = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*command, str(job), url, f"shipped-{directory.name}", str(work), *options],
        capture_output=True,
        text=True,
        cwd=work,
        env={**environment, **interpreter},
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def _pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", *arguments], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
