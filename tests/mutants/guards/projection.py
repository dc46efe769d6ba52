"""Readers that name columns: what a broker may leave out, and what a reader may ask for."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_BROKER = "participants/messages/projection.py"
_TABLES = "metatxn/tables.py"
_TEST = "tests/participants/api/test_projection.py"
_TEST_TABLES = "tests/metatxn/test_tables.py"

PROJECTION = (
    Mutant(
        "columns-without-the-key",
        "the column with the keys stays, whatever a reader asks for",
        _BROKER,
        "if name in names or name == key]",
        "if name in names]",
        tests=(f"{_TEST}::test_the_key_stays",),
    ),
    Mutant(
        "columns-decompressed-without-a-bound",
        "a broker decompresses a bounded part of an entry to leave out columns",
        _BROKER,
        " or decompressed > MOST_BYTES:",
        ":",
        tests=(f"{_TEST}::test_what_cannot_become_smaller_stays_as_it_is",),
    ),
    Mutant(
        "columns-no-longer-compressed",
        "what was compressed is sent compressed",
        _BROKER,
        "IpcWriteOptions(compression=codec)",
        "IpcWriteOptions()",
        tests=(f"{_TEST}::test_a_column_of_any_type_is_left_out_or_alone",),
    ),
    Mutant(
        "columns-in-one-turn",
        "other requests have their turn between two entries of which columns are left out",
        _BROKER,
        "[frame async for frame in in_turns(project(frame, wanted) for frame in frames)]",
        "[project(frame, wanted) for frame in frames]",
        tests=("tests/participants/broker/test_large_entries.py::test_columns_are_left_out_in_turns",),
    ),
    Mutant(
        "large-columns-kept-for-a-slow-reader",
        "a slow reader of a large entry costs no memory, although it asks for a part of it",
        "participants/api/routes.py",
        "return projected if sum(len(frame.data) for frame in projected) <= ANSWER_BYTES else frames",
        "return projected",
        tests=(f"{_TEST}::test_an_entry_that_stays_large_is_sent_as_it_is_stored",),
    ),
    Mutant(
        "columns-asked-of-an-earlier-release",
        "a service of release 0.2.0 is not asked for columns, which it would refuse",
        "metatxn/frames.py",
        "column_list(columns) if columns and is_new else None",
        "column_list(columns) if columns else None",
        tests=("tests/metatxn/test_earlier_services.py::test_frames_are_read_without_a_parameter_that_is_not_known",),
    ),
    Mutant(
        "a-message-fits-only-some-columns",
        "a message that is not an object is in the column `value`, also for a reader of other columns",
        _TABLES,
        "if misfit.column in wanted.names or misfit.column not in schema.names:",
        "if True:",
        tests=(f"{_TEST_TABLES}::test_only_what_is_asked_for_has_to_fit",),
    ),
    Mutant(
        "unknown-column-without-a-word",
        "a column that the topic does not have is refused by name",
        _TABLES,
        "        _check_columns(topic, layout.schema, columns)\n",
        "        pass\n",
        tests=(f"{_TEST_TABLES}::test_columns_that_do_not_exist",),
    ),
    Mutant(
        "spark-gets-all-columns",
        "a task of Spark asks for the columns that its DataFrame has",
        "spark_connector/segment_rows.py",
        "partition.columns.names if partition.some else None",
        "None",
        tests=("tests/spark_connector/test_reader.py::test_only_the_wanted_columns_are_asked_for",),
    ),
)
