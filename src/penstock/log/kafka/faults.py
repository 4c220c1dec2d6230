"""What goes wrong between a node and Kafka: no answer, or one that is an error; and what that means to who appended."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidRequest, NotWritten, PenstockError, RecordTooLarge, TopicNotFound

if TYPE_CHECKING:
    from penstock.log.kafka.partition import KafkaPartition

SEQUENCE_MODULUS: Final = 1 << 31
"""Sequence numbers of a producer in a partition begin again at 0 here."""


class Code(IntEnum):
    """Kafka's error codes that are distinguished here."""

    UNKNOWN_SERVER_ERROR = -1
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    ILLEGAL_GENERATION = 22
    UNKNOWN_MEMBER_ID = 25
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE = 45
    DUPLICATE_SEQUENCE = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    POSITION_OUT_OF_RANGE = 99


RETRIABLE: Final = frozenset(
    {
        Code.CORRUPT_MESSAGE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,  # until the metadata of a broker is current; the caller bounds it
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.BROKER_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.NETWORK_EXCEPTION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.NOT_CONTROLLER,
        Code.CONCURRENT_TRANSACTIONS,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
        Code.THROTTLING_QUOTA_EXCEEDED,
    }
)
FENCED: Final = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED})


class Unanswered(Exception):
    """No answer: the connection could not be made, was lost, or took too long. Whether the request was carried out is unknown."""


class KafkaFault(Exception):
    """An answer that says what went wrong."""

    def __init__(self, code: int, message: str | None = None) -> None:
        self.code = code
        self.retriable = code in RETRIABLE
        try:
            self.name = Code(code).name
        except ValueError:
            self.name = "error"
        super().__init__(f"{self.name} ({code})" + (f": {message}" if message else ""))


def refusal_of(fault: KafkaFault, partition: KafkaPartition) -> PenstockError:
    """What a final refusal means. Nothing was stored."""
    if fault.code in {Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE}:
        return RecordTooLarge(
            f"the records are larger than topic {partition.topic!r} allows in Kafka: send fewer at a time, or raise max.message.bytes"
            f" of {partition.place[0]}"
        )
    if fault.code == Code.INVALID_RECORD:
        return InvalidRequest(f"Kafka refuses the records: {fault}")
    return NotWritten(f"nothing was written, because Kafka refuses it: {fault}")


def topic_gone(partition: KafkaPartition) -> TopicNotFound:
    return TopicNotFound(f"topic {partition.topic!r} not found: it was deleted")


def not_sent(why: str) -> NotWritten:
    """Nothing was written, and it may be sent again."""
    error = NotWritten(f"nothing was written: {why}")
    error.retriable = True
    return error
