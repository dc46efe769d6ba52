"""Messages in batches: what a broker checks of them, and who gets them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ROUTES = "participants/api/routes.py"
_WIRE = "metatxn/wire/batches.py"
_SYNC_PRODUCER = "metatxn/sync/producer.py"
_TEST = "tests/participants/api/test_batches.py"
_TEST_WIRE = "tests/metatxn/test_batches.py"

_RECORDS = "metatxn/wire/record_batches.py"
_TEST_RECORDS = "tests/metatxn/test_record_batches.py"

BATCHES = (
    Mutant(
        "flat-floats",
        "numbers that JSON cannot hold are refused before they are sent",
        _WIRE,
        "frozenset((str, int, bool, NoneType))",
        "frozenset((str, int, float, bool, NoneType))",
        tests=("tests/metatxn/test_batches.py",),
    ),
    Mutant(
        "sent-late-use-not-told",
        "a future that is first used when its message is durable has the position",
        _SYNC_PRODUCER,
        "        if first and outcome is not None:\n",
        "        if first and outcome is None:\n",
        tests=("tests/metatxn/test_sent.py",),
    ),
    Mutant(
        "sent-early-use-not-told",
        "a future that is in use when its message becomes durable is told",
        _SYNC_PRODUCER,
        "            self._outcome = result\n            made = self._made\n",
        "            self._outcome = result\n            made = False\n",
        tests=("tests/metatxn/test_sent.py",),
    ),
    Mutant(
        "compressed-although-that-is-larger",
        "what compression does not make smaller is sent as it is",
        _RECORDS,
        "if codec is not None and len(compressed := _compressed(body, codec)) < len(body):",
        "if codec is not None and (compressed := _compressed(body, codec)):",
        tests=("tests/metatxn/test_compression.py::test_what_would_become_larger_stays_as_it_is",),
    ),
    Mutant(
        "compression-of-a-sequenced-producer-forgotten",
        "a producer compresses as it was told, also one that numbers its messages",
        "metatxn/sequenced.py",
        "        super().__init__(compression)\n",
        "        super().__init__()\n",
        tests=("tests/metatxn/test_compression.py",),
    ),
    Mutant(
        "page-bounded-by-what-is-compressed",
        "11: a page has a bound for what its readers decompress",
        "participants/messages/payloads.py",
        "            return len(frame.data) - frame.size + record_batches.unpacked_batch_bytes(frame.payload)\n",
        "            return len(frame.data)\n",
        tests=("tests/participants/api/test_pages.py::test_a_page_has_a_bound_for_what_is_decompressed",),
    ),
    Mutant(
        "consumer-gets-all-that-is-compressed",
        "11: what a consumer gets at once has a bound for what is decompressed",
        "participants/subscription/taking.py",
        "    return read_bytes(frame) // message_count(frame)\n",
        "    return len(frame.data) // message_count(frame)\n",
        tests=("tests/participants/api/test_pages.py::test_a_page_has_a_bound_for_what_is_decompressed",),
    ),
    Mutant(
        "page-in-json-goes-on-behind-what-it-left-out",
        "a page that ends early goes on where it ended",
        _ROUTES,
        "frames=page.frames[:number], next=page.frames[number - 1].position, end=False",
        "frames=page.frames[:number]",
        tests=("tests/participants/api/test_pages.py::test_a_page_has_a_bound_for_what_is_decompressed",),
    ),
    Mutant(
        "compressed-records-without-a-bound",
        "11: compressed records are not decompressed beyond their bound",
        _RECORDS,
        "        unpacked = stream.read(MAX_RECORDS_BYTES + 1)\n",
        "        unpacked = stream.read()\n",
        tests=(f"{_TEST_RECORDS}::test_a_batch_that_becomes_too_large_is_not_decompressed_to_its_end",),
    ),
    Mutant(
        "headers-of-each-record-alone",
        "11: the headers of a batch have a bound together",
        _RECORDS,
        "            most_headers -= len(some)\n",
        "",
        tests=(f"{_TEST_RECORDS}::test_the_headers_of_a_batch_have_a_bound_together",),
    ),
    Mutant(
        "json-as-long-as-it-becomes",
        "11: JSON of a batch that is longer than an entry is left as bytes",
        _WIRE,
        "    if sum(map(len, texts)) > MAX_JSON_BYTES:\n",
        "    if False:\n",
        tests=(f"{_TEST_RECORDS}::test_json_that_is_too_long_is_left_as_bytes",),
    ),
    Mutant(
        "batch-damaged-on-its-way",
        "a batch is accepted only if it matches its checksum",
        "participants/messages/batches.py",
        "    if not checksum_fits(payload):\n",
        "    if checksum_fits(payload) is None:\n",
        tests=(f"{_TEST}::test_what_is_no_batch_is_refused_and_changes_nothing",),
    ),
    Mutant(
        "batch-beside-the-columns",
        "messages of a topic with columns have to fit, in a batch, too",
        "participants/messages/schema_versions.py",
        "        _check_values_fit(topic, topic.arrow_schema, list(unpack_batch(payload, count).values))\n",
        "        pass\n",
        tests=(f"{_TEST}::test_messages_of_a_topic_with_columns_have_to_fit",),
    ),
    Mutant(
        "batch-for-those-who-did-not-ask",
        "a reader that did not ask for batches gets JSON",
        _ROUTES,
        "    frames = page.frames if batches else list(map(with_json, page.frames))\n",
        "    frames = page.frames\n",
        tests=(f"{_TEST}::test_a_batch_is_stored_as_it_came_and_read_by_everybody",),
    ),
    Mutant(
        "hashes-of-a-batch-unknown",
        "5.13: of a batch that is sent again, the part that is there is not appended again",
        "participants/api/append_routes.py",
        "        keys: Sequence[str | None] = unpack_batch(sent.payload, sent.count).keys\n",
        "        return None\n",
        tests=("tests/participants/broker/test_retries.py",),
    ),
    Mutant(
        "kafka-is-not-told-what-is-json",
        "a value that is JSON has the header that says so, for Kafka's clients",
        "participants/messages/batches.py",
        "(*named, is_json) if flag & JSON and value is not None else named",
        "named",
        tests=(f"{_TEST}::test_kafka_s_clients_are_told_what_is_json",),
    ),
    Mutant(
        "deletions-in-batches-unseen",
        "5.19: a message without a value deletes its key, in a batch, too",
        "participants/messages/payloads.py",
        'yield [(index, key, value is None or value == b"") for',
        "yield [(index, key, False) for",
        tests=(f"{_TEST}::test_the_latest_value_of_each_key_is_found_in_batches",),
    ),
    Mutant(
        "page-repeats-what-was-taken",
        "a reader that has taken a part of an entry gets the rest of it",
        "participants/api/page_routes.py",
        "skip=skip))",
        "skip=0))",
        tests=("tests/participants/api/test_pages.py",),
    ),
    Mutant(
        "page-cuts-an-entry",
        "a page has whole entries",
        "participants/topic/messages.py",
        "                    if limit is None and fitting < len(left):\n",
        "                    if limit is None and not left:\n",
        tests=("tests/participants/api/test_pages.py",),
    ),
    Mutant(
        "page-says-there-is-no-more",
        "a page that ended for its size says that there is more",
        "participants/topic/messages.py",
        "                        return found, True, reached\n",
        "                        return found, False, reached\n",
        tests=("tests/participants/api/test_pages.py",),
    ),
    Mutant(
        "frames-behind-the-last-part",
        "the frames of a page are as long as its head says",
        "metatxn/wire/pages.py",
        "    if len(frames) != sum(part.bytes for part in head.parts):\n",
        "    if len(frames) < 0:\n",
        tests=("tests/participants/api/test_pages.py",),
    ),
    Mutant(
        "values-shifted-by-one-that-is-no-json",
        "a value that is wrongly called JSON does not change its neighbours",
        _WIRE,
        "        if len(parsed) == len(texts):\n            return parsed\n",
        "        return (parsed + [None] * len(texts))[: len(texts)]\n",
        tests=(f"{_TEST_WIRE}::test_a_text_of_several_values_does_not_move_those_behind_it",),
    ),
    Mutant(
        "batch-with-another-number-of-messages",
        "an entry has as many messages as it counts, whatever its batch holds",
        _RECORDS,
        "    if count not in (None, records):\n",
        "    if count == -1:\n",
        tests=(f"{_TEST_WIRE}::test_a_batch_that_cannot_be_read_has_as_many_messages_as_it_counts",),
    ),
)
