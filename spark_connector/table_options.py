"""The options of `CREATE TABLE … USING metatxn`.

Spark stores a table's options, but passes none of them to a Python data source when the table is read or inserted into:
only the table's schema is passed. So the options are stored in the metadata of its columns.

Column metadata follows the columns: in `INSERT INTO b SELECT * FROM a` the writer of b sees the columns of a, and would
write into the topic of a. So a table is for one direction, which its options determine: one with `subscribe` is for
reading, one with `topic` for inserting. The writer refuses columns of a table for reading; and nothing can be read from
a table for inserting, so the writer never sees the columns of another one.

The token is not stored in the catalog; tables use the environment variable METATXN_TOKEN.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from spark_connector.options import Direction, OptionError, direction_of

_KEY = "metatxn.options"


def remember_in(schema: StructType, options: Mapping[str, str]) -> StructType:
    text = json.dumps({name: value for name, value in sorted(options.items()) if name != "token"})
    return StructType(
        [StructField(field.name, field.dataType, field.nullable, {**field.metadata, _KEY: text}) for field in schema]
    )


def remembered_in(schema: StructType, given: Mapping[str, str], direction: Direction) -> dict[str, str]:
    """The options to use: those that were given, and, unless they include the URL, those stored in the columns of a
    table."""
    options = {name.lower(): value for name, value in given.items()}
    remembered = {field.metadata.get(_KEY) for field in schema}
    if "url" in options or remembered == {None}:
        return options
    if len(remembered) != 1:
        raise OptionError(_EXPLICITLY.format("these columns come from several tables"))
    stored: dict[str, str] = json.loads(next(iter(remembered)) or "{}")
    if direction_of(stored) != direction:
        if direction == "write":
            raise OptionError(_EXPLICITLY.format("these columns come from a table that is read (option subscribe)"))
        raise OptionError("This table is for inserting only (option topic): create one with subscribe to read.")
    return {**stored, **options}


_EXPLICITLY = (
    "Spark does not pass the options of the table to insert into, and {}: "
    "write INSERT INTO … WITH (url='…', topic='…')."
)
