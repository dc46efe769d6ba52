"""`metatxn` as a process of its own that has imported everything when it begins: the imports take seconds of CPU, and
the tests start hundreds of servers.

A server of forks, one for each worker, imports what the services need and forks for each start. Forked twice, and left
by the process between, such a process becomes the child of the worker (a *subreaper*, Linux), which waits for it, sends
signals to it and reads its pipes like any other. What depends on how Python starts, as `--version` or an installed
package, is started as users start it.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_REQUEST_BYTES = 1 << 20
_IMPORTED = (
    *("coordinator.service", "participants.service", "metastore.urls", "metatxn.service.exposure", "uvloop"),
    "pydantic.v1",  # by fastapi, with the first route
)
_SERVE = "import sys; from tests.forked import serve; serve(int(sys.argv[1]))"


class Metatxn(subprocess.Popen[str]):
    """A command of `metatxn` as `subprocess.Popen` runs one."""

    def __init__(self, arguments: Sequence[str], **options: Any) -> None:
        super().__init__(list(arguments), text=True, **options)

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        """Instead of starting a program. In CPython 3.11, `rest` has `cwd` and `env` at 4 and 5, and the descriptors of
        the pipes at 9 to 14."""
        cwd, env = rest[4], rest[5]
        read_in, _, _, write_out, _, write_errors = pipes = rest[9:15]
        ends = (read_in, write_out, write_errors)
        files = [own if given == -1 else given for own, given in enumerate(ends)]
        try:
            self.pid = _server().start(args, env or os.environ, os.fspath(cwd or Path.cwd()), files)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


class _Server:
    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            command = [sys.executable, "-c", _SERVE, str(there.fileno())]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[there.fileno()])
        atexit.register(self._stop)

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], directory: str, files: list[int]) -> int:
        """The id of the process."""
        request = json.dumps([list(arguments), dict(environment), directory])
        with self._one_at_a_time:
            _adopt_orphans(True)
            try:
                socket.send_fds(self._here, [request.encode()], files)
                answer = self._here.recv(_REQUEST_BYTES)
            finally:
                _adopt_orphans(False)  # nobody would wait for those of others
        assert answer, "the server of forks has ended"
        return int(answer)

    def _stop(self) -> None:
        self._here.close()
        self._process.wait()


def _adopt_orphans(wanted: bool) -> None:
    """Whether processes below this one become its children once their parents have ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


@cache
def _server() -> _Server:
    return _Server()


def serve(descriptor: int) -> None:
    """Fork for each request, until the other end is closed. In what is forked, this runs `metatxn` and returns."""
    from metatxn.cli.main import main

    for module in _IMPORTED:
        import_module(module)
    gc.collect()
    gc.freeze()
    connection = socket.socket(fileno=descriptor)
    while True:
        request, files, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
        if not request:
            return
        told, tell = os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if child:
                os.write(tell, str(child).encode())
                os._exit(0)
            os.close(told)
            os.close(tell)
            connection.close()
            arguments, environment, directory = json.loads(request)
            _become(arguments, environment, directory, files)
            main()
            return
        os.close(tell)
        os.waitpid(between, 0)  # after this the child is the worker's
        connection.send(os.read(told, 100))
        for file in (told, *files):
            os.close(file)


def _become(arguments: list[str], environment: dict[str, str], directory: str, files: list[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(directory)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["metatxn", *arguments]
