"""Entries of a transaction that travel together."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CLIENT = "metatxn/publishing.py"
_HTTP = "metatxn/http.py"
_WIRE = "metatxn/wire/entry_groups.py"
_ROUTES = "participants/api/append_routes.py"
_TEST = "tests/metatxn/test_entry_groups.py"
_TEST_ROUTES = "tests/participants/api/test_entry_groups.py"
_TEST_SECURITY = "tests/participants/test_security.py"

ENTRY_GROUPS = (
    Mutant(
        "group-without-an-answer-is-forgotten",
        "an entry whose group had no answer is not denied by the refusal of the next request",
        _CLIENT,
        "None if error.definite else error)",
        "None)",
        tests=(f"{_TEST}::test_an_entry_that_was_perhaps_appended_is_not_denied",),
    ),
    Mutant(
        "wrong-number-of-outcomes",
        "an answer with another number of outcomes tells nothing",
        _CLIENT,
        "if len(outcomes) != len(group.members):",
        "if not outcomes:",
        tests=(f"{_TEST}::test_an_answer_that_does_not_fit_tells_nothing",),
    ),
    Mutant(
        "earlier-release-is-asked-for-ever",
        "a broker that knows no groups is asked once",
        _CLIENT,
        "                self._without_groups[group.url] =",
        "                _ =",
        tests=(f"{_TEST}::test_a_broker_of_an_earlier_release_is_asked_once_until_it_may_have_been_upgraded",),
    ),
    Mutant(
        "upgraded-broker-gets-single-entries",
        "a broker that was upgraded gets groups",
        _CLIENT,
        "        return upgraded_s is None or asyncio.get_running_loop().time() >= upgraded_s\n",
        "        return upgraded_s is None\n",
        tests=(f"{_TEST}::test_a_broker_of_an_earlier_release_is_asked_once_until_it_may_have_been_upgraded",),
    ),
    Mutant(
        "unknown-transaction-ends-groups",
        "a broker that does not know a transaction knows groups",
        _CLIENT,
        " and not isinstance(error, TransactionNotFound):",
        ":",
        tests=(f"{_TEST}::test_a_group_into_an_unknown_transaction_does_not_end_all_groups",),
    ),
    Mutant(
        "groups-without-a-bound",
        "a group leaves when it is full",
        _CLIENT,
        "len(group.members) >= MAX_GROUP_ENTRIES",
        "len(group.members) > MAX_GROUP_ENTRIES",
        tests=(f"{_TEST}::test_a_group_has_a_bound",),
    ),
    Mutant(
        "group-gets-a-time-of-its-own",
        "a group and what follows it take no longer than one request",
        _HTTP,
        "            earlier.left_s = attempts.left_s\n",
        "            pass\n",
        tests=(f"{_TEST}::test_the_time_of_a_group_counts",),
    ),
    Mutant(
        "exclusive-producer-travels-with-others",
        "an entry of an exclusive producer keeps its epoch",
        _CLIENT,
        "        and entry.epoch is None\n",
        "",
        tests=(f"{_TEST}::test_what_only_one_request_can_say_travels_alone",),
    ),
    Mutant(
        "bytes-behind-a-group",
        "a group ends with its last payload",
        _WIRE,
        "    if at != len(body):",
        "    if at > len(body):",
        tests=(f"{_TEST_ROUTES}::test_a_malformed_group_changes_nothing",),
    ),
    Mutant(
        "payloads-of-a-group-end-early",
        "a group has all of its payloads",
        _WIRE,
        "    if at != len(body):",
        "    if at < len(body):",
        tests=(f"{_TEST_ROUTES}::test_a_malformed_group_changes_nothing",),
    ),
    Mutant(
        "right-on-the-topics-of-a-group",
        "each entry of a group needs the right on its topic",
        _ROUTES,
        "        if not caller.superuser:\n            caller.require(",
        "        if False:\n            caller.require(",
        tests=(f"{_TEST_SECURITY}::test_each_entry_of_a_group_asks_for_the_right_on_its_topic",),
    ),
    Mutant(
        "group-into-a-foreign-transaction",
        "nobody writes into the transaction of another principal",
        _ROUTES,
        "        await check_transaction(broker, txn_id, caller)\n        outcomes =",
        "        outcomes =",
        tests=(f"{_TEST_SECURITY}::test_b14_a_write_into_a_transaction_of_another_is_refused",),
    ),
    Mutant(
        "one-refusal-refuses-the-group",
        "an entry of a group is refused by itself",
        _ROUTES,
        "        return await _append(broker, head.segment, head.media_type, draft, head.count)\n"
        "    except (errors.MetatxnError, MetastoreError) as error:\n",
        "        return await _append(broker, head.segment, head.media_type, draft, head.count)\n"
        "    except MetastoreError as error:\n",
        tests=(f"{_TEST_ROUTES}::test_one_entry_is_refused_and_the_others_are_appended",),
    ),
    Mutant(
        "unknown-entry-of-a-group-is-forgotten",
        "an entry whose outcome a group does not know is not denied by the refusal of the next request",
        _CLIENT,
        "else _left(earlier, from_problem(each.model_dump(exclude_none=True)))",
        "else Earlier(earlier.left_s)",
        tests=(f"{_TEST}::test_one_entry_of_a_group_that_was_perhaps_appended_is_not_denied",),
    ),
    Mutant(
        "owner-is-not-learned-from-its-answer",
        "after a failure the client sends groups again, because it learns the owner from the next answer",
        _HTTP,
        "        attempts.endpoint.answered(base)\n",
        "",
        tests=(f"{_TEST}::test_groups_go_on_after_a_failure",),
    ),
    Mutant(
        "bad-entry-takes-others-along",
        "an entry that cannot be sent takes no other one along",
        _CLIENT,
        "            outcomes = [Earlier(self._http.timeout_s, failure) for _ in group.members]\n",
        "            outcomes = [Earlier(0, failure) for _ in group.members]\n",
        tests=(f"{_TEST}::test_an_entry_that_cannot_be_sent_takes_no_other_along",),
    ),
    Mutant(
        "group-forgets-its-writers",
        "an entry in a group keeps its writer",
        _WIRE,
        "                writer=entry.writer,\n",
        "                writer=None,\n",
        tests=(f"{_TEST}::test_a_group_says_everything_about_its_entries",),
    ),
    Mutant(
        "broker-forgets-the-writers-of-a-group",
        "an entry in a group belongs to its writer",
        _ROUTES,
        "txn_id, head.writer, head.producer",
        "txn_id, None, head.producer",
        tests=(f"{_TEST_ROUTES}::test_each_entry_belongs_to_its_writer",),
    ),
    Mutant(
        "single-entries-to-a-busy-service",
        "a group that was refused because there is too much to do is sent again, instead of its entries",
        _CLIENT,
        "if not error.definite or pause_s >= earlier.left_s:",
        "if pause_s:",
        tests=(f"{_TEST}::test_a_group_waits_for_a_service_that_has_too_much_to_do",),
    ),
)
