from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import errors
from penstock.errors import (
    NotSupported,
    OffsetOutOfRange,
    PartitionNotFound,
    PenstockError,
    ProtocolViolation,
    ServerError,
    TopicNotFound,
)
from penstock.protocols.flymq.client.once import NotIdempotent
from penstock.protocols.flymq.errors import OPENINGS, error_for, error_text

NEVER_ANSWERED = {
    errors.BatchFailed,  # made by clients
    NotIdempotent,
    errors.ConnectionLost,
    errors.RequestTimeout,
    errors.ServerError,
    errors.Unreachable,
    errors.DataLoss,  # found by who reads
    errors.ConfigError,  # keep a broker from starting, or a Spark session
    errors.JavaMissing,
    errors.DataDirectoryInUse,
    errors.PipelineRunning,  # told by the admin API
    errors.UnsupportedFormat,
}


def every_error(base: type[PenstockError] = PenstockError) -> Iterator[type[PenstockError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from every_error(kind)


def test_every_error_a_broker_can_answer_with_has_an_opening() -> None:
    assert set(OPENINGS) == set(every_error()) - NEVER_ANSWERED


@pytest.mark.parametrize("kind", OPENINGS, ids=lambda kind: kind.__name__)
def test_an_error_keeps_its_class_and_its_message_across_the_wire(kind: type[PenstockError]) -> None:
    message = "something happened to orders: do something about it"
    text = error_text(kind(message))
    assert type(error_for(text)) is kind
    assert text.endswith(message)


@pytest.mark.parametrize("kind", OPENINGS, ids=lambda kind: kind.__name__)
def test_no_opening_is_taken_for_that_of_another_class(kind: type[PenstockError]) -> None:
    words = OPENINGS[kind].words
    assert [other for other, opening in OPENINGS.items() if opening.own.match(words)] == [kind]


def test_a_message_that_opens_with_its_own_words_stays_as_it_is() -> None:
    assert error_text(TopicNotFound("topic not found: orders")) == "topic not found: orders"
    assert error_text(PartitionNotFound("partition 7 out of range")) == "partition 7 out of range"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("partition -1 not found: t has partitions 0 to 2", PartitionNotFound),
        ("EOF: no record at offset 4", OffsetOutOfRange),
        ("unknown opcode: 200", NotSupported),
        ("TXN_BEGIN (opcode 0x40) is not available in this version of Penstock", NotSupported),
        ("buffer too small: topic needs 4 bytes, 1 are left", ProtocolViolation),
        ("gzip: invalid header", ProtocolViolation),
        ("internal error: the server's log has the details", ServerError),
        ("something nobody foresaw", ServerError),
        ("", ServerError),
    ],
)
def test_texts_of_deployed_brokers_find_their_class(text: str, kind: type[PenstockError]) -> None:
    error = error_for(text)
    assert type(error) is kind
    assert error.message == text
