"""Quotas of principals: the parts of processes, debts, and what counts."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_QUOTAS = "metatxn/service/quotas/quotas.py"
_METERS = "metatxn/service/quotas/meters.py"
_EXCHANGE = "metatxn/service/quotas/exchange.py"
_TEST = "tests/service/test_quotas.py"
_TEST_ENDPOINTS = "tests/participants/test_security.py"

QUOTAS = (
    Mutant(
        "debt-is-forgotten",
        "a principal that waits for what it has moved too much is not forgotten meanwhile",
        _METERS,
        "        self._was_limited = self.limited or self.bucket.missing(1, now_s) > 0\n",
        "        self._was_limited = self.limited\n",
        tests=(f"{_TEST}::test_a_debt_is_not_forgotten_while_its_principal_waits",),
    ),
    Mutant(
        "parts-of-those-who-wait-are-old",
        "the parts of a quota add up to it, also while a principal waits at one of the processes",
        _QUOTAS,
        "            self._divide(principal, meters)  # also for those that wait and do not ask\n",
        "            pass\n",
        tests=(f"{_TEST}::test_160_bytes_are_counted_as_they_move",),
    ),
    Mutant(
        "a-fixed-part-for-each-process",
        "a process that uses less than its part leaves the rest to the others",
        _QUOTAS,
        "            part = fair if self._exchange.cut_off else part_of(meter.limit, meter.use, uses)\n",
        "            part = fair\n",
        tests=(f"{_TEST}::test_160_a_principal_gets_its_quota_wherever_it_sends",),
    ),
    Mutant(
        "each-process-has-the-whole-quota",
        "the parts of a quota add up to it",
        _QUOTAS,
        "            uses = [use for told in others if (use := uses_of(told, principal, name)) is not None]\n",
        "            uses: list[Any] = []\n",
        tests=(f"{_TEST}::test_160_a_principal_gets_its_quota_wherever_it_sends",),
    ),
    Mutant(
        "the-dead-keep-their-parts",
        "what a process has told half a minute ago counts no more",
        _EXCHANGE,
        "        return [told.uses for told in self._others.values() if now - told.heard_s <= SILENT_S]\n",
        "        return [told.uses for told in self._others.values() if now >= told.heard_s]\n",
        tests=(f"{_TEST}::test_163_a_process_that_dies_leaves_its_part_to_the_others",),
    ),
    Mutant(
        "records-of-the-dead-stay",
        "the record of a process that has ended is deleted by another one",
        _EXCHANGE,
        "            if now - told.heard_s > FORGOTTEN_S:\n",
        "            if now - told.heard_s > 1e9:\n",
        tests=(f"{_TEST}::test_163_a_process_that_dies_leaves_its_part_to_the_others",),
    ),
    Mutant(
        "whoever-says-so-is-a-broker",
        "only the secret of an announced broker makes a request count elsewhere",
        "metatxn/service/quotas/peers.py",
        "        return proof is not None and ",
        "        return proof is not None or ",
        tests=(f"{_TEST}::test_164_what_a_broker_asks_another_one_for_a_caller_counts_once",),
    ),
    Mutant(
        "bytes-hold-up-commits",
        "who has used up its bytes can still commit",
        _QUOTAS,
        '    if method == "POST" and _PUBLISHED.fullmatch(path):\n',
        '    if method == "POST" and path:\n',
        tests=(f"{_TEST}::test_a_debt_is_not_forgotten_while_its_principal_waits",),
    ),
    Mutant(
        "pages-of-readers-are-not-counted",
        "the pages that the client library reads count",
        _QUOTAS,
        "/(?:messages|batches)|",
        "/messages|",
        tests=(f"{_TEST_ENDPOINTS}::test_every_endpoint_that_moves_messages_counts_their_bytes",),
    ),
    Mutant(
        "groups-of-entries-are-not-counted",
        "entries that travel together count",
        _QUOTAS,
        "|txns/[^/]+/entries)",
        ")",
        tests=(f"{_TEST_ENDPOINTS}::test_every_endpoint_that_moves_messages_counts_their_bytes",),
    ),
    Mutant(
        "answers-are-not-counted",
        "what is read counts when it is sent",
        _QUOTAS,
        '            read.take(len(message.get("body", b"")))\n',
        "",
        tests=(f"{_TEST}::test_160_bytes_are_counted_as_they_move",),
    ),
    Mutant(
        "kafka-requests-pass-every-quota",
        "a request of a client of Kafka's waits until the quota of its principal lets it pass",
        "metatxn_gateways/kafka/service.py",
        "            if not quotas.active:\n",
        "            if True:\n",
        tests=("tests/gateways/test_kafka_quotas.py::test_every_request_but_signs_of_life_counts",),
    ),
    Mutant(
        "kafka-requests-overtake-when-a-quota-ends",
        "5.22: batches are judged in the order in which they came",
        "metatxn_gateways/kafka/service.py",
        "        if api_key in _FREE:\n",
        "        if api_key in _FREE or not quotas.active:\n",
        tests=("tests/gateways/test_kafka_quotas.py::test_nothing_overtakes_what_waits_when_the_quota_ends",),
    ),
    Mutant(
        "kafka-answers-are-not-counted",
        "what a client of Kafka's has fetched counts",
        _QUOTAS,
        "            self._read.take(size)\n",
        "            pass\n",
        tests=("tests/gateways/test_kafka_quotas.py::test_what_was_fetched_is_waited_for_afterwards",),
    ),
)
