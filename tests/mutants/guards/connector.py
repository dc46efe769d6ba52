"""The Spark connector."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

_OFFSETS = "spark_connector/offsets.py"
_ROWS = "spark_connector/segment_rows.py"
_TEST_STREAMS = ("tests/spark_connector/test_stream_stories.py",)

CONNECTOR = (
    Mutant(
        "removed-child-is-no-loss",
        "a query is told of a segment that was removed before it came there",
        "spark_connector/offsets.py",
        "if begun and number_of_segment(each) > max(begun))",
        "if begun and number_of_segment(each) < 0)",
        tests=(
            "tests/spark_connector/test_stream_reader.py"
            "::test_a_child_that_was_removed_is_lost_for_those_who_had_not_come_there",
        ),
    ),
    Mutant(
        "trimmed-rows-are-skipped",
        "a place behind which entries were trimmed is noticed",
        _OFFSETS,
        "return order(place) < order(horizon.trimmed_up_to or horizon.start)",
        "return False",
        tests=("tests/spark_connector/test_offsets.py::test_what_is_gone_was_trimmed",),
    ),
    Mutant(
        "child-before-its-parent",
        "a segment is read once its parents were read to their end",
        _OFFSETS,
        "if waited_for.isdisjoint(lineage.parents(each))}",
        "if each in lineage}",
        tests=("tests/spark_connector/test_offsets.py::test_the_children_of_a_split_take_over_without_an_empty_batch",),
    ),
    Mutant(
        "planned-start-is-lost",
        "an offset says where its batch begins in the segments that it enters",
        _OFFSETS,
        "return {} if found.entering.isdisjoint(ends) else",
        "return {} if ends else",
        tests=("tests/spark_connector/test_offsets.py::test_the_children_of_a_split_take_over_without_an_empty_batch",),
    ),
    Mutant(
        "limit-of-rows-is-exceeded",
        "the shares of a limit are no more than the limit",
        _OFFSETS,
        "min(count, left // (len(counts) - number))",
        "min(count, limit // (len(counts) - number))",
        tests=("tests/spark_connector/test_offsets.py::test_a_limit_is_divided_by_need",),
    ),
    Mutant(
        "loss-is-silent",
        "with failOnDataLoss a query fails when data is gone: in its plan, or in a task",
        "spark_connector/stream_reader.py",
        "        if self._options.fail_on_data_loss:\n            raise data_lost(segment, reason)\n",
        "        return\n",
        others=(Edit(_ROWS, "if options.fail_on_data_loss:", "if options is None:"),),
        tests=_TEST_STREAMS,
    ),
    Mutant(
        "task-reads-beyond-its-end",
        "a task reads up to the end that the driver has fixed",
        _ROWS,
        "if end is not None and order(position) > end:",
        "if end is not None and order(position) < ():",
        tests=("tests/spark_connector/test_stream_stories.py::test_a_stream_reads_everything_or_says_that_it_cannot",),
    ),
    Mutant(
        "failed-job-counts",
        "what a failed job has sent into a transaction never counts",
        "spark_connector/writer.py",
        "            self._attach().remember_writers([NOBODY])\n",
        "            pass\n",
        tests=("tests/spark_connector/test_write_stories.py::test_only_committed_jobs_count",),
    ),
    Mutant(
        "every-attempt-counts",
        "of the attempts of a task the one that Spark has chosen counts",
        "spark_connector/writer.py",
        "self._attach().commit(writers=winners(written))",
        "self._attach().commit()",
        tests=("tests/spark_connector/test_write_stories.py::test_of_two_attempts_the_one_that_was_chosen_counts",),
    ),
    Mutant(
        "one-of-several-transactions",
        "a micro-batch whose transaction ended half-way is not committed in part",
        "spark_connector/stream_writer.py",
        "    if len(transactions) > 1:\n",
        "    if not transactions:\n",
        tests=(
            "tests/spark_connector/test_stream_writer.py::test_a_batch_whose_transaction_ended_half_way_is_not_committed",
        ),
    ),
    Mutant(
        "row-without-a-topic-is-dropped",
        "a row whose topic is null is an error",
        "spark_connector/table_writes.py",
        "    if topics.null_count:\n",
        "    if topics.null_count < 0:\n",
        tests=("tests/spark_connector/test_table_writes.py::test_a_row_without_a_topic_is_an_error",),
    ),
    Mutant(
        "columns-that-do-not-fit-are-sent",
        "a DataFrame fits its topic before anything is sent",
        "spark_connector/arrow_schema.py",
        "    if problems:\n",
        "    if problems is None:\n",
        tests=("tests/spark_connector/test_arrow_schema.py::test_a_schema_that_does_not_fit_names_every_column",),
    ),
    Mutant(
        "keep-alive-gives-up-early",
        "a keep-alive that failed for a moment is done again",
        "spark_connector/keep_alive.py",
        "if not error.retriable and error.definite:",
        "if error.definite:",
        tests=("tests/spark_connector/test_keep_alive.py::test_what_passes_is_tried_again_and_a_decision_is_the_end",),
    ),
    Mutant(
        "acknowledges-what-was-not-read",
        "a micro-batch acknowledges what it has read",
        "spark_connector/input_acks.py",
        "if (offset.since or {}).get(segment) != place:",
        "if offset.since is not None:",
        tests=("tests/spark_connector/test_input_acks.py::test_where_the_batch_is_looked_up",),
    ),
    Mutant(
        "option-is-misspelt",
        "an option that nobody knows is refused: a misspelt one would be ignored",
        "spark_connector/options.py",
        "if name not in SPELLING and name not in SPARK_STREAMING_KEYS:",
        "if not name:",
        tests=("tests/spark_connector/test_options.py::test_what_options_alone_tell_is_told_before_anything_starts",),
    ),
)
