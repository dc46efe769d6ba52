"""The options of `CREATE TABLE … USING metatxn`.

Spark stores a table's options, but hands a Python data source none of them when the table is read or inserted into:
only the table's schema arrives. So the options travel in the metadata of its columns.

Column metadata follows the columns: in `INSERT INTO b SELECT * FROM a` the writer of b sees the columns of a, and would
write into the topic of a. Hence a table is for one direction, by its options: one with `subscribe` is read, one with
`topic` is inserted into. Columns that remember a reading table are refused by the writer, and nothing can be read from
a writing table, so the writer never sees those of another writing table.

The token is not stored in the catalog; tables take it from the environment variable METATXN_TOKEN.
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
    """The options to use: what was given, and, unless that says where, what the columns of a table remember."""
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
        raise OptionError("This table is there to be inserted into (option topic): make one with subscribe to read.")
    return {**stored, **options}


_EXPLICITLY = (
    "Spark gives no options of the table to insert into, and {}: write INSERT INTO … WITH (url='…', topic='…')."
)
