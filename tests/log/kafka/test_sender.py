from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.clock import SystemClock
from penstock.errors import NotWritten, OutcomeUnknown, PenstockError
from penstock.log.api import Appended, Batch, EngineStats, TopicConfig
from penstock.log.kafka.client import Place, Produced
from penstock.log.kafka.faults import Code, KafkaFault, Unanswered
from penstock.log.kafka.sender import Sender

Answer = Produced | KafkaFault | Unanswered | ValueError


class Cluster:
    """Answers produce requests for one partition, as it is told."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = deque(answers)
        self.asked = 0
        self.go_on = asyncio.Event()
        self.go_on.set()

    def leader(self, place: Place) -> int:
        return 0

    async def refresh(self) -> bool:
        return True

    async def produce(self, node: int, batches: Sequence[tuple[Place, bytes]]) -> dict[Place, Produced | KafkaFault]:
        self.asked += 1
        await self.go_on.wait()
        answer = self.answers.popleft()
        if isinstance(answer, Unanswered | ValueError):
            raise answer
        return {place: answer for place, _ in batches}


class FakePartition:
    topic, index, place, config = "t", 0, ("t", 0), TopicConfig()
    deleted = busy = False
    claim = None
    sequence = 0
    failure: str | None = None

    def __init__(self) -> None:
        self.queue: deque[Any] = deque()

    def fail(self, reason: str) -> None:
        self.failure = reason

    def refusal(self) -> PenstockError | None:
        return None if self.failure is None else NotWritten(self.failure)

    def landed(self, *_: Any) -> None: ...

    def when_visible(self, _: int, told: Callable[[], None]) -> None:
        told()


def send(sender: Sender, partition: FakePartition) -> asyncio.Future[Appended | PenstockError]:
    done: asyncio.Future[Appended | PenstockError] = asyncio.get_running_loop().create_future()
    sender.append(partition, Batch([b"v"]), done.set_result)  # type: ignore[arg-type]
    return done


def sender_to(cluster: Cluster, append_s_max: float = 30.0) -> Sender:
    return Sender(cluster, SystemClock(), EngineStats(), append_s_max)  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [Unanswered(), KafkaFault(Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND)])
async def test_what_may_be_stored_and_is_refused_then_has_an_unknown_outcome_and_nothing_takes_its_number(
    first: Answer,
) -> None:
    cluster = Cluster(first, KafkaFault(Code.TOPIC_AUTHORIZATION_FAILED), Produced(0, 1))
    sender, partition = sender_to(cluster), FakePartition()
    before = send(sender, partition)
    await asyncio.sleep(0)
    behind = send(sender, partition)
    assert isinstance(await before, OutcomeUnknown)
    assert isinstance(await behind, NotWritten)
    assert cluster.asked == 2
    await sender.stop()


async def test_an_answer_that_cannot_be_read_does_not_hold_up_the_partition() -> None:
    sender = sender_to(Cluster(ValueError("not what this release expects"), Produced(7, 1)))
    assert await send(sender, FakePartition()) == Appended(7, 1)
    await sender.stop()


async def test_a_batch_that_may_be_stored_is_not_said_to_be_refused_by_a_fence() -> None:
    sender = sender_to(Cluster(Unanswered(), KafkaFault(Code.PRODUCER_FENCED)))
    assert isinstance(await send(sender, FakePartition()), OutcomeUnknown)
    await sender.stop()


async def test_appends_that_were_given_up_together_are_settled_when_they_are_refused() -> None:
    cluster = Cluster(KafkaFault(Code.MESSAGE_TOO_LARGE))
    cluster.go_on.clear()
    sender, partition = sender_to(cluster, 0.1), FakePartition()
    outcomes = [send(sender, partition), send(sender, partition)]
    unknown = await outcomes[0]
    assert isinstance(unknown, OutcomeUnknown)
    assert unknown.settle is not None
    cluster.go_on.set()
    async with asyncio.timeout(5):
        assert not await unknown.settle()
    assert cluster.asked == 1
    await sender.stop()


async def test_to_settle_does_not_claim_to_know_what_kafka_does_not() -> None:
    cluster = Cluster(KafkaFault(Code.OUT_OF_ORDER_SEQUENCE))
    cluster.go_on.clear()
    sender, partition = sender_to(cluster, 0.1), FakePartition()
    unknown = await send(sender, partition)
    assert isinstance(unknown, OutcomeUnknown)
    assert unknown.settle is not None
    cluster.go_on.set()
    with pytest.raises(OutcomeUnknown):
        await unknown.settle()
    await sender.stop()
