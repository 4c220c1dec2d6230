"""Refusals in RustLog's words: the code and text that deployed clients look for, and the text of the contract.

One table a dialect, by what was asked and what went wrong. What deployed brokers have no words for is told in the broker's own, behind
those that name the operation.
"""

from __future__ import annotations

from penstock.errors import OffsetOutOfRange, PartitionNotFound, PenstockError, TopicExists, TopicNotFound
from penstock.protocols.rustlog.codec import binary_dialect, json_dialect, messages
from penstock.protocols.rustlog.wire import PARTITIONS_MAX, Code, Dialect

_INTERNAL_ERROR = "Internal server error: the server's log has the details"
_BINARY_OPENINGS: dict[type, tuple[Code, str]] = {
    messages.ProduceRun: (Code.SERVER, "Failed to write record"),
    messages.Fetch: (Code.FETCH, "Fetch failed"),
    messages.OffsetCommit: (Code.OFFSET, "Offset commit failed"),
    messages.OffsetFetch: (Code.OFFSET, "Offset fetch failed"),
    messages.CreateTopic: (Code.SERVER, "Topic creation failed"),
    messages.ListTopics: (Code.SERVER, "Failed to list topics"),
    messages.DescribeTopic: (Code.DESCRIBE_TOPIC, "DescribeTopic failed"),
    messages.DescribePartition: (Code.DESCRIBE_PARTITION, "DescribePartition failed"),
    messages.Metrics: (Code.SERVER, "Metrics failed"),
    messages.Ping: (Code.SERVER, "Ping failed"),
}


def internal_error(dialect: Dialect) -> bytes:
    return encode_error(dialect, Code.SERVER, _INTERNAL_ERROR)


def encode_error(dialect: Dialect, code: int, message: str) -> bytes:
    if dialect is Dialect.JSON:
        return json_dialect.encode_error(message)
    return binary_dialect.encode_error(code, message)


def refusal(request: messages.ProduceRun | messages.Call, error: PenstockError) -> bytes:
    """The ERROR frame for a request that was refused."""
    body = request if isinstance(request, messages.ProduceRun) else request.body
    if request.dialect is Dialect.JSON:
        return json_dialect.encode_error(_json_text(body, error))
    return binary_dialect.encode_error(*_binary_words(body, error))


def malformed(call: messages.Call, body: messages.BadRequest) -> bytes:
    """The ERROR frame for a request that cannot be understood."""
    if call.dialect is Dialect.JSON:
        return json_dialect.encode_error(f"failed to parse request: {body.message}")
    return binary_dialect.encode_error(Code.DECODE, f"Decode error: {body.message}")


def _binary_words(body: object, error: PenstockError) -> tuple[int, str]:
    missing = isinstance(error, TopicNotFound | PartitionNotFound)
    if isinstance(body, messages.ProduceRun | messages.Fetch) and missing:
        return Code.NOT_FOUND, f"Topic or partition does not exist: topic={body.topic}, partition={body.partition}"
    if isinstance(body, messages.CreateTopic) and isinstance(error, TopicExists):
        return Code.TOPIC_EXISTS, f"Topic '{body.topic}' already exists"
    if isinstance(body, messages.CreateTopic) and not 1 <= body.partitions <= PARTITIONS_MAX:
        return Code.PARTITION_COUNT, f"Invalid partition count: {body.partitions}"
    if isinstance(body, messages.DescribeTopic) and missing:
        return Code.DESCRIBE_TOPIC, f"DescribeTopic failed: Topic '{body.topic}' not found"
    if isinstance(body, messages.DescribePartition) and missing:
        return (
            Code.DESCRIBE_PARTITION,
            f"DescribePartition failed: Partition {body.partition} not found in topic '{body.topic}'",
        )
    code, opening = _BINARY_OPENINGS[type(body)]
    return code, f"{opening}: {error}"


def _json_text(body: object, error: PenstockError) -> str:
    if isinstance(body, messages.ProduceRun | messages.Fetch | messages.DescribePartition):
        if isinstance(error, TopicNotFound | PartitionNotFound):
            return f"partition not found: topic={body.topic}, partition={body.partition}"
        if isinstance(error, OffsetOutOfRange):
            return f"offset out of range: {error}"
        return error.message
    # The contract has no words for the others, which are no part of it.
    return _binary_words(body, error)[1]
