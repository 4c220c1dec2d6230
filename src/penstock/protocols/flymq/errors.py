"""Errors as FlyMQ carries them: an ERROR frame with a text, so the text must say which error it is.

One table, used from both ends. Every error class that a broker can answer with has an opening; `error_text` puts it in front of a
message that lacks it, and `error_for` finds the class again. The openings are the words that deployed brokers use where they have
some, because deployed clients look for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationRequired,
    ConsumerFenced,
    CorruptBlock,
    CorruptMetadata,
    EntryNotFound,
    GroupNotFound,
    IncompatibleSchema,
    InstanceFenced,
    InvalidRequest,
    InvalidTopicName,
    LimitExceeded,
    MissingSegment,
    NoSpace,
    NotLeading,
    NotSupported,
    NotWritten,
    OffsetOutOfRange,
    OutcomeUnknown,
    OutOfOrderSequence,
    PartitionNotFound,
    PenstockError,
    ProducerFenced,
    ProtocolViolation,
    RecordTooLarge,
    SchemaInvalid,
    SchemaNotFound,
    ServerError,
    ShuttingDown,
    TopicExists,
    TopicNotFound,
    TransactionNotActive,
    TransactionNotFound,
    UnknownProducer,
    UserExists,
    UserNotFound,
    ValidationFailed,
    WriteFailed,
)
from penstock.protocols.bytes import U16, U32, ByteReader
from penstock.protocols.flymq.wire import ERROR, ERROR_CODE, ERROR_MARK, ERROR_TEXT_BYTES_MAX, frame


class _Opening(NamedTuple):
    words: str
    """What is put in front of a message that does not open with words of its own."""
    own: re.Pattern[str]
    """The openings this class is known by."""


def _opening(words: str, *others: str) -> _Opening:
    return _Opening(words, re.compile("|".join([re.escape(words), *others])))


OPENINGS: Mapping[type[PenstockError], _Opening] = {
    TopicNotFound: _opening("topic not found"),
    TopicExists: _opening("topic already exists"),
    PartitionNotFound: _opening("partition not found", r"partition -?\d+ (?:not found|out of range)"),
    OffsetOutOfRange: _opening("offset out of range", r"EOF\b", r"offset -?\d+ is out of range"),
    GroupNotFound: _opening("consumer group not found", "subscription not found"),
    SchemaNotFound: _opening("schema not found", "no schema found for topic"),
    SchemaInvalid: _opening("failed to register schema: invalid schema definition", "unsupported schema type"),
    IncompatibleSchema: _opening("failed to register schema: schema compatibility check failed"),
    ValidationFailed: _opening("schema validation failed"),
    EntryNotFound: _opening("message not found", "delayed message not found"),
    TransactionNotFound: _opening("transaction not found"),
    TransactionNotActive: _opening("transaction is not active"),
    ProducerFenced: _opening("producer fenced"),
    UnknownProducer: _opening("unknown producer", r"producer [0-9a-f]* ?is unknown"),
    OutOfOrderSequence: _opening("out of order sequence", r"sequence \d+ is out of order"),
    ConsumerFenced: _opening("consumer fenced"),
    InstanceFenced: _opening("instance fenced"),
    InvalidTopicName: _opening("invalid topic name"),
    RecordTooLarge: _opening("record too large"),
    InvalidRequest: _opening("invalid request", "unknown subscribe mode", "unknown reset mode", r"delay \S+ exceeds"),
    ProtocolViolation: _opening("invalid binary format", "buffer too small", "invalid auth request", "gzip:"),
    NotSupported: _opening("not supported", "unknown opcode", r"\w+ \(opcode 0x[0-9a-f]+\) is not available"),
    LimitExceeded: _opening("limit exceeded"),
    AuthenticationRequired: _opening("authentication required"),
    AuthenticationFailed: _opening(
        "authentication failed",
        "invalid username or password",
        "invalid current password",
        "user account is disabled",
        "too many failed attempts",
    ),
    UserNotFound: _opening("user not found", 'user ".*" not found'),
    UserExists: _opening("user already exists", 'user ".*" already exists'),
    AccessDenied: _opening("access denied", "unauthorized"),
    CorruptBlock: _opening("corrupt block"),
    CorruptMetadata: _opening("corrupt metadata"),
    MissingSegment: _opening("missing segment"),
    NoSpace: _opening("no space left"),
    NotWritten: _opening("not written"),
    OutcomeUnknown: _opening("outcome unknown"),
    WriteFailed: _opening("write failed"),
    ShuttingDown: _opening("shutting down"),
    NotLeading: _opening("not leading"),
}


def error_text(error: PenstockError) -> str:
    """The ERROR text for an error: its message, opening with the words that name its class."""
    opening = next((OPENINGS[kind] for kind in type(error).__mro__ if kind in OPENINGS), None)
    if opening is None or opening.own.match(error.message):
        return error.message
    return f"{opening.words}: {error.message}"


def error_for(text: str) -> PenstockError:
    """The error that an ERROR text stands for; ServerError where its opening is not known."""
    for kind, opening in OPENINGS.items():
        if opening.own.match(text):
            return kind(text)
    return ServerError(text)


def encode_error(message: str, *, native: bool = False) -> bytes:
    """Encode an ERROR in the contract's form, or in the one that all deployed clients read exactly."""
    head, mark = (U32.pack(ERROR_CODE), "") if native else (b"\x00", ERROR_MARK)
    text = (mark + message).encode(errors="replace")
    if len(text) > ERROR_TEXT_BYTES_MAX:
        text = text[:ERROR_TEXT_BYTES_MAX].decode(errors="ignore").encode()
    return frame(ERROR, head + U16.pack(len(text)) + text)


def decode_error(payload: bytes) -> str:
    """Return the message of an ERROR in any form in use: the contract's, a u32 code and a string, or bare text."""
    reader = ByteReader(payload)
    for code_bytes, mark in ((1, ERROR_MARK), (4, "")):
        try:
            reader.position = 0
            reader.take(code_bytes, "code")
            message = reader.text16("message")
            reader.finish("message")
        except ProtocolViolation:
            continue
        return message.removeprefix(mark)
    return payload.decode(errors="replace")
