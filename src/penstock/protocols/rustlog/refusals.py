"""Refusals in RustLog's words: the code and text that deployed clients look for, and the text of the contract.

One table a dialect, by what was asked and what went wrong. What deployed brokers have no words for is told in the broker's own, behind
those that name the operation.
"""

from __future__ import annotations

from penstock.errors import OffsetOutOfRange, PartitionNotFound, PenstockError, TopicExists, TopicNotFound
from penstock.protocols.rustlog import binary_dialect, json_dialect
from penstock.protocols.rustlog.messages import (
    BadRequest,
    Call,
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Fetch,
    ListTopics,
    Metrics,
    OffsetCommit,
    OffsetFetch,
    Ping,
    ProduceRun,
)
from penstock.protocols.rustlog.wire import PARTITIONS_MAX, Code, Dialect

_INTERNAL_ERROR = "Internal server error: the server's log has the details"
_BINARY_OPENINGS: dict[type, tuple[Code, str]] = {
    ProduceRun: (Code.SERVER, "Failed to write record"),
    Fetch: (Code.FETCH, "Fetch failed"),
    OffsetCommit: (Code.OFFSET, "Offset commit failed"),
    OffsetFetch: (Code.OFFSET, "Offset fetch failed"),
    CreateTopic: (Code.SERVER, "Topic creation failed"),
    ListTopics: (Code.SERVER, "Failed to list topics"),
    DescribeTopic: (Code.DESCRIBE_TOPIC, "DescribeTopic failed"),
    DescribePartition: (Code.DESCRIBE_PARTITION, "DescribePartition failed"),
    Metrics: (Code.SERVER, "Metrics failed"),
    Ping: (Code.SERVER, "Ping failed"),
}


def internal_error(dialect: Dialect) -> bytes:
    return encode_error(dialect, Code.SERVER, _INTERNAL_ERROR)


def encode_error(dialect: Dialect, code: int, message: str) -> bytes:
    if dialect is Dialect.JSON:
        return json_dialect.encode_error(message)
    return binary_dialect.encode_error(code, message)


def refusal(request: ProduceRun | Call, error: PenstockError) -> bytes:
    """The ERROR frame for a request that was refused."""
    body = request if isinstance(request, ProduceRun) else request.body
    if request.dialect is Dialect.JSON:
        return json_dialect.encode_error(_json_text(body, error))
    return binary_dialect.encode_error(*_binary_words(body, error))


def malformed(call: Call, body: BadRequest) -> bytes:
    """The ERROR frame for a request that cannot be understood."""
    if call.dialect is Dialect.JSON:
        return json_dialect.encode_error(f"failed to parse request: {body.message}")
    return binary_dialect.encode_error(Code.DECODE, f"Decode error: {body.message}")


def _binary_words(body: object, error: PenstockError) -> tuple[int, str]:
    missing = isinstance(error, TopicNotFound | PartitionNotFound)
    if isinstance(body, ProduceRun | Fetch) and missing:
        return Code.NOT_FOUND, f"Topic or partition does not exist: topic={body.topic}, partition={body.partition}"
    if isinstance(body, CreateTopic) and isinstance(error, TopicExists):
        return Code.TOPIC_EXISTS, f"Topic '{body.topic}' already exists"
    if isinstance(body, CreateTopic) and not 1 <= body.partitions <= PARTITIONS_MAX:
        return Code.PARTITION_COUNT, f"Invalid partition count: {body.partitions}"
    if isinstance(body, DescribeTopic) and missing:
        return Code.DESCRIBE_TOPIC, f"DescribeTopic failed: Topic '{body.topic}' not found"
    if isinstance(body, DescribePartition) and missing:
        return (
            Code.DESCRIBE_PARTITION,
            f"DescribePartition failed: Partition {body.partition} not found in topic '{body.topic}'",
        )
    code, opening = _BINARY_OPENINGS[type(body)]
    return code, f"{opening}: {error}"


def _json_text(body: object, error: PenstockError) -> str:
    if isinstance(body, ProduceRun | Fetch | DescribePartition):
        if isinstance(error, TopicNotFound | PartitionNotFound):
            return f"partition not found: topic={body.topic}, partition={body.partition}"
        if isinstance(error, OffsetOutOfRange):
            return f"offset out of range: {error}"
        return error.message
    # The contract has no words for the others, which are no part of it.
    return _binary_words(body, error)[1]
