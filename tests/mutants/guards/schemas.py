"""Schemas of topics: what may follow, what is remembered, and what fits."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_VERSIONS = "participants/messages/schema_versions.py"
_TEST = "tests/participants/broker/test_schemas.py"

_SIZES = "metatxn/wire/arrow_sizes.py"
_SIZES_TEST = "tests/metatxn/test_arrow_sizes.py"

SCHEMAS = (
    Mutant(
        "decompressed-whatever-it-becomes",
        "a table that says to be too large is refused before it is decompressed",
        _SIZES,
        "        _check(claimed, most_bytes)\n",
        "",
        tests=(f"{_SIZES_TEST}::test_what_is_compressed_is_refused_before_it_is_decompressed",),
    ),
    Mutant(
        "one-long-value-for-all-rows",
        "a value counts where it stands, and not once in its dictionary",
        _SIZES,
        "        _check(size, most_bytes)\n",
        "",
        tests=(f"{_SIZES_TEST}::test_few_bytes_that_become_many_are_refused",),
    ),
    Mutant(
        "misfit-of-an-earlier-look-counts",
        "a table is refused for the schema that the topic has, not for that of an earlier look",
        "participants/topic/fitting.py",
        "            check_table_fits(topic, schema)\n            return\n",
        "            raise\n",
        tests=(f"{_TEST}::test_141_two_producers_are_the_first_ones_at_once",),
    ),
    Mutant(
        "only-the-last-version-counts",
        "new columns are compared with all versions before",
        _VERSIONS,
        "schemas.decode_schema(arrow) for version, arrow in _remembered(topic)}",
        "schemas.decode_schema(arrow) for version, arrow in [*_remembered(topic)][:1]}",
        tests=(f"{_TEST}::test_140_a_schema_is_set_and_changed_as_the_policy_allows",),
    ),
    Mutant(
        "types-of-old-versions-are-forgotten",
        "of the versions that are not listed any more, the columns that later ones lack are remembered",
        _VERSIONS,
        "        forgotten = _last_types(forgotten, oldest)\n",
        "        forgotten = oldest\n",
        tests=(f"{_TEST}::test_141_no_type_is_forgotten_however_many_versions_there_were",),
    ),
    Mutant(
        "schema-judged-by-an-earlier-policy",
        "a schema is changed in an apply that checks the policies by which it was judged",
        _VERSIONS,
        "        for check in found.checks:\n",
        "        for check in found.checks[:1]:\n",
        tests=(f"{_TEST}::test_a_change_of_the_policy_meanwhile_counts",),
    ),
    Mutant(
        "schema-changed-over-another-change",
        "a schema is changed at the version of the topic's record by which it was judged",
        _VERSIONS,
        "        for check in found.checks:\n",
        "        for check in found.checks[1:]:\n",
        tests=(f"{_TEST}::test_of_two_changes_at_once_both_are_judged_by_the_other",),
    ),
    Mutant(
        "rows-of-a-former-version-that-cannot-be-read",
        "rows of a former version are taken only if the current columns include them",
        _VERSIONS,
        '        if not any(incompatible("backward", ',
        '        if any([True]) or not any(incompatible("backward", ',
        tests=(f"{_TEST}::test_142_a_producer_that_has_not_heard_of_a_version_goes_on",),
    ),
    Mutant(
        "retry-refused-because-of-its-rows",
        "a retry of what was appended is recognized before its rows are judged",
        "participants/segment/publishing.py",
        "        scope = Scope(entry.txn_id, entry.writer, entry.producer)\n        if entry.behind is not None:\n",
        "        scope = Scope(entry.txn_id, entry.writer, entry.producer)\n        if misfit is not None:\n"
        "            raise misfit\n        if entry.behind is not None:\n",
        tests=(f"{_TEST}::test_143_a_retry_is_recognized_although_its_rows_fit_no_longer",),
    ),
    Mutant(
        "schema-of-another-broker-is-not-learned",
        "a broker learns with its next look what another one has made of a schema",
        "participants/broker/broker.py",
        "        if cached is not None and cached.arrow_schema != topic.arrow_schema:\n",
        "        if cached is not None and cached.name != topic.name:\n",
        tests=(f"{_TEST}::test_another_broker_learns_a_schema_with_its_next_look",),
    ),
    Mutant(
        "producers-set-what-is-left-to-administrators",
        "with schema_updates=admins no producer changes a schema",
        _VERSIONS,
        '            if found.policy.schema_updates.value == "admins":\n',
        '            if found.policy.schema_updates.value == "nobody":\n',
        tests=(f"{_TEST}::test_141_producers_add_columns_unless_that_is_left_to_administrators",),
    ),
    Mutant(
        "bytes-pass-for-a-row-of-nulls",
        "bytes are no row of a topic with a schema",
        "participants/messages/schemas.py",
        "    return message.value if message.value_base64 is None else base64.b64decode(message.value_base64)\n",
        "    return message.value\n",
        tests=("tests/participants/api/test_rest.py::test_the_first_arrow_write_sets_the_schema_and_others_must_fit",),
    ),
)
