"""Every error Penstock raises on purpose, in one tree.

Each class has a stable `code` (for programs), says whether trying again can help (`retriable`), and carries a message that
names what is wrong and what to do (for people). Protocols turn these into their own wire form; clients turn the wire form back
into these classes. `ProtocolViolation` stands apart: it is the peer's fault, raised by codecs, and usually ends the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar


class PenstockError(Exception):
    """Base of every expected failure."""

    code: ClassVar[str] = "error"
    retriable: bool = False

    @property
    def message(self) -> str:
        return str(self)


class ProtocolViolation(PenstockError):
    """The peer sent bytes its protocol does not allow."""

    code = "protocol_violation"


class InvalidRequest(PenstockError):
    """A well-formed request asks for something that makes no sense; the message says what to change."""

    code = "invalid_request"


class InvalidTopicName(InvalidRequest):
    code = "invalid_topic_name"


class NotSupported(PenstockError):
    """The operation exists in the protocol but not in this broker."""

    code = "not_supported"


class TopicNotFound(PenstockError):
    code = "topic_not_found"


class TopicExists(PenstockError):
    code = "topic_exists"


class PartitionNotFound(PenstockError):
    code = "partition_not_found"


class OffsetOutOfRange(PenstockError):
    code = "offset_out_of_range"


class DataLoss(PenstockError):
    """Records that a reader counts on are gone before it has read them. The message says which, and how to go on without them."""

    code = "data_loss"


class GroupNotFound(PenstockError):
    code = "group_not_found"


class TransactionNotFound(PenstockError):
    """No open transaction of the caller has this id: it never was, it belongs to someone else, or it ended long ago or in a crash."""

    code = "transaction_not_found"


class TransactionNotActive(PenstockError):
    """The transaction has ended, or is ending, in a way that does not allow what was asked. The message says in which."""

    code = "transaction_not_active"


class ProducerFenced(PenstockError):
    """A newer run of the same application has begun, so this one may write no more."""

    code = "producer_fenced"


class EntryNotFound(PenstockError):
    """No delayed record waits, or no dead letter is listed, under the id that was given."""

    code = "entry_not_found"


class RecordTooLarge(InvalidRequest):
    code = "record_too_large"


class SchemaNotFound(PenstockError):
    code = "schema_not_found"


class SchemaInvalid(InvalidRequest):
    """A definition that is not a schema of its type, or one that costs more to check than the broker allows."""

    code = "schema_invalid"


class IncompatibleSchema(InvalidRequest):
    """A new version would break readers or writers of the version before it. The message names each way in which it would."""

    code = "incompatible_schema"


class ValidationFailed(InvalidRequest):
    """A record is not what its schema says."""

    code = "validation_failed"


class LimitExceeded(PenstockError):
    """A configured bound (topics, partitions, groups, schemas) is reached."""

    code = "limit_exceeded"


class AuthenticationRequired(PenstockError):
    code = "authentication_required"


class AuthenticationFailed(PenstockError):
    """Credentials were given and not accepted. The message does not say which part of them was wrong."""

    code = "authentication_failed"


class AccessDenied(PenstockError):
    code = "access_denied"


class UserNotFound(PenstockError):
    code = "user_not_found"


class UserExists(PenstockError):
    code = "user_exists"


class CorruptBlock(PenstockError):
    """Stored bytes fail their checksum. The message names the file and the position."""

    code = "corrupt_block"
    next_offset: int | None = None
    """For a read of a partition: the first offset after the damage that may be readable."""


class CorruptMetadata(PenstockError):
    """A metadata file fails its checksum in every copy; the broker refuses to guess."""

    code = "corrupt_metadata"


class MissingSegment(PenstockError):
    """A segment file between two others is gone; starting would present a gap as if it were the log."""

    code = "missing_segment"


class UnsupportedFormat(PenstockError):
    """The log in the data directory has a format that this release does not read. It was left as it is."""

    code = "unsupported_format"


class DataDirectoryInUse(PenstockError):
    code = "data_directory_in_use"


class WriteFailed(PenstockError):
    """Records were not acknowledged because the log could not be written. Always one of the two below."""

    code = "write_failed"


class NotWritten(WriteFailed):
    """Nothing was written, and nothing of it will appear later."""

    code = "not_written"


class OutcomeUnknown(WriteFailed):
    """A write or flush failed, so whether the records are stored is unknown until the log is opened again."""

    code = "outcome_unknown"


class NoSpace(NotWritten):
    """The disk is full. Nothing was written; the same request may be sent again once space returns."""

    code = "no_space"
    retriable = True


class ShuttingDown(PenstockError):
    """The broker is stopping. The request was not applied."""

    code = "shutting_down"
    retriable = True


class ConfigError(PenstockError):
    code = "config"


class JavaMissing(ConfigError):
    """There is no Java that Spark can run on; the message says what was found and what to install."""

    code = "java_missing"


class Unreachable(PenstockError):
    """No connection could be made within the bounds of the retry policy. Nothing was sent."""

    code = "unreachable"
    retriable = True


class ConnectionLost(PenstockError):
    """The connection ended before the answer came, so the outcome of what was in flight is unknown."""

    code = "connection_lost"
    retriable = True


class RequestTimeout(PenstockError):
    code = "timeout"
    retriable = True


class ServerError(PenstockError):
    """A server answered with an error that this client has no class for."""

    code = "server_error"


class BatchFailed(PenstockError):
    """Some records of one call were not acknowledged. `results` has, in the order of the records, the metadata or the error of each."""

    code = "batch_failed"

    def __init__(self, message: str, results: Sequence[Any]) -> None:
        super().__init__(message)
        self.results = results
        self.retriable = all(result.retriable for result in results if isinstance(result, PenstockError))
