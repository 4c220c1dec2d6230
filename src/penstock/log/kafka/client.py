"""Connections to a cluster, its metadata, and the requests that this engine makes. The only module that knows the Kafka library, but
for `requests`.

Kafka answers a connection in the order of its requests, so a request that waits holds up later ones: each purpose has connections of
its own (`Purpose`). A request is answered, or fails with `Unanswered`, which does not say whether it was carried out; an answer that is an
error is a `KafkaFault` with Kafka's code.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from penstock.background import Tasks
from penstock.errors import ConfigError, CorruptBlock, Unreachable
from penstock.futures import shield
from penstock.log.kafka.faults import Code, KafkaFault, Unanswered
from penstock.log.kafka.settings import KafkaSettings
from penstock.units import parse_address

try:
    import cramjam  # noqa: F401 - the library needs it to read batches that other clients have compressed
    from aiokafka import errors
    from aiokafka.abc import AbstractTokenProvider
    from aiokafka.client import AIOKafkaClient, CoordinationType
    from aiokafka.conn import AIOKafkaConnection
    from aiokafka.protocol.admin import (
        CreatePartitionsRequest,
        CreateTopicsRequest,
        DeleteRecordsRequest,
        DeleteTopicsRequest,
        DescribeConfigsRequest,
        DescribeGroupsRequest,
    )
    from aiokafka.protocol.fetch import FetchRequest
    from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
    from aiokafka.protocol.metadata import MetadataRequest
    from aiokafka.protocol.offset import OffsetRequest
    from aiokafka.protocol.produce import ProduceRequest
    from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest
    from aiokafka.record.default_records import DefaultRecordBatch

    from penstock.log.kafka.requests import DescribeLogDirs, IncrementalAlterConfigs
except ImportError as error:
    raise ConfigError(
        f'engine = "kafka" needs packages that are not installed ({error.name}): run pip install "penstock[kafka]"'
    ) from None

READ_CONNECTIONS: Final = 4
"""For each broker: a large read holds up later requests."""
REFRESHES_S: Final = 3
"""How many times the timeout of a request asking for metadata may take: brokers are asked one after the other."""
CLIENT_ID: Final = "penstock"
READ_COMMITTED: Final = 1
EARLIEST: Final = -2
LATEST: Final = -1
_BROKER_RESOURCE: Final = 4
_TOPIC_RESOURCE: Final = 2
_SET: Final = 0


class Purpose(IntEnum):
    """What a connection is for. 0 and 1 are the library's own; the connections for reading are READ and those after it."""

    SEND = 2
    TAIL = 3
    COORDINATE = 4
    ADMIN = 5
    READ = 6
    MEMBER = 6 + READ_CONNECTIONS


class Produced(NamedTuple):
    """Where a batch was stored. `timestamp_ms` is -1 in a topic whose records have the time of their writer."""

    offset: int
    timestamp_ms: int


class Fetched(NamedTuple):
    """What a partition holds from an offset on: whole record batches, and transactions among them that were aborted."""

    data: bytes
    stable_end: int
    start_offset: int
    aborted: Sequence[tuple[int, int]]
    """Producer ids, each with the offset at which its transaction begins."""


class Joined(NamedTuple):
    """A member of a group, and a generation of the group that it belongs to."""

    member: str
    generation: int
    members: Mapping[str, bytes]
    """What every member said of itself, by its id: told to the one that shares out, which this member is if there are any."""


class ProducerId(NamedTuple):
    id: int
    epoch: int


Place = tuple[str, int]
"""A topic by its name in Kafka, and the number of a partition."""


class KafkaClient:
    """A cluster. Live from `start` to `close`."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._client: Any = None
        self._coordinators: dict[str, int] = {}
        self._connections = Tasks()
        """Those that are being made."""

    # -- connections -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect. Raises Unreachable with the reason of each address."""
        # It logs each failed attempt to connect; here the caller that needed the connection reports it.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        reasons = [await self._why_not(*parse_address(address)) for address in self._settings.bootstrap]
        client = AIOKafkaClient(bootstrap_servers=list(self._settings.bootstrap), **self._connecting())
        try:
            if None not in reasons:
                raise errors.KafkaConnectionError("; ".join(filter(None, reasons)))
            await client.bootstrap()
        except errors.KafkaError as error:
            await client.close()
            raise Unreachable(
                f"no Kafka broker at {', '.join(self._settings.bootstrap)} lets us in: {error}; "
                "check kafka.bootstrap, kafka.tls and kafka.sasl"
            ) from None
        self._client = client
        await self.refresh()

    def _connecting(self) -> dict[str, Any]:
        settings = self._settings
        sasl = settings.sasl
        encrypted = "SSL" if settings.tls is not None else "PLAINTEXT"
        connecting: dict[str, Any] = {
            "client_id": CLIENT_ID,
            "request_timeout_ms": int(settings.request_s_max * 1000),
            "security_protocol": encrypted if sasl is None else f"SASL_{encrypted}",
            "ssl_context": None if settings.tls is None else settings.tls.context(),
        }
        if sasl is not None:
            connecting |= {
                "sasl_mechanism": sasl.mechanism,
                "sasl_plain_username": sasl.username,
                "sasl_plain_password": None if sasl.password is None else sasl.password.get_secret_value(),
                "sasl_oauth_token_provider": None if sasl.token_file is None else _TokenFile(sasl.token_file),
            }
        return connecting

    async def _why_not(self, host: str, port: int) -> str | None:
        """Why a broker does not answer us, None if it does. The library does not say, and leaves connections that failed half closed."""
        connection = AIOKafkaConnection(host, port, **self._connecting())
        try:
            await connection.connect()
            answer = await connection.send(MetadataRequest([]))
        except (OSError, TimeoutError, errors.KafkaError) as error:
            return str(error) or type(error).__name__
        else:
            return None if answer.brokers else "it names no brokers"
        finally:
            protocol = connection._protocol  # noqa: SLF001 - the only way to a transport that the library has let go
            if protocol is not None and protocol._transport is not None:  # noqa: SLF001
                protocol._transport.abort()  # noqa: SLF001
            connection.close()

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            # A TLS connection that is given up while it is made would keep the loop from closing.
            await asyncio.gather(*self._connections, return_exceptions=True)
            try:
                async with asyncio.timeout(self._settings.request_s_max):
                    await client._maybe_wait_metadata()  # noqa: SLF001 - the library's own task makes connections, too
            except TimeoutError:
                pass
            await client.close()

    async def _ask(self, node: int, request: Any, purpose: int) -> Any:
        client = self._client
        if client is None:
            raise Unanswered("the connection is closed")
        try:
            if (node, purpose) not in client._conns:  # noqa: SLF001 - to ask costs a task, and is needed once
                await self._connect(client, node, purpose)
            return await client.send(node, request, group=purpose)
        except (errors.KafkaError, OSError, TimeoutError, KeyError, AttributeError) as error:
            # The last two: the library looks for a connection that was closed while it waited.
            raise Unanswered(str(error) or type(error).__name__) from error

    async def _connect(self, client: Any, node: int, purpose: int) -> None:
        """Make a connection, to the end even if the caller is cancelled."""
        await shield(self._connections.run(client.ready(node, group=purpose)))

    # -- metadata ----------------------------------------------------------------------------------------------------------

    async def refresh(self) -> bool:
        """Ask which topics there are and who leads them; False if nobody answered."""
        client = self._client
        if client is None:
            return False
        try:
            async with asyncio.timeout(REFRESHES_S * self._settings.request_s_max):
                return bool(await client.force_metadata_update())
        except TimeoutError:
            return False

    def nodes(self) -> list[int]:
        """The ids of the brokers."""
        return sorted(broker.nodeId for broker in self._client.cluster.brokers())

    def partition_counts(self) -> Mapping[str, int]:
        """How many partitions each topic has, by its name in Kafka; those that belong to Kafka are left out."""
        cluster = self._client.cluster
        return {topic: len(cluster.partitions_for_topic(topic)) for topic in cluster.topics()}

    def replicas(self) -> Mapping[Place, tuple[int, int]]:
        """How many replicas each partition has, and how many are in sync."""
        cluster = self._client.cluster
        found = {}
        for topic in cluster.topics():
            for index in cluster.partitions_for_topic(topic):
                metadata = cluster._partitions[topic][index]  # noqa: SLF001 - the library keeps it, and shows only the leader
                found[topic, index] = (len(metadata.replicas), len(metadata.isr))
        return found

    def leader(self, place: Place) -> int | None:
        """The broker that leads a partition, None if that is not known now."""
        leader = self._client.cluster.leader_for_partition(_TopicPartition(*place))
        return None if leader is None or leader < 0 else int(leader)

    def any_node(self) -> int:
        """Raises Unanswered if no broker is known."""
        nodes = self.nodes()
        if not nodes:
            raise Unanswered("no broker is known")
        return random.choice(nodes)  # noqa: S311 - spreads load

    # -- records -----------------------------------------------------------------------------------------------------------

    async def produce(
        self, node: int, batches: Sequence[tuple[Place, bytes]], transactional_id: str | None = None
    ) -> dict[Place, Produced | KafkaFault]:
        """Write a batch to each of these partitions; each has an answer of its own."""
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for (topic, index), data in batches:
            topics.setdefault(topic, []).append((index, data))
        timeout_ms = int(self._settings.request_s_max * 1000)
        request = ProduceRequest(transactional_id, -1, timeout_ms, list(topics.items()))
        answer = await self._ask(node, request, Purpose.SEND)
        return {
            (topic, index): Produced(offset, timestamp) if not code else KafkaFault(code)
            for topic, partitions in answer.topics
            for index, code, offset, timestamp, *_ in partitions
        }

    async def fetch(
        self,
        node: int,
        positions: Mapping[Place, int],
        max_bytes: int,
        wait_ms: int,
        purpose: int,
        total_bytes: int = 0,
    ) -> dict[Place, Fetched | KafkaFault]:
        """Read committed record batches of partitions from these offsets, waiting for the first byte as long as `wait_ms`.

        `max_bytes` bounds what comes of each partition, `total_bytes` what comes of all; the first batch comes whole all the same.
        """
        topics: dict[str, list[tuple[int, int, int]]] = {}
        for (topic, index), offset in positions.items():
            topics.setdefault(topic, []).append((index, offset, max_bytes))
        request = FetchRequest(wait_ms, 1, total_bytes or max_bytes, READ_COMMITTED, list(topics.items()))
        answer = await self._ask(node, request, purpose)
        if getattr(answer, "error_code", 0):
            raise KafkaFault(answer.error_code)
        return {
            (topic, index): Fetched(rest[-1] or b"", stable_end, start, aborted or ()) if not code else KafkaFault(code)
            for topic, partitions in answer.topics
            for index, code, _, stable_end, start, aborted, *rest in partitions
        }

    async def offsets(self, node: int, times: Mapping[Place, int]) -> dict[Place, int | KafkaFault]:
        """The offsets of the first records at or after these times (`EARLIEST`, `LATEST`: the bounds); -1 if there is none."""
        topics: dict[str, list[tuple[int, int]]] = {}
        for (topic, index), timestamp in times.items():
            topics.setdefault(topic, []).append((index, timestamp))
        answer = await self._ask(node, OffsetRequest(-1, READ_COMMITTED, list(topics.items())), Purpose.READ)
        return {
            (topic, index): offset if not code else KafkaFault(code)
            for topic, partitions in answer.topics
            for index, code, _, offset, *_ in partitions
        }

    async def delete_records(self, node: int, before: Mapping[Place, int]) -> dict[Place, int | KafkaFault]:
        """Delete the records before these offsets; returns where the partitions start then."""
        topics: dict[str, list[tuple[int, int]]] = {}
        for (topic, index), offset in before.items():
            topics.setdefault(topic, []).append((index, offset))
        request = DeleteRecordsRequest(list(topics.items()), int(self._settings.request_s_max * 1000))
        answer = await self._ask(node, request, Purpose.ADMIN)
        return {
            (topic, index): start if not code else KafkaFault(code)
            for topic, partitions, *_ in answer.topics
            for index, start, code, *_ in partitions
        }

    # -- topics ------------------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, partitions: int, replication: int, configs: Mapping[str, str]) -> None:
        wanted: list[Any] = [(name, partitions, replication, [], list(configs.items()))]
        answer = await self._ask_controller(CreateTopicsRequest(wanted, self._timeout_ms, False))
        _, code, *message = answer.topic_errors[0]
        _raise_fault(code, *message)

    async def delete_topic(self, name: str) -> None:
        answer = await self._ask_controller(DeleteTopicsRequest([name], self._timeout_ms))
        _, code = answer.topic_error_codes[0]
        _raise_fault(code)

    async def create_partitions(self, name: str, count: int) -> None:
        """Add partitions until there are `count`."""
        request = CreatePartitionsRequest([(name, (count, None))], self._timeout_ms, False)
        answer = await self._ask_controller(request)
        _, code, message = answer.topic_errors[0]
        _raise_fault(code, message)

    async def set_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """Set some settings of a topic and leave the others as they are."""
        changes = [(name, _SET, value) for name, value in configs.items()]
        answer = await self._ask_controller(IncrementalAlterConfigs([(_TOPIC_RESOURCE, topic, changes)]))
        code, message, *_ = answer.resources[0]
        _raise_fault(code, message)

    async def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """All settings of topics."""
        resources = [(_TOPIC_RESOURCE, topic, None) for topic in topics]
        return await self._configs(self.any_node(), resources)

    async def broker_configs(self, node: int) -> dict[str, str]:
        """All settings of a broker."""
        found = await self._configs(node, [(_BROKER_RESOURCE, str(node), None)])
        return found[str(node)]

    async def _configs(self, node: int, resources: Sequence[tuple[int, str, None]]) -> dict[str, dict[str, str]]:
        answer = await self._ask(node, DescribeConfigsRequest(list(resources)), Purpose.ADMIN)
        found: dict[str, dict[str, str]] = {}
        for code, message, _, resource, entries in answer.resources:
            _raise_fault(code, message)
            found[resource] = {name: value for name, value, *_ in entries if value is not None}
        return found

    async def sizes(self) -> dict[Place, int]:
        """How many bytes each partition takes: of its replicas the largest."""
        found: dict[Place, int] = {}
        for node in self.nodes():
            answer = await self._ask(node, DescribeLogDirs(), Purpose.ADMIN)
            for code, _, topics in answer.results:
                for topic, partitions in topics if not code else ():
                    for index, size, *_ in partitions:
                        found[topic, index] = max(size, found.get((topic, index), 0))
        return found

    @property
    def _timeout_ms(self) -> int:
        return int(self._settings.request_s_max * 1000)

    async def _ask_controller(self, request: Any) -> Any:
        """Any broker passes what changes the cluster on to the controller."""
        return await self._ask(self.any_node(), request, Purpose.ADMIN)

    # -- transactions --------------------------------------------------------------------------------------------------------

    async def init_producer(self, transactional_id: str, timeout_ms: int) -> ProducerId:
        """Take over a transactional id: its previous owner is fenced, and its open transaction aborted."""
        answer = await self._coordinated(transactional_id, InitProducerIdRequest(transactional_id, timeout_ms))
        self._raise_coordinator_fault(transactional_id, answer.error_code)
        return ProducerId(answer.producer_id, answer.producer_epoch)

    async def new_producer(self, timeout_ms: int) -> ProducerId:
        """Return an id that nobody has, for appends that are no transactions."""
        answer = await self._ask(self.any_node(), InitProducerIdRequest(None, timeout_ms), Purpose.COORDINATE)
        _raise_fault(answer.error_code)
        return ProducerId(answer.producer_id, answer.producer_epoch)

    async def add_to_transaction(self, transactional_id: str, producer: ProducerId, places: Sequence[Place]) -> None:
        """Begin a transaction on these partitions, or add them to the one that was begun."""
        topics: dict[str, list[int]] = {}
        for topic, index in places:
            topics.setdefault(topic, []).append(index)
        request = AddPartitionsToTxnRequest(transactional_id, *producer, list(topics.items()))
        answer = await self._coordinated(transactional_id, request)
        codes = [code for _, partitions in answer.errors for _, code in partitions]
        # Where one partition is at fault, the others are only said not to have been attempted.
        told = [code for code in codes if code not in {0, Code.OPERATION_NOT_ATTEMPTED}]
        self._raise_coordinator_fault(transactional_id, told[0] if told else 0)

    async def end_transaction(self, transactional_id: str, producer: ProducerId, *, commit: bool) -> None:
        """End a transaction. Asked again, it is an error (CONCURRENT_TRANSACTIONS) until every partition shows the end, and then none."""
        answer = await self._coordinated(transactional_id, EndTxnRequest(transactional_id, *producer, commit))
        self._raise_coordinator_fault(transactional_id, answer.error_code)

    async def _coordinated(
        self,
        name: str,
        request: Any,
        kind: CoordinationType = CoordinationType.TRANSACTION,
        purpose: Purpose = Purpose.COORDINATE,
    ) -> Any:
        """Ask the coordinator of a transactional id, or of a group."""
        node = self._coordinators.get(name)
        if node is None:
            try:
                node = await self._client.coordinator_lookup(kind, name)
            except errors.BrokerResponseError as error:
                raise KafkaFault(error.errno) from error
            except (errors.KafkaError, OSError, TimeoutError, KeyError, AttributeError, AssertionError) as error:
                raise Unanswered(str(error) or type(error).__name__) from error
            self._coordinators[name] = node
        try:
            return await self._ask(node, request, purpose)
        except Unanswered:
            self._coordinators.pop(name, None)
            raise

    def _raise_coordinator_fault(self, name: str, code: int) -> None:
        if code in {Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE, Code.COORDINATOR_LOAD_IN_PROGRESS}:
            self._coordinators.pop(name, None)
        _raise_fault(code)

    # -- groups --------------------------------------------------------------------------------------------------------------

    async def join_group(
        self, group: str, member: str, protocol: str, metadata: bytes, session_ms: int, rebalance_ms: int
    ) -> Joined:
        """Join a group, or say so again; answered once every member has. `member` is empty for a new one."""
        while True:
            request = JoinGroupRequest(
                group,
                session_ms,
                rebalance_ms,
                member,
                None,  # the library passes it on, and Kafka takes it for a member that may change
                protocol,
                [(protocol, metadata)],
            )
            answer = await self._in_group(group, request)
            if answer.error_code != Code.MEMBER_ID_REQUIRED:
                break
            member = answer.member_id
        self._raise_coordinator_fault(group, answer.error_code)
        members = {each[0]: each[-1] for each in answer.members}
        return Joined(answer.member_id, answer.generation_id, members)

    async def sync_group(self, group: str, joined: Joined, assignments: Mapping[str, bytes]) -> bytes:
        """Share out, if this member was told of all; returns what was given to it."""
        request = SyncGroupRequest(
            group,
            joined.generation,
            joined.member,
            None,
            list(assignments.items()),
        )
        answer = await self._in_group(group, request)
        self._raise_coordinator_fault(group, answer.error_code)
        return bytes(answer.member_assignment)

    async def heartbeat(self, group: str, joined: Joined) -> None:
        answer = await self._in_group(group, HeartbeatRequest(group, joined.generation, joined.member))
        self._raise_coordinator_fault(group, answer.error_code)

    async def leave_group(self, group: str, member: str) -> None:
        answer = await self._in_group(group, LeaveGroupRequest(group, member))
        self._raise_coordinator_fault(group, answer.error_code)

    async def members(self, group: str) -> list[bytes]:
        """What each member of a group has said of itself; nothing while the group waits for members to join again."""
        answer = await self._in_group(group, DescribeGroupsRequest([group]))
        [(code, *_, members)] = [described[:6] for described in answer.groups]
        self._raise_coordinator_fault(group, code)
        return [bytes(metadata) for _, _, _, metadata, *_ in members]

    async def _in_group(self, group: str, request: Any) -> Any:
        return await self._coordinated(group, request, CoordinationType.GROUP, Purpose.MEMBER)


def _raise_fault(code: int, message: str | None = None) -> None:
    if code:
        raise KafkaFault(code, message)


class DecodedRecord(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def decode_records(batch: bytes) -> Iterator[DecodedRecord]:
    """The records of one record batch in any of Kafka's compressions. Raises CorruptBlock."""
    try:
        for record in DefaultRecordBatch(batch):
            yield DecodedRecord(record.offset, record.timestamp, record.key, record.value, record.headers)
    except (errors.KafkaError, ValueError, IndexError, RuntimeError, EOFError, OSError) as error:
        raise CorruptBlock(f"a record batch of Kafka cannot be read: {error}") from error


class _TopicPartition(NamedTuple):
    topic: str
    partition: int


class _TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """The token of OAUTHBEARER, from a file that somebody else keeps current."""

    def __init__(self, file: Any) -> None:
        self._file = file

    async def token(self) -> str:
        text: str = await asyncio.get_running_loop().run_in_executor(None, self._file.read_text)
        return text.strip()
