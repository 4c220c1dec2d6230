"""Idempotent producers under random interleavings of sending, sending again, crashes and forgetting.

The model is what clients know: which requests they have sent, and the answers that were given, whether they got them or not. However
often a request is sent, a record is stored at most once in a topic with fsync, and where every answer has said.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from penstock.background import Background
from penstock.broker.access.audit import Audit
from penstock.broker.idempotence.producers import IdempotentProducers
from penstock.broker.idempotence.sequences import IN_FLIGHT_MAX
from penstock.broker.limits import BrokerLimits
from penstock.broker.part import Context
from penstock.broker.records.producer import Producer
from penstock.broker.schemas.registry import Registry
from penstock.broker.schemas.validation import Validation
from penstock.errors import OutcomeUnknown, PenstockError, UnknownProducer
from penstock.log.api import Durability, TopicConfig
from penstock.log.embedded.options import EngineOptions
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from penstock.workers import WorkerPool
from tests.broker.idempotence.sending import Client, Request, client_of, places
from tests.broker.producing import read_values
from tests.engines import embedded, make_engine
from tests.open_access import OpenAccess

PRODUCERS_MAX = 2
TOPICS = {"single": 1, "spread": 3, "unflushed": 2}
TOPIC = st.sampled_from(sorted(TOPICS))
Answer = list[tuple[int, int] | None]


class ProducersHouse:
    """Producers and an engine, without the rest of a broker, which can be stopped and started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._clock = ManualClock()
        self._disk = FaultyDisk()

    async def open(self) -> None:
        options = EngineOptions(reserve_bytes=1 << 12)
        self.engine = make_engine(self._directory, clock=self._clock, disk=self._disk, options=options)
        await self.engine.start()
        limits = BrokerLimits(producers_max=PRODUCERS_MAX)
        background, workers, access = Background(), WorkerPool(), OpenAccess()
        audit = Audit(self.engine, self._clock, BrokerLimits(), access, workers)
        context = Context(self.engine, self._clock, limits, access, audit, background, workers)
        validation = Validation(Registry(self.engine, self._clock, limits), background)
        self.producers = IdempotentProducers(context, Producer(self.engine, limits), validation)
        await self.producers.start()

    async def close(self) -> None:
        await self.producers.close()
        await self.engine.close()

    async def crash(self) -> None:
        self._disk.power_off()
        for close in (self.producers.close, self.engine.close):
            with suppress(OSError, PenstockError):
                await close()
        self._disk = FaultyDisk()
        await self.open()


class ProducersAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="penstock-producers-"))
        self.runner = asyncio.Runner()
        self.house = ProducersHouse(self.root / "data")
        self.clients: list[Client] = []
        """Those that the broker knows."""
        self.forgotten: list[Client] = []
        self.answers: dict[bytes, tuple[str, tuple[int, int]]] = {}
        """By value: what an answer has said."""
        self.number = 0
        self.runner.run(self.begin())

    async def begin(self) -> None:
        await self.house.open()
        for name, partitions in TOPICS.items():
            durability = Durability("none") if name == "unflushed" else Durability()
            await self.house.engine.create_topic(name, TopicConfig(partitions, durability))

    def teardown(self) -> None:
        self.do(self.check())
        self.do(self.house.close())
        self.runner.close()
        shutil.rmtree(self.root)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def find_forgotten(self) -> None:
        """Which producers are forgotten is the broker's choice; that it says so is what counts here."""
        known = self.house.producers._known
        self.forgotten += [client for client in self.clients if client.producer not in known]
        self.clients = [client for client in self.clients if client.producer in known]

    def new_request(self, client: Client, topic: str, count: int, keyed: bool) -> Request:
        values = [b"%d" % number for number in range(self.number, self.number + count)]
        self.number += count
        return client.request(topic, values, [b"k" + value for value in values] if keyed else None)

    def note(self, request: Request, answer: Answer) -> None:
        """An answer must be the one that was given before, if there was one."""
        for value, place in zip(request.values, answer, strict=True):
            assert value is not None
            assert place is not None
            assert self.answers.setdefault(value, (request.topic, place)) == (request.topic, place)

    async def resend(self, client: Client) -> None:
        """Send what has no answer again, in order, as a client does on a new connection before it sends anything new."""
        for request in list(client.unanswered.values()):
            try:
                written = await client.send(self.house.producers, request)
            except OutcomeUnknown:
                assert request.topic == "unflushed"
                client.answered(request)
            else:
                self.note(request, places(written, len(request.values)))

    # -- rules ------------------------------------------------------------------------------------------------------------

    @rule()
    def register(self) -> None:
        self.clients.append(self.do(client_of(self.house.producers)))
        assert len(self.house.producers) <= PRODUCERS_MAX
        self.find_forgotten()

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 9), topic=TOPIC, count=st.integers(1, 8), keyed=st.booleans(), heard=st.booleans())
    def send(self, which: int, topic: str, count: int, keyed: bool, heard: bool) -> None:
        client = self.clients[which % len(self.clients)]
        self.do(self.resend(client))
        if client.next - client.floor >= IN_FLIGHT_MAX:
            return
        request = self.new_request(client, topic, count, keyed)
        self.note(request, places(self.do(client.send(self.house.producers, request)), count))
        if heard:
            client.answered(request)

    @precondition(lambda self: any(client.unanswered for client in self.clients))
    @rule(which=st.integers(0, 99), heard=st.booleans())
    def send_again(self, which: int, heard: bool) -> None:
        waiting = [client for client in self.clients if client.unanswered]
        client = waiting[which % len(waiting)]
        self.do(self.resend(client))
        if heard:
            client.unanswered.clear()

    @precondition(lambda self: any(client.unanswered for client in self.forgotten))
    @rule(which=st.integers(0, 99))
    def send_again_what_is_forgotten(self, which: int) -> None:
        waiting = [(client, request) for client in self.forgotten for request in client.unanswered.values()]
        client, request = waiting[which % len(waiting)]
        with pytest.raises(UnknownProducer):
            self.do(client.send(self.house.producers, request))

    @rule()
    def restart(self) -> None:
        self.do(self.house.close())
        self.do(self.house.open())

    @rule(turns=st.integers(0, 12), topic=TOPIC, counts=st.lists(st.integers(1, 4), max_size=3))
    def crash(self, turns: int, topic: str, counts: list[int]) -> None:
        """With requests under way, of which each may be stored or not."""

        async def crash() -> None:
            started = []
            for client in self.clients:
                await self.resend(client)
                for count in counts:
                    if client.next - client.floor < IN_FLIGHT_MAX:
                        request = self.new_request(client, topic, count, keyed=False)
                        started.append((request, client.start(self.house.producers, request)))
            for _ in range(turns):
                await asyncio.sleep(0)
            await self.house.crash()
            for request, answer in started:
                with suppress(PenstockError):
                    self.note(request, places(await answer, len(request.values)))
            await self.check()

        self.do(crash())
        self.find_forgotten()

    @rule()
    def compact(self) -> None:
        self.do(embedded(self.house.engine).maintain())

    async def check(self) -> None:
        for topic, partitions in TOPICS.items():
            if topic == "unflushed":
                continue
            found: dict[bytes, tuple[str, tuple[int, int]]] = {}
            for index in range(partitions):
                for offset, value in enumerate(await read_values(self.house.engine.partition(topic, index))):
                    assert value is not None
                    assert value not in found, f"{value!r} is stored twice"
                    found[value] = topic, (index, offset)
            for value, place in self.answers.items():
                assert place[0] != topic or found.get(value) == place


TestProducersAgainstModel = ProducersAgainstModel.TestCase
pytestmark = [pytest.mark.timeout(240), pytest.mark.embedded]
TestProducersAgainstModel.settings = settings(max_examples=10, stateful_step_count=20)
