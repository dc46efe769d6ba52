"""Settings from a file: profiles for commands, and the options of the servers.

    [profiles.prod]                       metatxn --profile prod topic list
    url = "https://metatxn.example:8470"
    token = "…"
    ca = "/etc/ssl/our-authority.pem"

    [broker]                              metatxn broker
    store = "etcd://10.0.0.1:2379"
    data-dir = "/var/lib/metatxn"

A setting is named like its option without the dashes. What applies is the option, else the environment variable, else
the file, else the default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from metatxn.cli.options import CliError
from metatxn.cli.output import print_note

SERVERS = ("dev", "coordinator", "broker")
SECTIONS = "[profiles.NAME], [dev], [coordinator] and [broker]"
OF_A_PROFILE = ("url", "token", "ca", "listener", "output", "store")
TAKE_A_STORE = (("doctor",), ("store", "dump"), ("store", "check"), ("store", "sizes"))
"""The commands whose `--store` a profile may give: those that only read it."""
_OTHERS_MAY_READ = 0o077


def default_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "metatxn" / "config.toml"


def load_settings(given: Path | None) -> tuple[Path, dict[str, Any]]:
    """The file and its tables; no tables if no file was named and the usual one does not exist. Raises `CliError`."""
    path = given or default_file()
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        if given is None:
            return path, {}
        raise CliError(f"there is no settings file {path}. Correct --config, or METATXN_CONFIG.") from None
    except UnicodeDecodeError:
        raise CliError(f"the settings file {path} is not UTF-8 text. Write it again, as TOML.") from None
    except OSError as error:
        raise CliError(
            f"the settings file {path} cannot be read: {error.strerror}. Make it readable, or name another one with "
            "--config."
        ) from error
    return path, _tables(path, text)


def _tables(path: Path, text: str) -> dict[str, Any]:
    import tomllib  # only who has a file pays for it

    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CliError(f"the settings file {path} is not valid TOML: {error}. Correct it there.") from error
    for name, table in tables.items():
        if isinstance(table, dict) and name not in ("profiles", *SERVERS):
            raise CliError(f"{path}: there is no section {name!r}. Use {SECTIONS}.")
        if not isinstance(table, dict):
            raise CliError(f"{path}: {name!r} is outside of any section. Put it below one of {SECTIONS}.")
    return tables


def profile_of(path: Path, tables: Mapping[str, Any], name: str | None) -> dict[str, str]:
    """The settings of a profile; none without a name. Raises `CliError`."""
    if name is None:
        return {}
    profiles = tables.get("profiles", {})
    if not isinstance(found := profiles.get(name), dict):
        there = f"There are {_listed(profiles)}" if profiles else "There are none"
        raise CliError(
            f"there is no profile {name!r} in {path}. {there}: correct --profile, or METATXN_PROFILE, or add "
            f"[profiles.{name}]."
        )
    for setting, value in found.items():
        if setting not in OF_A_PROFILE:
            known = _listed(OF_A_PROFILE)
            raise CliError(f"{path}: there is no setting {setting!r} for [profiles.{name}]. Use {known}.")
        if not isinstance(value, str):
            raise CliError(f"{path}: {setting!r} in [profiles.{name}] is {value!r}, not text. Put it in quotes.")
    if "token" in found and path.stat().st_mode & _OTHERS_MAY_READ:
        print_note(f"other users may be able to read the token in {path}; chmod 600 prevents that.")
    return dict(found)


def use_settings(context: typer.Context, path: Path, tables: Mapping[str, Any], profile: Mapping[str, str]) -> None:
    """Hand the settings to the commands below `context`, as defaults of their options. Raises `CliError`."""
    set_here = [name for name in SERVERS if tables.get(name)]
    defaults: dict[str, Any] = {name: _of_server(context, path, name, tables[name]) for name in set_here}
    if "store" in profile:
        for command in TAKE_A_STORE:
            place = defaults
            for part in command:
                place = place.setdefault(part, {})
            place["store"] = profile["store"]
    context.default_map = defaults


def _of_server(context: typer.Context, path: Path, name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    command: Any = context.command
    parameters = command.commands[name].params
    known = {option.removeprefix("--"): each.name for each in parameters for option in each.opts if option[:2] == "--"}
    for setting in table:
        if setting not in known:
            raise CliError(f"{path}: {setting!r} in [{name}] is not an option. See `metatxn {name} --help`.")
    lists = {each.name for each in parameters if each.multiple}
    return {known[name]: _as_list(value) if known[name] in lists else value for name, value in table.items()}


def _as_list(value: Any) -> Any:
    """A list, also for a single value of an option that may be repeated."""
    return [value] if isinstance(value, str) else value


def _listed(names: Any) -> str:
    return ", ".join(names)
