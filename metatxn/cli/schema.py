"""`metatxn schema …`: the columns of a topic and their versions."""

from __future__ import annotations

from typing import Annotated

import typer

import metatxn
from metatxn.cli.options import CliError, ServiceOptions, takes_session
from metatxn.cli.output import print_fields, print_json, print_rows, when
from metatxn.cli.topic import TopicArgument, columns_option
from metatxn.columns import columns_text
from metatxn.wire.broker import TopicSchema
from metatxn.wire.schemas import SchemaInfo

app = typer.Typer(
    help="Show, check and set the schema of a topic: its columns, with their versions.",
    epilog="Which changes are allowed is a policy setting: metatxn topic set orders --schema-compatibility backward.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
SchemaOption = Annotated[
    str | None,
    typer.Option("--schema", metavar="NAME:TYPE,…", help="All columns, by Arrow's types: id:int64,tags:list<string>."),
]
AddOption = Annotated[
    list[str] | None, typer.Option("--add", metavar="NAME:TYPE", help="Add this column. May be repeated.")
]
DropOption = Annotated[
    list[str] | None, typer.Option("--drop", metavar="NAME", help="Leave out this column. May be repeated.")
]


@app.command(epilog="Examples: metatxn schema show orders · metatxn schema show orders --version 1")
@takes_session
def show(
    session: ServiceOptions,
    topic: TopicArgument,
    version: Annotated[int | None, typer.Option(min=1, help="The columns of this version.")] = None,
) -> None:
    """Show the columns of a topic, the versions that are remembered, and what its policy says about changes."""
    with session.connect() as client:
        found = client.schema(topic)
    if version is not None:
        _show_version(session, found, version)
    elif session.json:
        print_json(found)
    else:
        _show(found)


def _show(found: SchemaInfo) -> None:
    settings = [(name, getattr(found, name)) for name in ("schema_compatibility", "schema_updates")]
    fields = {name: f"{setting.value} ({setting.source})" for name, setting in settings}
    print_fields({"topic": found.topic, "version": found.version, **fields})
    if found.versions:
        print()
        rows = [(each.version, when(each.created_ms), columns_text(each.version_schema)) for each in found.versions]
        print_rows(("VERSION", "SINCE", "COLUMNS"), rows)


def _show_version(session: ServiceOptions, found: SchemaInfo, version: int) -> None:
    chosen = next((each for each in found.versions if each.version == version), None)
    if chosen is None:
        known = ", ".join(str(each.version) for each in found.versions) or "none"
        raise CliError(f"--version: {version} is not remembered. These versions are: {known}.")
    if session.json:
        print_json(chosen)
    else:
        print_rows(("COLUMN", "TYPE"), [(field.name, field.type) for field in chosen.version_schema.fields or ()])


@app.command(epilog="Example: metatxn schema check orders --add email:string || echo 'not compatible'")
@takes_session
def check(
    session: ServiceOptions,
    topic: TopicArgument,
    schema: SchemaOption = None,
    add: AddOption = None,
    drop: DropOption = None,
) -> None:
    """Tell whether these columns may become the next version, and if not, why. Nothing is changed. If they may not, the
    exit code is 1."""
    with session.connect() as client:
        columns, _ = _wanted(client, topic, schema, add, drop)
        found = client.check_schema(topic, columns)
    if session.json:
        print_json(found)
    elif found.compatible:
        print(f"compatible: {topic} may have these columns")
    else:
        print_rows(("PROBLEM",), [(problem,) for problem in found.problems])
    if not found.compatible:
        raise typer.Exit(1)


@app.command(
    "set",
    epilog="Examples: metatxn schema set orders --add email:string --drop fax · "
    "metatxn schema set orders --schema id:int64,price:'decimal128(9, 2)'",
)
@takes_session
def set_(
    session: ServiceOptions,
    topic: TopicArgument,
    schema: SchemaOption = None,
    add: AddOption = None,
    drop: DropOption = None,
) -> None:
    """Make these columns the next version. Messages that were published before stay as they are, and are read in the
    new columns: those that they lack are null."""
    with session.connect() as client:
        columns, version = _wanted(client, topic, schema, add, drop)
        found = client.set_schema(topic, columns, expected_version=version)
    if session.json:
        print_json(found)
    else:
        _show(found)


def _wanted(
    client: metatxn.Client, topic: str, schema: str | None, add: list[str] | None, drop: list[str] | None
) -> tuple[TopicSchema, int | None]:
    """The columns that are wanted and, if they are given as a change, the version that they change."""
    if (schema is not None) == bool(add or drop):
        raise CliError("Give all columns with --schema, or changes with --add and --drop, but not both.")
    if schema is not None:
        return columns_option("--schema", schema), None
    found = client.schema(topic)
    fields = list(found.topic_schema.fields or []) if found.topic_schema is not None else []
    for name in drop or ():
        if name not in {field.name for field in fields}:
            raise CliError(f"--drop: {topic} has no column {name!r}.")
        fields = [field for field in fields if field.name != name]
    for column in add or ():
        fields += columns_option("--add", column).fields or ()
    if not fields:
        raise CliError("--drop: no column would be left. A topic with a schema has at least one.")
    return TopicSchema(fields=fields), found.version
