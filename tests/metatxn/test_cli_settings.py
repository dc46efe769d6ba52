"""Goal: a setting comes from the option, else the environment, else the file, else the default, and a mistake in the
file is named.

Method: the real commands. Those that would start a server are stopped where they would open the store, and those that
would call a service have an address where nobody listens, which the error names.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from metatxn.cli import serve, services
from metatxn.cli.options import CliError
from metatxn.cli.settings import SERVERS
from tests.certificates import Authority
from tests.metatxn.command_line import Done, error_line, run_here

SETTINGS = """
[profiles.prod]
url = "http://127.0.0.1:1"
output = "json"
store = "sqlite:///nowhere/profile.db"

[profiles.other]
url = "http://127.0.0.1:2"

[broker]
store = "sqlite:///from-the-file.db"
storage = "memory:///"
port = 7001
disk-watermark = 85
transaction-buffer = ["a/b=memory", "memory"]
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "metatxn" / "config.toml"
    path.parent.mkdir()
    path.write_text(SETTINGS)
    path.chmod(0o600)
    return path


def test_a_profile_gives_what_no_option_and_no_variable_gives(settings: Path) -> None:
    place = {"METATXN_CONFIG": str(settings)}

    def asked(*arguments: str, **more: str) -> str:
        done = run_here(*arguments, **place, **more)
        assert done.returncode == 1
        return done.stderr

    assert "127.0.0.1:1" in asked("--profile", "prod", "topic", "list")
    assert "127.0.0.1:2" in asked("topic", "list", METATXN_PROFILE="other")
    assert "127.0.0.1:3" in asked("--profile", "prod", "topic", "list", METATXN_URL="http://127.0.0.1:3")
    assert "127.0.0.1:4" in asked("--profile", "prod", "--url", "http://127.0.0.1:4", "topic", "list")
    assert "127.0.0.1:5" in asked("--profile", "prod", "topic", "list", "--url", "http://127.0.0.1:5")
    assert "nowhere/profile.db" in asked("--profile", "prod", "store", "check")
    for verb in ("dump", "sizes"):
        assert "nowhere/profile.db" in asked("--profile", "prod", "store", verb)
    assert "there.db" in asked("--profile", "prod", "store", "check", "--store", "sqlite:///nowhere/there.db")


def test_the_usual_place_and_the_output_of_a_profile(settings: Path) -> None:
    done = run_here("--profile", "prod", "token", "create", "--name", "x", XDG_CONFIG_HOME=str(settings.parents[1]))
    assert json.loads(done.stdout).keys() == {"token", "entry"}
    assert run_here("token", "create", "--name", "x", XDG_CONFIG_HOME=str(settings.parent)).returncode == 0


def test_the_output_of_a_profile_counts_for_errors_too(settings: Path) -> None:
    """Unless an option says otherwise, wherever it is given."""

    def error(*arguments: str) -> str:
        done = run_here("--config", str(settings), "--profile", "prod", *arguments)
        assert done.returncode != 0 and done.stderr.count("\n") == 1
        return done.stderr

    assert "127.0.0.1:1" in json.loads(error("topic", "list"))["error"]
    assert "TOPIC" in json.loads(error("topic", "show"))["error"], "one of the parser"
    for output in (("-o", "table"), ("-otable",), ("--output=table",)):
        assert error("topic", "list", *output).startswith("metatxn: nothing answers")


OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
NAMED_BEFORE = {
    "store",
    "token-file",
    "jwt-public-key",
    "jwt-audience",
    "tls-cert",
    "tls-key",
    "peer-token",
    "output",
}
"""These have a variable of another name, or take their value from the options of every command."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a broker would be made with."""
    seen: dict[str, Any] = {}

    class Opened:
        async def close(self) -> None: ...

    async def connect_store(url: str, *_: Any) -> Opened:
        seen["store"] = url
        return Opened()

    def made(name: str, store: Any, settings: dict[str, Any], **arguments: Any) -> None:
        seen.update(settings | arguments)
        raise CliError("far enough.")

    monkeypatch.setattr(services, "connect_store", connect_store)
    monkeypatch.setattr(serve, "made", made)
    return seen


def test_a_server_takes_its_options_from_the_file(settings: Path, made: dict[str, Any]) -> None:
    assert "far enough" in error_line(run_here("--config", str(settings), "broker"))
    assert (made["store"], made["port"], made["disk_watermark"]) == ("sqlite:///from-the-file.db", 7001, 85)
    assert made["transaction_buffers"] == {"a/b": "memory", "*": "memory"}
    assert (made["storage"], made["host"], made["max_ledger_bytes"]) == ("memory:///", "127.0.0.1", None)


def test_options_and_variables_go_before_the_file(settings: Path, made: dict[str, Any]) -> None:
    arguments = ("--config", str(settings), "broker", "--port", "7002")
    assert "far enough" in error_line(run_here(*arguments, METATXN_STORE="sqlite:///from-a-variable.db"))
    assert (made["store"], made["port"], made["disk_watermark"]) == ("sqlite:///from-a-variable.db", 7002, 85)


def test_every_option_of_a_server_has_a_variable(settings: Path, made: dict[str, Any]) -> None:
    """Between the option and the file."""
    variables = {
        "METATXN_OPTION_PORT": "7003",
        "METATXN_OPTION_DISK_WATERMARK": "70",
        "METATXN_OPTION_DRAIN_TIMEOUT_MS": "1m",
        "METATXN_OPTION_TRANSACTION_BUFFER": "plain a/b=memory",
    }
    arguments = ("--config", str(settings), "broker", "--port", "7002")
    assert "far enough" in error_line(run_here(*arguments, **variables))
    assert (made["port"], made["disk_watermark"], made["drain_timeout_ms"]) == (7002, 70, 60_000)
    assert made["transaction_buffers"] == {"*": "plain", "a/b": "memory"}
    wrong = error_line(run_here("coordinator", "--store", "memory://", METATXN_OPTION_GC_RETENTION_MS="10x"))
    assert "--gc-retention-ms" in wrong and "'10x'" in wrong
    for server in SERVERS:
        shown = run_here(server, "--help", COLUMNS="300").stdout
        options = re.findall(r"^  (?:-\w, )?--([\w-]+)", shown, re.MULTILINE)
        assert len(options) > 20
        for option in {*options} - {"help"}:
            variable = f"METATXN_OPTION_{option.upper().replace('-', '_')}"
            assert variable in shown or option in NAMED_BEFORE, option
    assert "METATXN_OPTION" not in run_here("broker", "drain", "--help").stdout, "that is no option of a server"


@pytest.mark.parametrize("server", ["coordinator", "broker"])
def test_the_page_about_operations_shows_settings_that_are_taken(
    server: str, made: dict[str, Any], tmp_path: Path
) -> None:
    """And its unit starts the same command."""
    (settings,) = re.findall(r"```toml\n(    \[coordinator\]\n.*?)    ```", OPERATIONS, re.DOTALL)
    (tmp_path / "tokens.toml").write_text("")
    issued = Authority(tmp_path / "authority").sign("service", host="10.0.0.5")
    issued.cert.rename(tmp_path / "service.pem")
    issued.key.rename(tmp_path / "service.key")
    here = textwrap.dedent(settings).replace("/etc/metatxn", str(tmp_path)).replace("/var/lib/metatxn", str(tmp_path))
    (tmp_path / "metatxn.toml").write_text(here)
    (command,) = re.findall(r"^ *ExecStart=/opt/metatxn/bin/metatxn (.*)$", OPERATIONS, re.MULTILINE)
    arguments = command.replace("/etc/metatxn", str(tmp_path)).replace("broker", server).split()
    assert "far enough" in error_line(run_here(*arguments))
    assert made["store"] == "etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/prod"
    port = 8470 if server == "coordinator" else 8471
    assert (made["host"], made["advertise_url"]) == ("0.0.0.0", f"https://10.0.0.5:{port}")


@pytest.mark.parametrize("given", ["10m", "600000"])
def test_the_times_of_servers_are_durations_or_milliseconds(given: str, made: dict[str, Any], tmp_path: Path) -> None:
    (path := tmp_path / "config.toml").write_text(f"[broker]\ndrain-timeout-ms = {json.dumps(given)}\n")
    for arguments in (("--config", str(path), "broker"), ("broker", "--drain-timeout-ms", given)):
        assert "far enough" in error_line(run_here(*arguments, "--store", "memory://", "--storage", "memory:///"))
        assert made.pop("drain_timeout_ms") == 600_000
    path.write_text("[broker]\ndrain-timeout-ms = 5\n")
    assert "far enough" in error_line(
        run_here("--config", str(path), "broker", "--store", "m", "--storage", "memory:///")
    )
    assert made["drain_timeout_ms"] == 5


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("[brokers]\n", ("topic", "list"), "'brokers'"),
        ("profiles = 1\n", ("topic", "list"), "'profiles'"),
        ("[broker]\nports = 1\n", ("topic", "list"), "'ports' in [broker]"),
        ("[broker]\nport = 'x'\n", ("broker", "--store", "memory://"), "--port"),
        ("url = 'x'\n", ("topic", "list"), "'url' is outside of any section"),
        (
            "[profiles.a]\nurls = 'x'\n",
            ("--profile", "a", "topic", "list"),
            "'urls' for [profiles.a]. Use url",
        ),
        ("[profiles.a]\nurl = 1\n", ("--profile", "a", "topic", "list"), "'url' in [profiles.a] is 1, not text"),
        ("[profiles.a]\noutput = 'xml'\n", ("--profile", "a", "topic", "list"), "'output' in [profiles.a] is 'xml'"),
        ("[profiles.a]\n", ("--profile", "b", "topic", "list"), "There are a"),
        ("", ("--profile", "b", "topic", "list"), "There are none"),
        ("[", ("topic", "list"), "config.toml is not valid TOML: "),
    ],
)
def test_a_mistake_in_the_file_is_named(text: str, arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    (path := tmp_path / "config.toml").write_text(text)
    assert words in error_line(run_here("--config", str(path), *arguments))


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.toml"
    assert f"there is no settings file {missing}" in error_line(run_here("--config", str(missing), "topic", "list"))


def test_the_usual_file_that_cannot_be_read_is_no_missing_one(tmp_path: Path) -> None:
    """A directory stands for whatever the system refuses to read."""
    (usual := tmp_path / "metatxn" / "config.toml").mkdir(parents=True)
    refused = error_line(run_here("topic", "list", XDG_CONFIG_HOME=str(tmp_path)))
    assert f"the settings file {usual} cannot be read: Is a directory. Make it readable" in refused
    usual.rmdir()
    usual.write_bytes(b"\xff")
    assert "is not UTF-8 text" in error_line(run_here("topic", "list", XDG_CONFIG_HOME=str(tmp_path)))


@pytest.mark.parametrize(("mode", "said"), [(0o644, True), (0o600, False)])
def test_a_token_that_others_may_read(mode: int, said: bool, tmp_path: Path) -> None:
    (path := tmp_path / "config.toml").write_text('[profiles.a]\ntoken = "mtx_1"\n')
    path.chmod(mode)
    done: Done = run_here("--config", str(path), "--profile", "a", "token", "create", "--name", "x")
    assert done.returncode == 0 and ("chmod 600" in done.stderr) is said
