"""Two nodes on one Kafka: who may do what, and what records must look like, holds on both, wherever it was decided.

Records are written without the number of an idempotent producer and read by offset, which a node answers by itself, and not the one that
leads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import TypeVar

import pytest

from bench.kafka import Kafka
from penstock.errors import AccessDenied, AuthenticationFailed, PenstockError, ValidationFailed
from penstock.protocols.flymq.sync import FlyMQClient
from tests.kafka.nodes import Certificates, NodeThread

PREFIX = "access."
ADMINISTRATOR = "admin"
NUMBER = '{"type": "number"}'
T = TypeVar("T")


@pytest.fixture(scope="module")
def both(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeThread]]:
    certificates = Certificates(tmp_path_factory.mktemp("nodes"))
    with ExitStack() as running:
        yield [
            running.enter_context(NodeThread(kafka, PREFIX, name, certificates, auth="required", dev=True))
            for name in ("one", "two")
        ]


@pytest.fixture(params=["decided by the leader", "decided on the other node"])
def nodes(both: list[NodeThread], request: pytest.FixtureRequest) -> list[NodeThread]:
    """Where something is decided, and where it has to hold."""
    assert [node.leads for node in both] == [True, False]
    return both if request.param == "decided by the leader" else both[::-1]


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def user(nodes: list[NodeThread]) -> str:
    return "ada-of-one" if nodes[0].leads else "ada-of-two"


@pytest.fixture
def administrator(nodes: list[NodeThread], clients: ExitStack) -> FlyMQClient:
    return clients.enter_context(log_in(nodes[0], ADMINISTRATOR))


def log_in(node: NodeThread, user: str) -> FlyMQClient:
    return FlyMQClient(f"flymq://{user}:{user}@{node.addresses['flymq']}?idempotent=false")


def once_allowed(action: Callable[[], T], refusal: type[PenstockError]) -> T:
    """Try until it is not refused; the timeout of the test bounds it."""
    while True:
        with suppress(refusal):
            return action()


def until_refused(action: Callable[[], object], refusal: type[PenstockError]) -> str:
    """Try until it is refused; returns why."""
    while True:
        try:
            action()
        except refusal as error:
            return str(error)


def test_a_user_an_acl_and_their_end_hold_on_the_other_node(
    nodes: list[NodeThread], administrator: FlyMQClient, user: str, clients: ExitStack
) -> None:
    topic = f"orders-of-{user}"
    administrator.create_topic(topic)
    administrator.access.create_user(user, user)
    client = clients.enter_context(once_allowed(lambda: log_in(nodes[1], user), AuthenticationFailed))

    def write() -> object:
        return client.send(topic, b"1")

    def read() -> object:
        return client.fetch(topic, 0, 0)

    for action in (write, read):
        with pytest.raises(AccessDenied, match="may not"):
            action()
    administrator.access.set_acl(topic, [user])
    for action in (write, read):
        once_allowed(action, AccessDenied)
    administrator.access.set_acl(topic, [f"{user}:read"])
    assert "may not write" in until_refused(write, AccessDenied)
    read()
    administrator.access.delete_acl(topic)
    assert "may not read" in until_refused(read, AccessDenied)


def test_a_disabled_user_is_refused_on_the_other_node(
    nodes: list[NodeThread], administrator: FlyMQClient, user: str, clients: ExitStack
) -> None:
    topic, name = f"payments-of-{user}", f"disabled-{user}"
    administrator.create_topic(topic)
    administrator.access.create_user(name, name, ["producer"])
    client = clients.enter_context(once_allowed(lambda: log_in(nodes[1], name), AuthenticationFailed))
    client.send(topic, b"1")
    administrator.access.update_user(name, enabled=False)
    assert "disabled" in until_refused(lambda: client.send(topic, b"2"), AuthenticationFailed)
    with pytest.raises(AuthenticationFailed, match="disabled"):
        log_in(nodes[1], name)
    administrator.access.update_user(name, enabled=True)
    once_allowed(lambda: client.send(topic, b"3"), AuthenticationFailed)


def test_a_schema_refuses_records_on_the_other_node(
    nodes: list[NodeThread], administrator: FlyMQClient, user: str, clients: ExitStack
) -> None:
    topic, schema = f"prices-of-{user}", f"price-{user}"
    administrator.create_topic(topic)
    client = clients.enter_context(log_in(nodes[1], ADMINISTRATOR))
    client.send(topic, b"no number")
    administrator.schemas.register(schema, NUMBER)
    administrator.schemas.bind(topic, schema)
    until_refused(lambda: client.send(topic, b"no number"), ValidationFailed)
    client.send(topic, b"7")
    administrator.schemas.bind(topic, None)
    once_allowed(lambda: client.send(topic, b"no number"), ValidationFailed)
