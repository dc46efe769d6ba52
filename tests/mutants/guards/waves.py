"""Mutants of the waves of Kafka's producers, each with the test that has to catch it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SEQUENCES = "metatxn_gateways/kafka/sequences.py"
_PRODUCE = "metatxn_gateways/kafka/produce.py"
_SENDING = "metatxn_gateways/kafka/waves.py"
_TESTS = "tests/gateways/test_kafka_waves.py"
_FOLLOWS = f"{_TESTS}::test_nothing_follows_a_batch_that_failed_before_that_is_sent_again"
_FIRST = f"{_TESTS}::test_a_first_batch_that_came_while_the_segment_was_opened_is_not_passed_over"
_CLOSED = f"{_TESTS}::test_what_a_closed_connection_has_sent_is_followed_by_the_next"

WAVES = (
    Mutant(
        "each-batch-is-a-wave",
        "5.22: what arrives while a wave is on its way shares an answer of the store and a sync",
        _SEQUENCES,
        "WAVE_BATCHES = MAX_IN_PROGRESS\n",
        "WAVE_BATCHES = 1\n",
        tests=(f"{_TESTS}::test_what_arrives_meanwhile_shares_one_answer_of_the_store_and_one_sync",),
    ),
    Mutant(
        "wave-of-any-number",
        "11: a wave has a bound of batches",
        _SEQUENCES,
        "len(wave) >= WAVE_BATCHES or ",
        "",
        tests=(f"{_TESTS}::test_a_wave_is_bounded",),
    ),
    Mutant(
        "wave-of-any-size",
        "11: a wave has a bound of bytes",
        _SEQUENCES,
        "size > WAVE_BYTES or ",
        "",
        tests=(f"{_TESTS}::test_a_wave_is_bounded",),
    ),
    Mutant(
        "wave-of-several-transactions",
        "5.22: what is in no transaction is in another wave",
        _SEQUENCES,
        " or arrived.producer is not wave[0].producer",
        "",
        tests=(f"{_TESTS}::test_what_is_in_a_transaction_is_no_wave_with_what_is_not",),
    ),
    Mutant(
        "failed-batch-is-passed-over",
        "5.22: nothing follows a batch that failed before that is sent again",
        _SEQUENCES,
        "        self._following = first.sequence\n",
        "",
        tests=(_FOLLOWS,),
    ),
    Mutant(
        "failure-stops-at-its-batch",
        "5.22: with a batch all those behind it fail",
        _SEQUENCES,
        "        later = here[here.index(first) :]\n",
        "        later = [first]\n",
        tests=(_FOLLOWS,),
    ),
    Mutant(
        "failure-reaches-what-went-before",
        "5.22: what is on its way is not touched by what was withdrawn behind it",
        _SEQUENCES,
        "        later = here[here.index(first) :]\n",
        "        later = [first, *(each for each in here if each is not first)]\n",
        tests=(f"{_TESTS}::test_what_was_withdrawn_leaves_alone_what_is_on_its_way",),
    ),
    Mutant(
        "error-of-one-is-told-of-all",
        "5.22: what is wrong with a batch is not told of those behind it",
        _SEQUENCES,
        "    if isinstance(error, errors.InvalidArgument | errors.PayloadTooLarge):\n",
        "    if False:\n",
        tests=(f"{_TESTS}::test_what_is_wrong_with_one_batch_is_not_told_of_those_behind_it",),
    ),
    Mutant(
        "copy-is-out-of-order",
        "5.22: a batch that is sent again while it is on its way waits for it",
        _SEQUENCES,
        "        original = self._accepted.get(arrived.sequence)\n",
        "        original: Arrived | None = None\n",
        tests=(f"{_TESTS}::test_a_batch_that_is_sent_again_meanwhile_waits_for_the_first_one",),
    ),
    Mutant(
        "copy-fails-with-its-original",
        "5.22: a copy of a batch that failed is judged anew, in its place",
        _SEQUENCES,
        "            try:\n                self._judge(arrived)\n",
        "            try:\n                raise NotTheFollowing\n",
        tests=(f"{_TESTS}::test_a_copy_of_a_batch_that_failed_takes_its_place",),
    ),
    Mutant(
        "any-batch-under-a-sequence-is-a-copy",
        "5.22: another batch under the same sequence is refused",
        _SEQUENCES,
        "            if original.entry.count != arrived.entry.count:\n",
        "            if False:\n",
        tests=(f"{_TESTS}::test_another_batch_under_the_same_sequence_is_refused",),
    ),
    Mutant(
        "epoch-begins-when-it-is-durable",
        "5.22: the epoch is judged with the sequence, in one step",
        _SEQUENCES,
        "arrived.sequence // _SEQUENCES < self._following // _SEQUENCES:",
        "arrived.sequence // _SEQUENCES < self._following // _SEQUENCES and self.is_idle:",
        tests=(f"{_TESTS}::test_the_epoch_is_judged_with_the_sequence",),
    ),
    Mutant(
        "refused-first-batch-is-passed-over",
        "5.22: a batch that was refused before it was judged is owed",
        _PRODUCE,
        "                sequences.refused(found[1])\n",
        "",
        tests=(_FIRST,),
    ),
    Mutant(
        "batches-of-a-producer-overtake-each-other",
        "5.22: batches are judged in the order in which they came",
        _PRODUCE,
        "        async with turns.of(own_name(part.topic), part.partition):\n            try:",
        "        async with asyncio.Lock():\n            try:",
        tests=(f"{_TESTS}::test_batches_are_judged_in_the_order_in_which_they_came",),
    ),
    Mutant(
        "owed-for-ever",
        "5.22: what comes again shows that nothing is owed",
        _SEQUENCES,
        "            if self._sent_back[1] is connection or self._sent_back[1].is_over:\n",
        "            if False:\n",
        tests=(f"{_TESTS}::test_what_another_broker_has_meanwhile_is_not_waited_for",),
    ),
    Mutant(
        "late-batch-shows-that-nothing-is-owed",
        "5.22: what lies in an earlier connection is no sign",
        _SEQUENCES,
        "            if self._sent_back[1] is connection or self._sent_back[1].is_over:\n",
        "            if True:\n",
        tests=(f"{_TESTS}::test_what_lies_in_an_earlier_connection_is_no_sign",),
    ),
    Mutant(
        "closed-connection-owes-for-ever",
        "5.22: a connection that is closed brings nothing any more",
        "metatxn_gateways/kafka/service.py",
        "                connection.turns.end()\n",
        "",
        tests=(f"{_TESTS}::test_a_connection_that_is_closed_brings_nothing_any_more",),
    ),
    Mutant(
        "former-opening-is-passed-over",
        "5.22: nothing passes over what is on its way in a former opening of the segment",
        _SEQUENCES,
        "(is_another and not self.is_idle)",
        "False",
        tests=(f"{_TESTS}::test_nothing_passes_over_what_is_on_its_way_in_a_former_opening",),
    ),
    Mutant(
        "lost-segment-owes-nothing",
        "5.22: a batch for a segment that was lost meanwhile is owed",
        _SEQUENCES,
        "        if segment.lost or (is_another",
        "        if (is_another",
        tests=(f"{_TESTS}::test_a_segment_that_is_lost_takes_nothing",),
    ),
    Mutant(
        "what-waits-outlives-its-connection",
        "5.22: what waits for a closed connection is not kept",
        _SENDING,
        "            sequences.withdraw(arrived)\n",
        "",
        tests=(_CLOSED,),
    ),
    Mutant(
        "what-is-on-its-way-is-withdrawn",
        "5.22: what is on its way when its connection is closed is waited for",
        _SEQUENCES,
        "        if arrived not in self._here or arrived.is_sent:\n",
        "        if arrived not in self._here:\n",
        tests=(_CLOSED,),
    ),
    Mutant(
        "closed-segment-leaves-batches-waiting",
        "5.22: a segment that closes leaves nobody waiting",
        _SENDING,
        "    if sending.cancelled():\n",
        "    if sending.cancelled() and not sequences.is_sending:\n",
        tests=(f"{_TESTS}::test_a_segment_that_closes_leaves_nobody_waiting",),
    ),
    Mutant(
        "wave-for-an-exclusive-producer-taken-for-a-fenced-one",
        "5.23: a batch that is refused for an exclusive producer says nothing of its transaction",
        _SENDING,
        "        if isinstance(published.failure, errors.NotAllowed):  # the topic has an exclusive producer\n",
        "        if False:\n",
        tests=(
            "tests/gateways/test_kafka_producers.py::"
            "test_a_topic_that_another_producer_has_for_itself_takes_nothing_of_kafkas_clients",
        ),
    ),
    Mutant(
        "retry-of-what-was-trimmed-hangs",
        "5.22: a retry of a batch that is gone is answered",
        "participants/segment/offset_index.py",
        "        except (errors.PositionTrimmed, LeftOut):\n            self._segment.assert_serving()\n",
        "        except LeftOut:\n            self._segment.assert_serving()\n",
        tests=(f"{_TESTS}::test_a_retry_of_what_was_trimmed_is_answered",),
    ),
    Mutant(
        "retry-of-what-was-compacted-hangs",
        "5.22: a retry of a batch that is gone is answered",
        "participants/segment/offset_index.py",
        "        except (errors.PositionTrimmed, LeftOut):\n            self._segment.assert_serving()\n",
        "        except errors.PositionTrimmed:\n            self._segment.assert_serving()\n",
        tests=(f"{_TESTS}::test_a_retry_of_what_was_compacted_away_is_answered",),
    ),
)
