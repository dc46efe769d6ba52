"""The command line of an operator: what it asks, what it tries, and what it finds."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

_CONSENT = "metatxn/cli/consent.py"
_TEST_CONSENT = "tests/metatxn/test_cli_consent.py"
_NEWEST = "coordinator/newest.py"
_NEWEST_TESTS = "tests/coordinator/test_newest.py"
_AUDITED = "metatxn/service/audited.py"
_TEST_AUDIT = "tests/service/test_audit.py"

_TEST_SLOW = "tests/service/test_slow_requests.py"
_TEST_LISTENERS = "tests/service/test_listeners.py"
_TEST_HTTP = "tests/metatxn/test_http.py"

OPERATING = (
    Mutant(
        "any-answer-is-yes",
        "only a yes lets a command go on that destroys something",
        _CONSENT,
        "if answer.strip().lower() not in YES:",
        'if answer.strip().lower() in ("n", "no"):',
        tests=(f"{_TEST_CONSENT}::test_a_person_is_asked_and_told_what_is_at_stake",),
    ),
    Mutant(
        "trial-that-acts",
        "a trial changes nothing",
        _CONSENT,
        '            session.print_done({"dry_run": True, "would": said}, f"would {said}")\n            return False',
        '            session.print_done({"dry_run": True, "would": said}, f"would {said}")\n            return True',
        tests=(f"{_TEST_CONSENT}::test_a_trial_changes_nothing",),
    ),
    Mutant(
        "script-is-asked",
        "only a person is asked",
        _CONSENT,
        "if not self.yes and at_terminal():",
        "if not self.yes:",
        tests=(f"{_TEST_CONSENT}::test_a_script_is_not_asked",),
    ),
    Mutant(
        "acknowledged-before-printed",
        "a command acknowledges only what it has printed",
        "metatxn/cli/topic.py",
        "        yield part\n        consumer.acknowledge(part, txn)",
        "        consumer.acknowledge(part, txn)\n        yield part",
        tests=("tests/metatxn/test_cli.py::test_what_nobody_could_read_is_not_acknowledged",),
    ),
    Mutant(
        "hanging-by-age",
        "hanging transactions of several pages are listed by when they began",
        "metatxn/cli/txn.py",
        "return sorted(found, key=lambda txn: (txn.created_ms or 0, txn.txn_id))",
        "return sorted(found, key=lambda txn: txn.age_ms, reverse=True)",
        tests=(
            "tests/metatxn/test_cli_operating.py::test_hanging_transactions_of_several_pages_are_in_the_order_in_which_they_began",
        ),
    ),
    Mutant(
        "slow-answer-is-skew",
        "the time that an answer took is no difference of clocks",
        "metatxn/cli/doctor.py",
        "surely_ms = apart_ms - service.within_ms - slowest.within_ms",
        "surely_ms = apart_ms",
        tests=("tests/metatxn/test_cli_doctor.py::test_the_way_of_an_answer_is_no_skew",),
    ),
    Mutant(
        "deleted-segments-need-a-broker",
        "what was deleted needs no storage",
        "metastore/doctor.py",
        'if segment.state != "deleted":',
        "if segment.state:",
        tests=("tests/metatxn/test_cli_doctor.py::test_storages_without_a_broker_and_their_directories",),
    ),
    Mutant(
        "newest-by-coordinator",
        "the newest transactions are in one order, whichever coordinator they began at",
        _NEWEST,
        "return max(reading, key=lambda stream: stream.latest).take()",
        "return reading[-1].take()",
        tests=(f"{_NEWEST_TESTS}::test_every_transaction_is_there_once_in_the_order_of_the_begins",),
    ),
    Mutant(
        "further-coordinators-left-out",
        "behind the coordinator ids that are merged come the others, also on a later page",
        _NEWEST,
        "if number == last or not stream.ended)",
        "if not stream.ended)",
        tests=(f"{_NEWEST_TESTS}::test_of_many_coordinator_ids_a_bounded_number_is_merged",),
    ),
    Mutant(
        "newest-of-one-window",
        "however far the ids of two transactions are apart, both are found",
        "metastore/txn/listing.py",
        "if len(found.records) == limit or width >= txn_id.sequence:",
        "if found.records or width >= txn_id.sequence:",
        tests=(f"{_NEWEST_TESTS}::test_every_transaction_is_there_once_in_the_order_of_the_begins",),
    ),
    Mutant(
        "newest-sorts-everything",
        "a page of the newest transactions does not make the store sort all of them",
        "metastore/txn/listing.py",
        "_FEWEST_IDS << 2 * step for",
        "_FEWEST_IDS << 112 * step for",
        tests=(f"{_NEWEST_TESTS}::test_few_rows_are_read_for_a_slice",),
    ),
    Mutant(
        "blocks-of-ids-for-ever",
        "the order of the ids under one coordinator id is that of the begins, to within a minute",
        "metastore/txn/id_blocks.py",
        "self._leased_at > self._block_seconds:",
        "self._leased_at > 1_000 * self._block_seconds:",
        tests=("tests/coordinator/test_id_blocks.py::test_a_block_is_used_for_its_time_only",),
    ),
    Mutant(
        "young-ones-left-out",
        "the newest order ends only behind what can be young enough",
        "coordinator/listings.py",
        "at_ms < now_ms - self.younger_than_ms - _SKEW_MS",
        "at_ms < now_ms - _SKEW_MS",
        tests=("tests/coordinator/test_listings.py::test_young_transactions",),
    ),
    Mutant(
        "profile-before-option",
        "an option goes before the profile",
        "metatxn/cli/main.py",
        'return given if source is not None and source.name != "DEFAULT" else chosen.get(name, given)',
        "return chosen.get(name, given)",
        tests=("tests/metatxn/test_cli_settings.py::test_a_profile_gives_what_no_option_and_no_variable_gives",),
    ),
    Mutant(
        "progress-in-a-file",
        "only a terminal shows how far a command is",
        "metatxn/cli/progress.py",
        "self._shows = sys.stderr.isatty() and",
        "self._shows = sys.stderr.writable() and",
        tests=("tests/metatxn/test_cli_progress.py::test_only_a_person_who_sees_nothing_else_sees_it",),
    ),
    Mutant(
        "refused-at-the-gate-unseen",
        "the audit log tells what the gate refused",
        _AUDITED,
        "if route is None and status == errors.NotAllowed.status:",
        "if route is not None and status == errors.NotAllowed.status:",
        tests=(f"{_TEST_AUDIT}::test_keys_and_what_the_gate_refuses",),
    ),
    Mutant(
        "whole-query-in-audit-log",
        "the audit log shows no member of a query that is not listed",
        _AUDITED,
        "_listed(asked, mark.query)",
        "asked",
        tests=(f"{_TEST_AUDIT}::test_keys_and_what_the_gate_refuses",),
    ),
    Mutant(
        "force-hidden-by-encoding",
        "an abort by force is told of, whatever encoding its body has",
        _AUDITED,
        "json.loads(body) if body",
        'json.loads(body.decode("utf-8", "strict")) if body',
        others=(Edit(_AUDITED, "return status < 300 if sent is None", "return False if sent is None"),),
        tests=(f"{_TEST_AUDIT}::test_ends_by_force_however_they_are_asked_for",),
    ),
    Mutant(
        "unknown-told-as-failed",
        "what may have happened is not told as failed",
        "metatxn/service/audit.py",
        "if status in _UNKNOWN:",
        "if status in _UNKNOWN[:1]:",
        tests=(f"{_TEST_AUDIT}::test_a_bug_leaves_the_outcome_unknown",),
    ),
    Mutant(
        "long-poll-is-slow",
        "the time that a request asked to wait does not make it slow",
        "metatxn/service/slow_requests.py",
        " or seconds - _asked_to_wait_s(scope, body) < self._slow_s",
        "",
        tests=(f"{_TEST_SLOW}::test_the_time_that_was_asked_for_does_not_count",),
    ),
    Mutant(
        "slow-reader-is-slow",
        "a client that takes its answer slowly does not make it a slow one",
        "metatxn/service/request_metrics.py",
        "return (self._answered or now) - self._began",
        "return now - self._began",
        tests=(f"{_TEST_SLOW}::test_only_slow_requests_have_a_line",),
    ),
    Mutant(
        "slow-requests-flood-the-log",
        "there are at most a few lines a second of slow requests",
        "metatxn/service/slow_requests.py",
        "self._next, self._unlisted = now + PAUSE_S, 0",
        "self._next, self._unlisted = now - PAUSE_S, 0",
        tests=(f"{_TEST_SLOW}::test_what_has_no_line_is_counted_by_the_next_one",),
    ),
    Mutant(
        "planned-move-is-a-warning",
        "a segment that is handed over is not told as lost",
        "participants/broker/broker.py",
        'segment.leave("it moves to another broker")',
        'segment.lose("it moves to another broker")',
        tests=("tests/participants/broker/test_lifecycle.py::test_a_planned_move_is_no_warning",),
    ),
    Mutant(
        "other-address-for-owners",
        "a client outside is sent to the address outside",
        "metatxn/service/http.py",
        "address_for(listener_of(request), error.owner_url, error.listeners)",
        "address_for(None, error.owner_url, error.listeners)",
        tests=(f"{_TEST_LISTENERS}::test_every_answer_that_names_a_service_names_the_one_outside",),
    ),
    Mutant(
        "port-of-a-host-ignored",
        "a request came in by a listener if name and port are those of its address",
        "metatxn/wire/listeners.py",
        "and (sent.port or usual) == (there.port or usual)",
        "and usual > 0",
        tests=(f"{_TEST_LISTENERS}::test_the_listener_of_a_request",),
    ),
    Mutant(
        "restart-is-given-up",
        "an address that was reached before is waited for",
        "metatxn/http.py",
        "            self._named_by.pop(base, None)\n",
        "",
        tests=(f"{_TEST_HTTP}::test_an_address_that_was_reached_before_is_waited_for",),
    ),
    Mutant(
        "unreachable-is-waited-for",
        "an address that was never reached is given up soon",
        "metatxn/http.py",
        "if pause >= attempts.left_s or attempts.is_hopeless(pause):",
        "if pause >= attempts.left_s:",
        tests=(f"{_TEST_HTTP}::test_an_address_that_cannot_be_reached_is_named_soon",),
    ),
)
