"""Goal: a wrong option is one clear line that lists the valid ones. Method: the parser alone, without Spark."""

from __future__ import annotations

import pickle

import pytest

from spark_connector import clients
from spark_connector.options import (
    OptionError,
    check_option_values,
    direction_of,
    own_options,
    read_options,
    write_options,
)

URL = {"url": "http://127.0.0.1:8470"}


def test_write_options_in_any_case() -> None:
    given = {"URL": "http://h:1/", "TOPIC": "t", "keycolumn": "k", "TransactionTimeoutMs": "5"}
    options = write_options(given, "batch")
    assert (options.service.url, options.topic, options.key_column, options.timeout_ms) == ("http://h:1", "t", "k", 5)


def test_the_token_comes_from_the_environment_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METATXN_TOKEN", "secret")
    assert write_options(URL, "batch").service.token == "secret"
    assert write_options({**URL, "token": "other"}, "batch").service.token == "other"


def test_the_listener_is_named_to_the_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the client of every machine: the address goes to the tasks as it is."""
    named: list[str | None] = []
    monkeypatch.setattr("metatxn.connect", lambda url, *, listener, **_: named.append(listener))
    here = {**URL, "listener": "external"}
    for service in (
        write_options(here, "batch").service,
        read_options({**here, "subscribe": "t"}, "streaming").service,
        write_options(URL, "batch").service,
    ):
        clients._client.__wrapped__(1, pickle.loads(pickle.dumps(service)))
    assert named == ["external", "external", None]


def test_spark_adds_options_of_its_own_to_a_streaming_query() -> None:
    assert write_options({**URL, "checkpointlocation": "/c", "queryname": "q"}, "streaming").service.url == URL["url"]


def test_a_batch_write_has_no_checkpoint() -> None:
    with pytest.raises(OptionError, match="Unknown option checkpointlocation"):
        write_options({**URL, "checkpointLocation": "/c"}, "batch")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "Missing option url"),
        ({"url": "localhost:8470"}, "Option url='localhost:8470' must look like http://host:port"),
        ({**URL, "topics": "t"}, "Unknown option topics"),
        ({**URL, "path": "/x"}, "Unknown option path"),
        ({**URL, "topic": " "}, "Option topic is empty"),
        ({**URL, "subscribe": "t"}, "Option subscribe is a read option, and this is a write"),
        ({**URL, "ackSubscription": "s"}, "Option ackSubscription contradicts a batch write"),
        ({**URL, "ca": "/no/such.pem"}, "Option ca='/no/such.pem' is not a file"),
        ({**URL, "txnId": "7"}, "Option txnId='7' must be a transaction id of 32 hexadecimal digits"),
        ({**URL, "txnAppId": "a"}, "Option txnAppId contradicts a batch write"),
        ({**URL, "compression": "gzip"}, "Option compression='gzip' must be one of none, lz4, zstd"),
        ({**URL, "transactionTimeoutMs": "1s"}, "Option transactionTimeoutMs='1s' must be milliseconds"),
        ({**URL, "transactionTimeoutMs": "0"}, "must be milliseconds, 1 to 86400000"),
        ({**URL, "txnId": "0" * 32, "transactionTimeoutMs": "5"}, "Option transactionTimeoutMs contradicts"),
    ],
)
def test_a_wrong_write_option_is_named(given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as raised:
        write_options(given, "batch")
    assert problem in str(raised.value)
    assert "valid write options are url, topic, keyColumn, txnAppId" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({**URL, "txnId": "0" * 32}, "Option txnId contradicts a streaming write"),
        ({**URL, "txnAppId": "a&b"}, "no '&'"),
        ({**URL, "txnAppId": "x" * 513}, "at most 512 characters"),
        ({**URL, "ackSubscription": "s"}, "Option ackSubscription needs option checkpointLocation"),
    ],
)
def test_a_wrong_option_of_a_streaming_write_is_named(given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        write_options(given, "streaming")


@pytest.mark.parametrize(("given", "codec"), [("none", None), ("LZ4", "lz4"), ("zstd", "zstd")])
def test_how_a_write_is_compressed(given: str, codec: str | None) -> None:
    assert write_options({**URL, "compression": given}, "batch").compression == codec


def test_read_options() -> None:
    options = read_options(
        {**URL, "subscribe": "a, b,a", "isolation": "SNAPSHOT", "revision": "7", "includeMetadata": "true"}, "batch"
    )
    assert (options.topics, options.isolation, options.revision) == (("a", "b"), "snapshot", 7)
    assert options.include_metadata
    assert read_options({**URL, "subscribePattern": "or.*", "startingOffsets": "earliest"}, "batch").pattern == "or.*"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (URL, "Missing option subscribe"),
        ({"subscribe": "a"}, "Missing option url"),
        ({**URL, "subscribe": "a,,b"}, "must be topic names separated by commas"),
        ({**URL, "subscribe": "a", "subscribePattern": "b"}, "subscribe and subscribePattern contradict each other"),
        ({**URL, "subscribePattern": "("}, "must be a regular expression"),
        ({**URL, "subscribe": "a", "isolation": "serializable"}, "must be one of read_committed, read_uncommitted"),
        ({**URL, "subscribe": "a", "revision": "3"}, "Option revision needs isolation=snapshot, not read_committed"),
        ({**URL, "subscribe": "a", "isolation": "snapshot", "revision": "-1"}, "must be a store revision"),
        ({**URL, "subscribe": "a", "startingOffsets": "latest"}, "Option startingOffsets=latest contradicts a batch"),
        ({**URL, "subscribe": "a", "startingOffsets": "first"}, "must be earliest, latest, or JSON such as"),
        ({**URL, "subscribe": "a", "startingOffsets": '{"a": "1:2"}'}, "has '1:2' for 'a'; it must be JSON such as"),
        ({**URL, "subscribe": "a", "startingOffsets": '{"segment://x": 7}'}, "has 7 for 'segment://x'"),
        ({**URL, "subscribe": "a", "endingOffsets": "earliest"}, "Option endingOffsets=earliest leaves nothing"),
        (
            {**URL, "subscribe": "a", "isolation": "snapshot", "endingOffsets": '{"a": "latest"}'},
            "Option endingOffsets contradicts isolation=snapshot",
        ),
        ({**URL, "subscribe": "a", "startingTimestamp": "noon"}, "must be a time such as 2026-11-22T10:00:00Z"),
        ({**URL, "subscribe": "a", "startingTimestamp": "2026-11-22T10:00:00"}, "must be a time such as"),
        ({**URL, "subscribe": "a", "startingTimestamp": "1", "startingOffsets": "earliest"}, "contradict each other"),
        (
            {**URL, "subscribe": "a", "isolation": "snapshot", "endingTimestamp": "1"},
            "Option endingTimestamp contradicts isolation=snapshot",
        ),
        ({**URL, "subscribe": "a", "failOnDataLoss": "maybe"}, "must be true or false"),
        ({**URL, "subscribe": "a", "maxOffsetsPerTrigger": "5"}, "Option maxOffsetsPerTrigger contradicts a batch"),
        ({**URL, "subscribe": "a", "pushFilters": "true"}, "Option pushFilters needs includeMetadata=true"),
        ({**URL, "subscribe": "a", "includeMetadata": "yes"}, "must be true or false"),
        ({**URL, "topic": "a"}, "Option topic is a write option, and this is a read"),
    ],
)
def test_a_wrong_read_option_is_named(given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as raised:
        read_options(given, "batch")
    assert problem in str(raised.value)
    assert "valid read options are url, subscribe, subscribePattern" in str(raised.value)


def test_options_of_a_streaming_read() -> None:
    given = {**URL, "subscribe": "a", "startingOffsets": '{"a": "latest", "segment://x/0000-ffff-0": "3:-1"}'}
    options = read_options({**given, "maxOffsetsPerTrigger": "7", "failOnDataLoss": "False"}, "streaming")
    assert options.starting == {"a": "latest", "segment://x/0000-ffff-0": "3:-1"}
    assert (options.max_rows, options.fail_on_data_loss) == (7, False)
    default = read_options({**URL, "subscribe": "a"}, "streaming")
    assert (default.starting, default.max_rows, default.fail_on_data_loss) == ("earliest", None, True)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"endingOffsets": "latest"}, "Option endingOffsets contradicts a streaming read: a streaming read has no end"),
        ({"isolation": "snapshot"}, "Option isolation=snapshot contradicts a streaming read"),
        ({"isolation": "snapshot", "revision": "3"}, "Option revision contradicts a streaming read"),
        ({"pushFilters": "true", "includeMetadata": "true"}, "Option pushFilters contradicts a streaming read"),
        ({"maxOffsetsPerTrigger": "0"}, "must be a number of rows, at least 1"),
    ],
)
def test_a_wrong_option_of_a_streaming_read_is_named(given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        read_options({**URL, "subscribe": "a", **given}, "streaming")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"colour": "red", "topic": "t"}, "Unknown option colour; valid write options are url, topic"),
        ({"colour": "red", "subscribe": "t"}, "Unknown option colour; valid read options are url, subscribe"),
        ({"colour": "red", **URL}, "Unknown option colour; valid write options are .*; valid read options are url"),
        ({"keyColumn": "k", "transactionTimeoutMs": "soon"}, "Option transactionTimeoutMs='soon' must be milliseconds"),
        ({"maxOffsetsPerTrigger": "many"}, "Option maxOffsetsPerTrigger='many' must be a number of rows"),
        ({"url": "here"}, "Option url='here' must look like"),
    ],
)
def test_what_options_alone_tell_is_told_before_anything_starts(given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        check_option_values(given)
    check_option_values({"provider": "metatxn", "owner": "me", **URL, "option.url": "u"})
    check_option_values({**URL, "topic": "t", "checkpointLocation": "/c", "queryName": "q"})
    check_option_values({**URL, "topic": "t", "subscribe": "s"})  # a table refuses this in its own words


def test_what_spark_adds_to_the_options_of_a_table_is_dropped() -> None:
    given = {"provider": "metatxn", "owner": "me", "url": "u", "option.url": "u", "topic": "t", "option.topic": "t"}
    assert own_options(given) == {"url": "u", "topic": "t"}
    assert own_options({"Owner": "me"}) == {"owner": "me"}


def test_a_table_is_for_one_direction() -> None:
    assert direction_of({"Topic": "t"}) == "write"
    assert direction_of({"subscribePattern": "t"}) == "read"
    with pytest.raises(OptionError, match="contradict each other: make one table or view for each direction"):
        direction_of({"topic": "t", "subscribe": "t"})
