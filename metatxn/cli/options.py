"""Options that many commands accept, before or after the command's name, and the client that is made from them."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

import metatxn
from metatxn.cli.output import Output, print_json, print_more, print_rows

DEFAULT_URL = "http://127.0.0.1:8470"

UrlOption = Annotated[
    str | None,
    typer.Option("--url", help=f"The URL of any coordinator or broker. [env: METATXN_URL] [default: {DEFAULT_URL}]"),
]
TokenOption = Annotated[str | None, typer.Option("--token", help="The bearer token. [env: METATXN_TOKEN]")]
CaOption = Annotated[
    str | None,
    typer.Option("--ca", metavar="FILE", help="PEM file of the authorities to trust for https. [env: METATXN_CA]"),
]
ListenerOption = Annotated[
    str | None,
    typer.Option(
        "--listener",
        help="The name of the listener whose addresses can be reached from here. [env: METATXN_LISTENER] [default: "
        "that of --url]",
    ),
]
OutputOption = Annotated[Output | None, typer.Option("--output", "-o", help="Print tables or JSON. [default: table]")]
LimitOption = Annotated[int, typer.Option(min=1, help="Print at most this many.")]

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Shared:
    """The options that were given before the command."""

    url: str = DEFAULT_URL
    token: str | None = None
    ca: str | None = None
    output: Output = Output.TABLE
    listener: str | None = None


class CliError(Exception):
    """One line for the user, which says what is wrong and what to do."""


class Interrupted(CliError):
    """Ctrl-C was pressed where it matters what that means."""


def shared(context: typer.Context) -> Shared:
    found = context.find_root().obj
    return found if isinstance(found, Shared) else Shared()


def output_of(context: typer.Context, output: Output | None) -> Output:
    return output or shared(context).output


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """The options of every command that calls a service: its URL, the token, and how the answer is printed."""

    context: typer.Context
    url: UrlOption = None
    token: TokenOption = None
    ca: CaOption = None
    listener: ListenerOption = None
    output: OutputOption = None

    def connect(self) -> metatxn.Client:
        """A client of a service that answers. A person does not want to wait for one that is not running."""
        client = self.client()
        try:
            client.cluster(patient=False)
        except metatxn.MetatxnError:
            client.close()
            raise
        return client

    def client(self) -> metatxn.Client:
        """A client that has asked nothing yet."""
        given = shared(self.context)
        token, ca = self.token or given.token or None, self.authorities
        return metatxn.connect(self.service_url, token=token, ca=ca, listener=self.listener or given.listener)

    @property
    def service_url(self) -> str:
        """The service that `--url` names, wherever it was given."""
        return self.url or shared(self.context).url

    @property
    def authorities(self) -> str | None:
        """The file of `--ca`, wherever it was given."""
        return self.ca or shared(self.context).ca

    @property
    def json(self) -> bool:
        """Whether to print JSON instead of a table."""
        return output_of(self.context, self.output) is Output.JSON

    def print_list(
        self, found: Iterable[Found], limit: int, columns: Sequence[str], row: Callable[[Found], Sequence[Any]]
    ) -> None:
        """Print at most `limit` of the items, as JSON objects or as rows, and say if there are more."""
        items = iter(found)
        listed = list(itertools.islice(items, limit))
        if self.json:
            print_json(listed)
        else:
            print_rows(columns, map(row, listed))
        print_more(items, len(listed), limit)

    def print_done(self, done: dict[str, Any], sentence: str) -> None:
        """Print what was done, as an object or in words."""
        if self.json:
            print_json(done)
        else:
            print(sentence)


def takes(name: str, options: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter `name` of a command by the fields of the dataclass `options`, so that typer sees them."""
    of_options = get_type_hints(options, include_extras=True)
    shared_parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=of_options[field.name],
        )
        for field in fields(options)
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_options(**given: Any) -> None:
            chosen = options(**{parameter.name: given.pop(parameter.name) for parameter in shared_parameters})
            command(**{name: chosen}, **given)

        hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in inspect.signature(command).parameters.values()
            if parameter.name != name
        ]
        signature = inspect.Signature([*own, *shared_parameters])
        with_options.__signature__ = signature  # type: ignore[attr-defined]
        with_options.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
        return with_options

    return decorate


takes_session = takes("session", ServiceOptions)
