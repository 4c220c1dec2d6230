"""What `make torture-cluster` notices, without the cluster: a fault that does not happen, a channel that stays silent, lost and repeated
records, and deliveries of what was acknowledged."""

from __future__ import annotations

import struct
import threading
import time
from collections import Counter
from typing import cast

import pytest

from penstock.protocols.blipmq.client import Message
from penstock.testing.process import BrokerProcess
from scripts.demo.cluster import CHUNK, Channel, what_is_wrong
from scripts.demo.intake import TOPIC
from scripts.demo.speakers import FlyMQ
from tests.crash import cluster_faults
from tests.crash.cluster_channels import (
    TRANSACTION,
    TRANSACTION_RECORDS,
    IdempotentProducer,
    Readers,
    Transactions,
    numbered,
    refusals,
    torn_transactions,
)
from tests.crash.cluster_faults import FAULTS, Faults, Repair, play_round
from tests.crash.kafka_transactions import BEGUN, parse


class Answered:
    """A channel as far as a round looks at it."""

    kind: type[FlyMQ] = FlyMQ
    failure: str | None = None

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self.sent_again: set[bytes] = set()
        self.errors: Counter[str] = Counter()

    def answer(self, chunks: int) -> None:
        self.acknowledged += [b"x"] * chunks * CHUNK


def one_channel() -> tuple[Answered, Channel]:
    answered = Answered()
    return answered, cast("Channel", answered)


def test_a_part_that_does_not_come_back_fails_the_round() -> None:
    answered, channel = one_channel()

    def repair() -> None:
        answered.answer(2)
        raise RuntimeError("nobody took the place of a frozen node")

    with pytest.raises(RuntimeError, match="nobody took"):
        play_round(lambda: repair, [channel])


def test_answers_from_before_the_fault_do_not_end_a_round() -> None:
    answered, channel = one_channel()
    repaired = threading.Event()

    def fault() -> Repair:
        answered.answer(3)  # while the part to kill is looked for

        def repair() -> None:
            answered.answer(1)  # what was under way
            repaired.set()
            answered.answer(1)

        return repair

    play_round(fault, [channel])
    assert repaired.is_set()


def test_a_channel_that_stays_silent_fails_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_faults, "ROUND_S_MAX", 0.0)
    answered, channel = one_channel()
    with pytest.raises(RuntimeError, match="FlyMQ was not answered"):
        play_round(lambda: lambda: answered.answer(1), [channel])


def test_only_what_the_stop_of_a_node_brings_about_is_no_refusal() -> None:
    answered, channel = one_channel()
    before = Counter({"NotWritten": 2})
    answered.errors = before + Counter({"ConnectionLost": 3})
    assert refusals(channel, before) == ""
    answered.errors += Counter({"TransactionNotFound": 1})
    assert refusals(channel, before) == "FlyMQ was refused when a node was stopped: {'TransactionNotFound': 1}"
    answered.kind = Transactions
    assert refusals(channel, before) == ""
    answered.errors += Counter({"ShuttingDown": 1})
    assert "{'ShuttingDown': 1}" in refusals(channel, before)


def test_the_values_of_a_channel_go_to_several_partitions() -> None:
    chunk = next(numbered(b"x ", CHUNK, threading.Event()))
    assert len({key for key, _ in chunk}) == CHUNK


@pytest.mark.parametrize(
    ("stored", "wrong"),
    [
        ([b"a", b"b"], ""),
        ([b"a", b"b", b"b"], ""),
        ([b"b"], "1 are lost"),
        ([b"a", b"a", b"b"], "1 that were sent once are there twice"),
        ([b"a", b"b", b"c"], "1 were never sent"),
    ],
)
def test_what_is_lost_repeated_or_made_up_is_told(stored: list[bytes], wrong: str) -> None:
    answered, channel = one_channel()
    answered.acknowledged, answered.sent_again = [b"a", b"b"], {b"b"}
    found = what_is_wrong(Counter(stored), [channel])
    assert wrong in found
    assert bool(wrong) == bool(found)


def test_a_transaction_of_which_a_part_is_stored_is_told() -> None:
    whole = Counter(TRANSACTION + b"1-7-%d" % number for number in range(TRANSACTION_RECORDS))
    assert torn_transactions(whole) == torn_transactions(whole + whole) == ""
    for torn in (whole - Counter([TRANSACTION + b"1-7-3"]), whole + Counter([TRANSACTION + b"1-7-3"])):
        assert torn_transactions(torn) == "1 transactions are there in part"


def test_a_value_of_an_idempotent_producer_that_is_stored_twice_is_told() -> None:
    producer = IdempotentProducer(0, BrokerProcess("unused"), "flymq://unused", [])
    producer.acknowledged, producer.sent_again = [b"a"], {b"b"}
    assert producer.stored_again(Counter([b"a", b"c", b"c"])) == ""
    for value in (b"a", b"b"):
        assert "1 of 2 values" in producer.stored_again(Counter([value, value]))


def delivery(tag: int) -> Message:
    return Message(TOPIC, b"%d" % tag, 1, tag)


@pytest.fixture
def readers() -> Readers:
    return Readers([], 1)


@pytest.mark.parametrize(
    ("stored", "wrong"),
    [
        ([b"1", b"2"], ""),
        ([b"1", b"2", b"2"], "1 were never delivered"),
        ([b"1"], "1 deliveries are of none that is stored"),
    ],
)
def test_what_is_not_delivered_or_not_stored_is_told(readers: Readers, stored: list[bytes], wrong: str) -> None:
    readers.note_delivered([delivery(1), delivery(2)], asked_s=1.0)
    readers.note_delivered([delivery(2)], asked_s=2.0)  # it was not acknowledged
    found = readers.what_is_wrong(Counter(stored))
    assert wrong in found
    assert bool(wrong) == bool(found)


def test_a_delivery_is_repeated_if_it_was_asked_for_after_the_confirmation(readers: Readers) -> None:
    asked_s = time.monotonic()
    readers.note_delivered([delivery(1)], asked_s)
    readers.note_confirmed([delivery(1)])
    readers.note_delivered([delivery(1)], asked_s)  # to another reader, whose answer was late
    assert not readers.what_is_wrong(Counter([b"1"]))
    readers.note_delivered([delivery(1)], asked_s=time.monotonic() + 1)
    assert "1 were delivered again" in readers.what_is_wrong(Counter([b"1"]))


def test_what_a_coordinator_notes_is_read() -> None:
    key = struct.pack(">hh", 0, 14) + b"penstock.txn.7"
    assert parse(key, struct.pack(">hqhib", 0, 5, 1, 10_000, BEGUN) + b"the rest") == ("penstock.txn.7", BEGUN)


def test_every_fault_has_a_name() -> None:
    assert set(FAULTS) == {name for name, member in vars(Faults).items() if name[0] != "_" and callable(member)} - {
        "named"
    }
