"""Every error that Penstock raises on purpose, in one tree.

Each class has a stable `code` for programs, says whether a retry can succeed (`retriable`), and carries a message that names what is
wrong and what to do. Sessions encode these errors in the form of their protocol, and clients decode them to the same classes.
docs/reference/errors.md is generated from the docstrings.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar


class PenstockError(Exception):
    """The base of all errors below."""

    code: ClassVar[str] = "error"
    retriable: bool = False

    @property
    def message(self) -> str:
        return str(self)


class ProtocolViolation(PenstockError):
    """The peer violated its protocol. The connection is usually closed."""

    code = "protocol_violation"


class InvalidRequest(PenstockError):
    """A well-formed request has an invalid argument. The message says what to change."""

    code = "invalid_request"


class InvalidTopicName(InvalidRequest):
    """The name of a topic is not valid. The message says why."""

    code = "invalid_topic_name"


class NotSupported(PenstockError):
    """The protocol has this operation, but the broker does not implement it."""

    code = "not_supported"


class TopicNotFound(PenstockError):
    """The topic does not exist."""

    code = "topic_not_found"


class TopicExists(PenstockError):
    """A topic with this name exists."""

    code = "topic_exists"


class PartitionNotFound(PenstockError):
    """The topic has no partition with this number."""

    code = "partition_not_found"


class OffsetOutOfRange(PenstockError):
    """The partition has no such offset: it is beyond the high watermark, or retention has deleted it."""

    code = "offset_out_of_range"


class DataLoss(PenstockError):
    """Records were deleted or lost before a Spark query read them. The message says which, and how to continue without them."""

    code = "data_loss"


class GroupNotFound(PenstockError):
    """The consumer group or subscription does not exist."""

    code = "group_not_found"


class TransactionNotFound(PenstockError):
    """The caller has no transaction with this id: it never existed, belongs to another principal, or ended long ago or in a crash."""

    code = "transaction_not_found"


class TransactionNotActive(PenstockError):
    """The transaction has ended or is ending. The message says how."""

    code = "transaction_not_active"


class ProducerFenced(PenstockError):
    """A newer run of the same application has started, so writes of this one are refused."""

    code = "producer_fenced"


class UnknownProducer(PenstockError):
    """The broker does not know the idempotent producer: it was never registered, or was forgotten because it was idle or there were too
    many. Whether a request that is sent again was stored is unknown."""

    code = "unknown_producer"


class OutOfOrderSequence(PenstockError):
    """A request of an idempotent producer is older than those the broker remembers, or too far ahead of them. It stored nothing, but if it
    was sent before, that may have."""

    code = "out_of_order_sequence"


class ConsumerFenced(PenstockError):
    """The member of a consumer group has lost the partition or its session, so another member may read its records."""

    code = "consumer_fenced"


class InstanceFenced(ConsumerFenced):
    """Another consumer with the same instance id has joined the group, and has taken the place of this one."""

    code = "instance_fenced"


class NotLeading(PenstockError):
    """This node of a cluster does not lead, and only the one that does can handle the request. The message names it. Try
    again: requests are passed on once it is known who leads."""

    code = "not_leading"
    retriable = True


class EntryNotFound(PenstockError):
    """No pending delayed record, dead letter or delivery in flight has this id."""

    code = "entry_not_found"


class PipelineRunning(PenstockError):
    """The pipeline runs already, here or on another machine, and runs once at a time."""

    code = "pipeline_running"


class RecordTooLarge(InvalidRequest):
    """A record or its key is larger than `limits.record_bytes_max` or `limits.key_bytes_max`, or than a frame of the protocol."""

    code = "record_too_large"


class SchemaNotFound(PenstockError):
    """The schema, or this version of it, does not exist."""

    code = "schema_not_found"


class SchemaInvalid(InvalidRequest):
    """The definition is not a valid schema of its type, or costs more to check than the broker allows."""

    code = "schema_invalid"


class IncompatibleSchema(InvalidRequest):
    """A new version is not compatible with the version before it. The message names each incompatibility."""

    code = "incompatible_schema"


class ValidationFailed(InvalidRequest):
    """A record does not match its schema."""

    code = "validation_failed"


class LimitExceeded(PenstockError):
    """A configured limit (topics, partitions, groups, schemas, ...) is reached."""

    code = "limit_exceeded"


class AuthenticationRequired(PenstockError):
    """The listener requires authentication, and the client is anonymous."""

    code = "authentication_required"


class AuthenticationFailed(PenstockError):
    """The credentials were not accepted. The message does not say which part of them is wrong."""

    code = "authentication_failed"


class AccessDenied(PenstockError):
    """The principal has no permission for this operation."""

    code = "access_denied"


class UserNotFound(PenstockError):
    """The user does not exist."""

    code = "user_not_found"


class UserExists(PenstockError):
    """A user with this name exists."""

    code = "user_exists"


class CorruptBlock(PenstockError):
    """Stored bytes do not match their checksum. The message names the file and the position."""

    code = "corrupt_block"
    next_offset: int | None = None
    """For a read of a partition: the first offset after the damage that may be readable."""


class CorruptMetadata(PenstockError):
    """No copy of a metadata file matches its checksum."""

    code = "corrupt_metadata"


class MissingSegment(PenstockError):
    """A segment file between two others is missing. `log.accept_gaps` starts without it."""

    code = "missing_segment"


class UnsupportedFormat(PenstockError):
    """The data directory has a format that this release does not read. It was not changed."""

    code = "unsupported_format"


class DataDirectoryInUse(PenstockError):
    """Another broker uses the data directory."""

    code = "data_directory_in_use"


class WriteFailed(PenstockError):
    """The log could not be written, so records were not acknowledged. Raised as one of its subclasses."""

    code = "write_failed"


class NotWritten(WriteFailed):
    """The records are certainly not stored."""

    code = "not_written"


class OutcomeUnknown(WriteFailed):
    """Whether the records are stored is unknown: a write or flush failed, and a restart of the broker tells; or they were sent again
    after the broker had crashed, in a topic without `fsync`."""

    code = "outcome_unknown"
    settle: Callable[[], Awaitable[bool]] | None = None
    """Given by a log that can tell without a restart: returns, once that is certain, whether the records are stored. Those that are can
    be read then, and those that are not never will be. Raises a PenstockError if that is still unknown; ask again."""


class NoSpace(NotWritten):
    """The disk is full. Nothing was written; send the request again once there is space."""

    code = "no_space"
    retriable = True


class ShuttingDown(PenstockError):
    """The broker is shutting down. The request was not applied."""

    code = "shutting_down"
    retriable = True


class ConfigError(PenstockError):
    """The configuration, or a pipeline file, is invalid. The message has one line for each problem."""

    code = "config"


class JavaMissing(ConfigError):
    """No Java that Spark can run on was found. The message says what to install."""

    code = "java_missing"


class Unreachable(PenstockError):
    """No connection within the bounds of the retry policy. Nothing was sent."""

    code = "unreachable"
    retriable = True


class ConnectionLost(PenstockError):
    """The connection ended before the reply. The outcome of requests in flight is unknown."""

    code = "connection_lost"
    retriable = True


class RequestTimeout(PenstockError):
    """No reply within the request timeout. The outcome of the request is unknown."""

    code = "timeout"
    retriable = True


class ServerError(PenstockError):
    """The server replied with an error that the client does not recognize."""

    code = "server_error"


class BatchFailed(PenstockError):
    """Some records of one call were not acknowledged. `results` has the metadata or the error of each record, in order. `retriable` if
    all of the errors are."""

    code = "batch_failed"

    def __init__(self, message: str, results: Sequence[Any]) -> None:
        super().__init__(message)
        self.results = results
        self.retriable = all(result.retriable for result in results if isinstance(result, PenstockError))
