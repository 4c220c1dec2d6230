"""The options of the source, without Spark and without a broker."""

from __future__ import annotations

import pickle

import pytest

from penstock.errors import InvalidRequest
from penstock.spark.connection import BOOTSTRAP_DEFAULT, ConnectionSettings, connection_settings
from penstock.spark.offsets import EARLIEST, LATEST
from penstock.spark.options import SourceOptions, Subscription, parse_source_options


def batch(**options: str) -> SourceOptions:
    return parse_source_options({"subscribe": "orders", **options}, streaming=False)


def stream(**options: str) -> SourceOptions:
    return parse_source_options({"subscribe": "orders", **options}, streaming=True)


def refusal(options: dict[str, str], *, streaming: bool = False) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse_source_options(options, streaming=streaming)
    return caught.value.message


# -- what is read -------------------------------------------------------------------------------------------------------------


def test_topics_are_named_with_commas_between_them() -> None:
    options = parse_source_options({"subscribe": " orders, payments ,orders"}, streaming=False)
    assert options.subscription == Subscription(("orders", "payments"))


def test_topics_are_found_by_a_pattern() -> None:
    options = parse_source_options({"subscribePattern": "orders-.*"}, streaming=True)
    assert options.subscription == Subscription(pattern="orders-.*")


def test_partitions_are_assigned() -> None:
    options = parse_source_options({"assign": '{"payments":[2,0],"orders":[1]}'}, streaming=False)
    assert options.subscription.topics == ("orders", "payments")
    assert options.subscription.partitions == {"orders": (1,), "payments": (0, 2)}


def test_option_names_have_any_case() -> None:
    options = parse_source_options(
        {"SUBSCRIBE": "orders", "includeheaders": "TRUE", "MinPartitions": "7"}, streaming=False
    )
    assert options.include_headers
    assert options.tasks_min == 7


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, "none is set"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "subscribe and assign are set"),
        ({"subscribe": " , "}, "option subscribe is empty"),
        ({"subscribePattern": "("}, "is not a regular expression"),
        ({"subscribePattern": " "}, "option subscribePattern is empty"),
        ({"assign": "orders"}, 'write JSON, as in {"orders":[0,1]}'),
        ({"assign": '["orders"]'}, 'write JSON, as in {"orders":[0,1]}'),
        ({"assign": '{"orders":0}'}, "must be a list of numbers"),
        ({"assign": '{"orders":[true]}'}, "must be a list of numbers"),
        ({"assign": '{"orders":[-1]}'}, "must be a list of numbers"),
        ({"assign": '{"orders":[]}'}, "must be a list of numbers"),
        ({"assign": "{}"}, "names no topic"),
    ],
)
def test_exactly_one_way_of_naming_topics_is_needed_and_it_must_make_sense(options: dict[str, str], found: str) -> None:
    assert found in refusal(options)


# -- where it begins and ends -------------------------------------------------------------------------------------------------


def test_a_batch_is_everything_and_a_stream_begins_now_unless_told_otherwise() -> None:
    assert (batch().starting.edge, batch().ending.edge) == (EARLIEST, LATEST)
    assert stream().starting.edge == LATEST
    assert stream(startingOffsets="earliest").starting.edge == EARLIEST
    assert stream(startingOffsets=" LATEST ").starting.edge == LATEST


def test_offsets_are_json_as_kafkas() -> None:
    options = batch(startingOffsets='{"orders":{"0":23,"1":-2}}', endingOffsets='{"orders":{"0":50,"1":-1}}')
    assert options.starting.offsets == {"orders": {0: 23, 1: EARLIEST}}
    assert options.ending.offsets == {"orders": {0: 50, 1: LATEST}}
    assert stream(startingOffsets='{"orders":{"0":-1}}').starting.offsets == {"orders": {0: LATEST}}


def test_the_offset_of_a_stream_can_be_given_as_it_is_in_the_checkpoint() -> None:
    more = '"__ids__":{"orders":"ab"},"__from__":{"orders":{"0":1}},"__epochs__":{"orders":{"0":2}}'
    place = batch(startingOffsets=f'{{{more},"orders":{{"0":9}}}}').starting
    assert place.offsets == {"orders": {0: 9}}
    assert place.ids == {"orders": "ab"}
    assert place.epochs == {"orders": {0: 2}}


@pytest.mark.parametrize("epochs", ["1", '{"orders":1}', '{"orders":{"0":"x"}}', '{"orders":{"x":1}}'])
def test_log_epochs_that_are_none_are_refused(epochs: str) -> None:
    with pytest.raises(InvalidRequest, match="option startingOffsets: its log epochs are not those of a stream"):
        batch(startingOffsets=f'{{"__epochs__":{epochs},"orders":{{"0":9}}}}')


def test_the_more_exact_option_wins() -> None:
    options = batch(
        startingOffsets='{"orders":{"0":1}}',
        startingOffsetsByTimestamp='{"orders":{"0":2000}}',
        endingOffsets='{"orders":{"0":1}}',
        endingOffsetsByTimestamp='{"orders":{"0":3000}}',
        endingTimestamp="4000",
    )
    assert options.starting.timestamps_ms == {"orders": {0: 2000}}
    assert options.starting.offsets is None
    assert options.ending.timestamp_ms == 4000
    assert batch(startingTimestamp="0").starting.timestamp_ms == 0
    assert batch(startingTimestamp="1", startingOffsetsByTimestampStrategy="latest").no_match == "latest"
    assert batch().no_match == "error"


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("startingOffsets", "latest", "cannot be latest in a batch"),
        ("startingOffsets", "soon", 'use earliest or JSON, as in {"orders":{"0":23,"1":-1}}'),
        ("startingOffsets", '{"orders":{"0":-1}}', "-1 (latest) has no meaning there"),
        ("startingOffsets", '{"orders":{"0":-3}}', "is not a number for orders-0"),
        ("startingOffsets", '{"orders":{"0":1.5}}', "is not a number for orders-0"),
        ("startingOffsets", '{"orders":{"zero":1}}', "'zero' is not a partition"),
        ("startingOffsets", '{"orders":{}}', "has no partitions"),
        ("startingOffsets", '{"orders":5}', "has no partitions"),
        ("startingOffsets", "{}", "names no topic"),
        ("startingOffsets", "[1]", "option startingOffsets is '[1]'"),
        ("endingOffsets", "earliest", "cannot be earliest"),
        ("endingOffsets", '{"orders":{"0":-2}}', "-2 (earliest) has no meaning there"),
        ("startingOffsetsByTimestamp", '{"orders":{"0":-1}}', "is not a number for orders-0"),
        ("startingOffsetsByTimestamp", "yesterday", "write JSON of milliseconds since 1970"),
        ("startingTimestamp", "yesterday", "option startingTimestamp is 'yesterday': use a whole number"),
        ("startingTimestamp", "-1", "use 0 or more"),
        ("startingOffsetsByTimestampStrategy", "guess", "use error or latest"),
        ("minPartitions", "0", "option minPartitions is 0: use 1 or more"),
        ("maxRecordsPerPartition", "many", "use a whole number"),
        ("maxBytesPerPartition", "1 parsec", "option maxBytesPerPartition: '1 parsec' is not a size"),
        ("maxBytesPerPartition", "0", "must be more than 0"),
        ("includeHeaders", "yes", "option includeHeaders is 'yes': use true or false"),
        ("failOnDataLoss", "1", "use true or false"),
    ],
)
def test_values_that_make_no_sense_are_named(name: str, value: str, found: str) -> None:
    assert found in refusal({"subscribe": "orders", name: value})


# -- streams ------------------------------------------------------------------------------------------------------------------


def test_limits_of_a_stream() -> None:
    options = stream(
        maxOffsetsPerTrigger="1000", minOffsetsPerTrigger="10", maxTriggerDelay="30s", maxBytesPerTrigger="64 MiB"
    )
    assert (options.offsets_per_trigger_max, options.offsets_per_trigger_min) == (1000, 10)
    assert (options.trigger_delay_ms_max, options.bytes_per_trigger_max) == (30_000, 64 << 20)
    assert stream().trigger_delay_ms_max == 15 * 60_000
    assert stream(pollWaitMs="0").poll_wait_ms == 0


def test_the_least_must_not_be_above_the_most() -> None:
    options = {"subscribe": "orders", "minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"}
    assert "minOffsetsPerTrigger is 11 and maxOffsetsPerTrigger 10" in refusal(options, streaming=True)


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    found = refusal({"subscribe": "orders", name: "latest"}, streaming=True)
    assert found == f"option {name}: belongs to a batch query, and this is a stream: remove it"


@pytest.mark.parametrize(
    "name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger", "pollWaitMs"]
)
def test_a_batch_has_no_triggers(name: str) -> None:
    found = refusal({"subscribe": "orders", name: "5"})
    assert found == f"option {name}: belongs to a stream query, and this is a batch: remove it"


def test_long_polls_are_short() -> None:
    assert "at most 500" in refusal({"subscribe": "orders", "pollWaitMs": "501"}, streaming=True)


def test_the_group_is_named_after_what_is_read_unless_told_otherwise() -> None:
    assert stream().group == "spark-orders"
    assert stream(groupIdPrefix="team").group == "team-orders"
    assert stream(group="billing", groupIdPrefix="team").group == "billing"
    assert stream(group="").group is None
    assert parse_source_options({"subscribe": "b,a"}, streaming=True).group == "spark-a+b"
    assert len((parse_source_options({"subscribePattern": "ü" * 500}, streaming=True).group or "").encode()) <= 200


# -- names that are not known ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("subscribes", "option subscribes is not known: did you mean subscribe?"),
        ("startingOfsets", "did you mean startingOffsets?"),
        ("minPartition", "did you mean minPartitions?"),
        ("parallelism", "known are assign, "),
        ("penstock.bootstap", "did you mean penstock.bootstrap?"),
        ("xyz", "known are assign, "),
        ("path", "topics are not paths"),
        ("kafka.bootstrap.servers", "set penstock.bootstrap to the host:port of this broker's FlyMQ listener instead"),
        ("kafka.group.id", "set the option group instead"),
        ("kafka.security.protocol", "belongs to Spark's Kafka connector and has no meaning here: remove it"),
        ("kafkaConsumer.pollTimeoutMs", "has no meaning here"),
        ("fetchOffset.numRetries", "has no meaning here"),
        ("fetchOffset.retryIntervalMs", "has no meaning here"),
        ("partition.metadata.cache.ttl.ms", "has no meaning here"),
    ],
)
def test_names_that_are_not_known_are_refused_with_a_hint(name: str, found: str) -> None:
    assert found in refusal({"subscribe": "orders", name: "1"})


def test_a_table_that_is_written_too_has_the_options_of_both_and_one_that_is_not_says_what_to_read() -> None:
    options = {"subscribe": "orders", "topic": "orders", "txnAppId": "job", "txnVersion": "1"}
    assert parse_source_options(options, streaming=False).subscription.topics == ("orders",)
    assert "option topic: is an option of writing; to read, set the option subscribe" in refusal({"topic": "orders"})


# -- which broker ---------------------------------------------------------------------------------------------------------------


def test_the_broker_is_the_one_on_this_machine_unless_told_otherwise() -> None:
    assert connection_settings({}).url == f"flymq://{BOOTSTRAP_DEFAULT}"
    assert connection_settings({"penstock.bootstrap": "broker.example:9999"}).url == "flymq://broker.example:9999"
    assert connection_settings({"penstock.bootstrap": "broker.example"}).url == "flymq://broker.example:9092"
    assert connection_settings({"penstock.bootstrap": "[::1]:9092"}).url == "flymq://[::1]:9092"


def test_credentials_and_tls() -> None:
    settings = connection_settings(
        {
            "penstock.bootstrap": "broker.example:9092",
            "Penstock.User": "ann",
            "penstock.password": "p@ss:/word",
            "penstock.tls.ca": "/etc/ca.pem",
        }
    )
    assert settings.url == "flymqs://ann:p%40ss%3A%2Fword@broker.example:9092?ca=%2Fetc%2Fca.pem"
    assert "p@ss" not in repr(settings)
    assert connection_settings({"penstock.tls": "true"}).url == f"flymqs://{BOOTSTRAP_DEFAULT}"


def test_several_nodes_may_be_named() -> None:
    nodes = connection_settings({"penstock.bootstrap": "a.example:9999, b.example,[::1]"})
    assert nodes.url == "flymq://a.example:9999,b.example:9092,[::1]:9092"
    assert connection_settings({"penstock.bootstrap": "flymq://a.example:9999,b.example,[::1]:9092"}) == nodes
    for address in ("a,b?hosts=in-order", "flymq://a,b?hosts=in-order"):
        ordered = connection_settings({"penstock.bootstrap": address, "penstock.tls.ca": "ca.pem"})
        assert ordered.url == "flymqs://a:9092,b:9092?ca=ca.pem&hosts=in-order"
    secured = connection_settings({"penstock.bootstrap": "a,b", "penstock.user": "ann", "penstock.password": "a,b"})
    assert secured.url == "flymq://ann:a%2Cb@a:9092,b:9092"


def test_an_address_may_be_a_url() -> None:
    settings = connection_settings({"penstock.bootstrap": "flymqs://broker.example:9092"})
    assert settings == ConnectionSettings("broker.example:9092", tls=True)


@pytest.mark.parametrize(
    "address", ["flymq://ann:s3cret@broker:9092", "ann:s3cret@broker:9092", "flymq://ann@broker:9092"]
)
def test_an_address_with_credentials_is_refused_without_repeating_them(address: str) -> None:
    with pytest.raises(InvalidRequest, match=r"set penstock\.user and penstock\.password") as refused:
        connection_settings({"penstock.bootstrap": address})
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"penstock.bootstrap": "a:1,,b:2"}, "has a comma without a host next to it"),
        ({"penstock.bootstrap": "blipmq://a:1"}, "write the address of the FlyMQ listener"),
        ({"penstock.bootstrap": "a:port"}, "is not a broker address"),
        ({"penstock.user": "ann"}, "belong together"),
        ({"penstock.password": "x"}, "belong together"),
        ({"penstock.tls": "maybe"}, "use true or false"),
    ],
)
def test_addresses_and_credentials_that_make_no_sense_are_refused(options: dict[str, str], found: str) -> None:
    with pytest.raises(InvalidRequest, match=found):
        connection_settings(options)


def test_options_travel_to_the_workers() -> None:
    options = batch(startingOffsets='{"orders":{"0":1}}')
    assert pickle.loads(pickle.dumps(options)) == options
