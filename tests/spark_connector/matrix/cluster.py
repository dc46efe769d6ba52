"""Spark: a driver process, and a standalone cluster of two workers, made of the jars that pyspark brings along."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark

from examples.flights.processes import ROOT, kill_group
from tests.servers import binary, free_port
from tests.spark_connector.helpers import JAVA_OPTIONS, wait_until
from tests.spark_connector.matrix.driver import Job
from tests.spark_connector.matrix.points import POINTS

ATTEMPTS = 2
"""Of each task in Spark's local mode, before its job fails."""
SPARK_HOME = Path(pyspark.__file__).parent
LOCAL = f"local[2,{ATTEMPTS}]"
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    # What is aggregated is written by as many tasks as anything else.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    # Writers get their rows in pieces, so that a task that fails late has sent some before.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    "spark.log.level": "ERROR",
}
CLUSTER_CONF = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    # Both executors are there before the first task is placed.
    "spark.scheduler.minRegisteredResourcesRatio": "1",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "2s",
    # The Python process of a task that lost lives on: it is the zombie that the tests want.
    "spark.python.task.killTimeout": "600s",
}


def environment(points: Path) -> dict[str, str]:
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": path}
    # The scripts that start a worker elsewhere would find out the Scala version; it looks for its jars by it.
    spark = {"SPARK_HOME": str(SPARK_HOME), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**os.environ, **python, **spark, POINTS: str(points)}


class Driver:
    """One after another: `start` makes a process if there is none, `kill` ends it with `kill -9`."""

    def __init__(self, directory: Path, points: Path, master: str = LOCAL, conf: dict[str, str] | None = None) -> None:
        session = {"master": master, "conf": {**CONF, **(conf or {}), f"spark.executorEnv.{POINTS}": str(points)}}
        self._command = [sys.executable, "-m", "tests.spark_connector.matrix.driver", json.dumps(session)]
        self._environment = environment(points)
        self._log = directory / "driver.log"
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        directory.mkdir()

    def launch(self) -> None:
        """It takes its time; `start` waits for it."""
        with self._log.open("a") as errors:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=self._directory,
                start_new_session=True,
                env=self._environment,
            )

    def start(self, job: Job) -> None:
        if self._process is None:
            self.launch()
        self._tell(start=asdict(job))

    def stop_query(self) -> None:
        self._tell(stop=True)

    def ended(self) -> str | None:
        """Waits for the end of the query; what it failed with."""
        said: dict[str, Any] = {}
        while "ended" not in said:
            assert self._process is not None and self._process.stdout is not None
            line = self._process.stdout.readline()
            assert line, f"the driver died; the end of its log:\n{self._log.read_text()[-3000:]}"
            said = json.loads(line)
        error: str | None = said["ended"]
        return error

    def kill(self) -> None:
        if self._process is not None:
            kill_group(self._process)
            self._process.communicate()
            self._process = None

    def _tell(self, **command: Any) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        self.launch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class StandaloneCluster:
    """A master and two workers of one core. Each worker has an address of its own, because Spark runs no speculative
    copy of a task on the host that has the task already."""

    def __init__(self, directory: Path, points: Path) -> None:
        self._directory = directory
        self._environment = environment(points)
        self._stack = ExitStack()
        directory.mkdir()
        self.master = f"spark://127.0.0.1:{free_port()}"

    def __enter__(self) -> Self:
        port = self.master.rpartition(":")[2]
        with self._stack:
            self._launch("master", "master.Master", "127.0.0.1", "--port", port)
            for number in (1, 2):
                host, work = f"127.0.0.{number}", str(self._directory / f"work-{number}")
                limits = ("--cores", "1", "--memory", "1g", "--work-dir", work)
                self._launch(f"worker-{number}", "worker.Worker", host, *limits, self.master)
            self._stack = self._stack.pop_all()
        return self

    def _launch(self, name: str, main: str, host: str, *options: str) -> None:
        java = [binary("java", "openjdk-17-jre-headless"), *JAVA_OPTIONS.split(), "-Xmx256m"]
        command = [*java, "-cp", str(SPARK_HOME / "jars" / "*"), f"org.apache.spark.deploy.{main}"]
        command += ["--host", host, "--webui-port", "0", *options]
        with (self._directory / f"{name}.log").open("w") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,
                env={**self._environment, "SPARK_LOCAL_IP": host},
            )
        self._stack.callback(kill_group, process)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def kill_executor(python_daemon: int) -> None:
    """`kill -9` the Java process whose Python workers this daemon makes; returns when they are gone too."""
    stat = Path(f"/proc/{python_daemon}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{python_daemon}").exists(), "the executor's Python processes end")
