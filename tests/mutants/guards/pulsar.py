"""Consumers that are attached to the owners of segments, and the gateway for Pulsar's clients."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ATTACHED = "participants/subscription/attached.py"
_DISPATCH = "participants/subscription/dispatch.py"
_ACKS = "metatxn_gateways/pulsar/acks.py"
_CONSUMERS = "metatxn_gateways/pulsar/consumers.py"
_ORDERED = "metatxn_gateways/pulsar/ordered.py"
_SUBSCRIBERS = "metatxn_gateways/pulsar/subscribers.py"
_AUTHENTICATION = "metatxn_gateways/pulsar/authentication.py"
_CONNECTION = "metatxn_gateways/pulsar/connection.py"
_LOOKUPS = "metatxn_gateways/pulsar/lookups.py"
_PRODUCERS = "metatxn_gateways/pulsar/producers.py"
_SESSION = "metatxn_gateways/pulsar/session.py"
_TEST_BROKERS = "tests/gateways/pulsar/test_brokers.py"
_TEST_QUOTAS = "tests/gateways/pulsar/test_quotas.py"
_TEST_SECURITY = "tests/gateways/pulsar/test_security.py"
_TEST_ATTACHED = "tests/participants/subscription/test_attached.py"
_TEST_CONSUMING = "tests/gateways/pulsar/test_consuming.py"
_TEST_ORDERED = "tests/gateways/pulsar/test_ordered.py"

PULSAR = (
    Mutant(
        "home-takes-from-attached",
        "5.10: a home takes back nothing of what an attached consumer holds",
        _DISPATCH,
        "if consumer < FIRST_ATTACHED and (succeeded or",
        "if (succeeded or",
        tests=(f"{_TEST_ATTACHED}::test_another_home_takes_nothing_from_it",),
    ),
    Mutant(
        "home-delivers-beside-attached",
        "5.10: where one consumer at a time has a segment, nobody else gets anything beside the attached one",
        _ATTACHED,
        "        return not (self._names and self._one_at_a_time)\n",
        "        return True\n",
        tests=(f"{_TEST_ATTACHED}::test_one_at_a_time_it_has_the_segment_alone",),
    ),
    Mutant(
        "two-attached",
        "5.10: where one consumer at a time has a segment, a second one is not attached",
        _ATTACHED,
        "            if self._one_at_a_time and self._names:\n",
        "            if False:\n",
        tests=(f"{_TEST_ATTACHED}::test_one_at_a_time_it_has_the_segment_alone",),
    ),
    Mutant(
        "attached-while-delivering",
        "5.10: what is being delivered to a consumer of the home returns when another one is attached",
        _ATTACHED,
        "        async with self._dispatch.reading:  # what is being delivered meanwhile is held by then\n",
        "        if True:\n",
        tests=(f"{_TEST_ATTACHED}::test_what_is_under_way_to_a_consumer_of_the_home_returns_when_it_is_attached",),
    ),
    Mutant(
        "detached-while-delivering",
        "5.10: what is being delivered to an attached consumer returns when it goes",
        _ATTACHED,
        "        async with self._dispatch.reading:  # a delivery to it may be under way\n",
        "        if True:\n",
        tests=(f"{_TEST_ATTACHED}::test_what_is_under_way_to_one_that_goes_returns",),
    ),
    Mutant(
        "delivered-to-nobody",
        "5.10: nothing is delivered to a consumer that is gone",
        _ATTACHED,
        "            return consumer in self._names\n",
        "            return True\n",
        tests=(f"{_TEST_ATTACHED}::test_it_gets_entries_whole_and_what_returns_first",),
    ),
    Mutant(
        "gives-back-what-others-hold",
        "5.10: an attached consumer gives back what it holds itself",
        _DISPATCH,
        "            places = [place for place in places if place in held]\n",
        "            pass\n",
        tests=(f"{_TEST_ATTACHED}::test_only_its_own_messages_are_given_back",),
    ),
    Mutant(
        "end-of-a-segment-before-its-acknowledgements",
        "5.25: the end of a segment is told once everything in it is acknowledged",
        _DISPATCH,
        "        if not self._segment.ended_at(self._cursor.mark_delete.last_before):\n",
        "        if False:\n",
        tests=(f"{_TEST_CONSUMING}::test_the_end_of_a_sealed_segment_is_told_once_everything_is_acknowledged",),
    ),
    Mutant(
        "children-beside-their-parents",
        "5.25: a segment is assigned once everything in its parents is acknowledged",
        _ORDERED,
        "            if all(parent in ready and parent in done for parent in parents):\n",
        "            if True:\n",
        tests=(f"{_TEST_ORDERED}::test_children_are_assigned_once_everything_in_their_parents_is_acknowledged",),
    ),
    Mutant(
        "grandchildren-behind-empty-parents",
        "5.25: the whole ancestry of a segment is acknowledged before it is assigned",
        _ORDERED,
        "            if all(parent in ready and parent in done for parent in parents):\n",
        "            if all(parent in done for parent in parents):\n",
        tests=(f"{_TEST_ORDERED}::test_a_grandchild_waits_for_all_that_is_before_it",),
    ),
    Mutant(
        "assigned-by-any-broker",
        "5.25: the home of a topic assigns its segments",
        _ORDERED,
        "            if self._broker.serving(layout.topic.home) is None:\n",
        "            if False:\n",
        tests=(f"{_TEST_ORDERED}::test_a_broker_that_is_not_the_home_assigns_nothing",),
    ),
    Mutant(
        "closed-because-it-was-taken-away",
        "a stream consumer that closes what it was told to close goes on",
        _ORDERED,
        "                if segment in member.closing:\n",
        "                if False:\n",
        tests=(f"{_TEST_ORDERED}::test_a_segment_that_comes_back_may_still_be_closed",),
    ),
    Mutant(
        "acknowledgement-that-ends-with-its-connection",
        "5.25: an acknowledgement goes on if its connection ends",
        _CONSUMERS,
        "await reads.segment.finish(_refusal(reads.acknowledge(request, txn_id)))",
        "await _refusal(reads.acknowledge(request, txn_id))",
        tests=(f"{_TEST_CONSUMING}::test_an_acknowledgement_goes_on_when_its_connection_ends",),
    ),
    Mutant(
        "cumulative-for-others",
        "5.10: on a shared subscription no consumer acknowledges for the others",
        _ACKS,
        """    if cumulative and part.definition.record.type == "shared":\n""",
        "    if False:\n",
        tests=(f"{_TEST_CONSUMING}::test_what_is_not_there_is_not_acknowledged",),
    ),
    Mutant(
        "any-number-of-ids",
        "a command that would keep the event loop busy closes its connection",
        _ACKS,
        "    if len(ids) > MAX_IDS:\n",
        "    if False:\n",
        tests=(f"{_TEST_CONSUMING}::test_what_is_not_there_is_not_acknowledged",),
    ),
    Mutant(
        "attached-for-ever",
        "5.10: what a consumer holds returns when its connection ends",
        _CONSUMERS,
        "            running.add_done_callback(lambda _: reads.segment.spawn(reads.detach()))\n",
        "            pass\n",
        tests=(f"{_TEST_CONSUMING}::test_consumers_share_messages_and_what_one_holds_returns_when_it_goes",),
    ),
    Mutant(
        "delivered-beyond-permits",
        "a consumer gets as many messages as it has permitted",
        _SUBSCRIBERS,
        "            self._permits -= len(each.indexes)\n",
        "            pass\n",
        tests=(f"{_TEST_CONSUMING}::test_permits_count_messages_and_an_entry_is_not_cut",),
    ),
    Mutant(
        "any-token-of-pulsar",
        "a client of Pulsar's comes in with a token that is valid",
        _AUTHENTICATION,
        "        self._authenticator.verified(token)\n",
        "        pass\n",
        tests=(f"{_TEST_SECURITY}::test_nobody_comes_in_without_a_token",),
    ),
    Mutant(
        "token-of-pulsar-looked-at-once",
        "a token is looked at again with every command",
        _CONNECTION,
        "        self._session.principal = self._authentication.principal()\n",
        "        self._session.principal = getattr(self, '_first', None) or self._authentication.principal()\n"
        "        self._first = self._session.principal\n",
        tests=(f"{_TEST_SECURITY}::test_both_kinds_of_tokens_are_taken_and_a_revoked_one_ends_its_connection",),
    ),
    Mutant(
        "rights-of-pulsar-ignored",
        "a client of Pulsar's does what its token allows",
        _SESSION,
        "        if not self.principal.may(right, topic):\n",
        "        if False:\n",
        tests=(f"{_TEST_SECURITY}::test_every_command_needs_its_right",),
    ),
    Mutant(
        "topics-of-pulsar-seen-by-all",
        "who has no right on a topic does not learn whether it exists",
        _SESSION,
        "        if not self.principal.may_see(topic):\n",
        "        if False:\n",
        tests=(f"{_TEST_SECURITY}::test_every_command_needs_its_right",),
    ),
    Mutant(
        "right-to-send-looked-at-once",
        "a producer that has lost its right sends nothing more",
        _PRODUCERS,
        """        if not self.session.principal.may("produce", self.segment.record.topic):\n""",
        "        if False:\n",
        tests=(f"{_TEST_SECURITY}::test_a_right_that_was_taken_away_is_gone",),
    ),
    Mutant(
        "transaction-of-another-principal",
        "a transaction belongs to the principal that began it",
        _SESSION,
        "        await check_transaction(self.context.broker, txn_id, self.principal)\n",
        "        pass\n",
        tests=(f"{_TEST_SECURITY}::test_a_transaction_belongs_to_the_principal_that_began_it",),
    ),
    Mutant(
        "overtaken-while-its-transaction-is-looked-up",
        "what a producer sends is appended in its order",
        _PRODUCERS,
        "        async with self._turn:\n",
        "        if True:\n",
        tests=(f"{_TEST_SECURITY}::test_what_is_sent_behind_a_transaction_that_is_looked_up_stays_behind_it",),
    ),
    Mutant(
        "looked-up-here-alone",
        "a lookup answers the broker that serves the segment",
        _LOOKUPS,
        "                return url\n",
        "                return brokers.own()\n",
        tests=(f"{_TEST_BROKERS}::test_every_broker_tells_who_serves_a_segment",),
    ),
    Mutant(
        "pulsar-without-quota",
        "commands of Pulsar's clients wait for the quota of their principal",
        _CONNECTION,
        "        if name not in _FREE and (self._waiting or self._session.context.quotas.active):\n",
        "        if False:\n",
        tests=(f"{_TEST_QUOTAS}::test_commands_wait_in_their_order_until_the_quota_lets_them_pass",),
    ),
    Mutant(
        "overtaken-while-a-quota-is-waited-for",
        "what waits for a quota stays in its order",
        _CONNECTION,
        "        if len(self._waiting) == 1:\n",
        "        if True:\n",
        tests=(f"{_TEST_QUOTAS}::test_commands_wait_in_their_order_until_the_quota_lets_them_pass",),
    ),
    Mutant(
        "delivered-beyond-a-quota",
        "what a consumer of Pulsar's gets counts for its principal",
        _SUBSCRIBERS,
        "                    charge.answer(size)\n",
        "                    pass\n",
        tests=(f"{_TEST_QUOTAS}::test_what_is_delivered_counts_and_waits",),
    ),
    Mutant(
        "lookup-without-patience",
        "a lookup waits for a segment that is being opened",
        _LOOKUPS,
        "                if (left_s := until_s - loop.time()) <= 0:\n",
        "                if (left_s := 0.0) <= 0:\n",
        tests=("tests/gateways/pulsar/test_producing.py::test_a_lookup_waits_until_the_segment_is_open",),
    ),
    Mutant(
        "late-acknowledgement-that-keeps-its-message",
        "5.25: what is acknowledged after the abort of its transaction returns",
        _SUBSCRIBERS,
        "            if txn_id is not None and await self.part.freed_by_abort(txn_id):\n",
        "            if False:\n",
        tests=(f"{_TEST_CONSUMING}::test_an_acknowledgement_of_a_transaction_that_is_over_is_refused",),
    ),
)
