"""Every endpoint with every kind of principal: the answer is the access policy's, both ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.admin.api.table import ENDPOINTS, Endpoint
from penstock.broker.access.checks import SYSTEM, Operation, Principal, Resource, ResourceKind, is_allowed
from penstock.log.api import TopicConfig
from tests.admin.api.asking import LOGIN_REQUIRED, Asking, asking, new_key, on_loop

NAMES = {"partition": "0", "offset": "0", "version": "1", "principal": "nobody"}
BODIES: dict[str, Any] = {
    "create_topic": {"name": "orders"},
    "alter_topic": {"settings": {"compression": "zstd"}},
    "add_partitions": {"partitions": 2},
    "truncate_topic": {"mode": "end"},
    "bind_topic": {"schema": None},
    "produce_records": {"records": [{"value": "x"}]},
    "reset_group": {"topic": "orders", "to": "earliest"},
    "reset_subscription": {"to": "earliest"},
    "replay_dead_letters": {},
    "register_schema": {"type": "json", "definition": "{}"},
    "check_schema": {"type": "json", "definition": "{}"},
    "validate_value": {"value": "{}"},
    "create_user": {"name": "new", "password": "secret"},
    "update_user": {"enabled": True},
    "set_password": {"password": "secret"},
    "set_role": {"permissions": []},
    "set_acl": {"users": ["ann"]},
    "create_key": {"name": "new"},
    "start_inspection": {"listener": "none"},
}
OPEN = {"get_session", "log_in", "log_out"}
ONLY = {f"only-{operation.value}": operation for operation in Operation}
ROLES = ["admin", "producer", "consumer", "guest", *ONLY]


def resource_of(endpoint: Endpoint) -> Resource:
    assert endpoint.right is not None
    kind = endpoint.right.kind
    if kind is ResourceKind.GROUP and endpoint.right.operation is Operation.COMMIT:
        return Resource(kind, "subscription" if "subscription" in endpoint.parameters else "group", "orders")
    return Resource(kind, {ResourceKind.TOPIC: "orders", ResourceKind.BROKER: ""}.get(kind, kind.value))


def path_of(endpoint: Endpoint) -> str:
    path = endpoint.path
    for name in endpoint.parameters:
        path = path.replace(f"{{{name}}}", NAMES.get(name, "orders" if name == "topic" else name))
    return path


@pytest.fixture(scope="module")
def principals() -> Iterator[tuple[Asking, dict[str, Asking]]]:
    with asking(listeners=LOGIN_REQUIRED) as ask:
        broker = ask.broker.server.broker
        on_loop(ask.broker, broker.topics.create(SYSTEM, "orders", TopicConfig()))
        for role, operation in ONLY.items():
            on_loop(ask.broker, broker.users.set_role(SYSTEM, role, [operation.value]))
        yield ask, {role: ask.with_key(new_key(ask.broker, f"of-{role}", role)) for role in ROLES}


def test_only_sessions_are_open_to_everybody() -> None:
    assert {each.name for each in ENDPOINTS if each.right is None} == OPEN


def test_every_endpoint_with_a_body_has_an_example_here() -> None:
    assert {each.name for each in ENDPOINTS if each.body is not None} - OPEN == set(BODIES)


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if each.right is not None], ids=lambda each: each.name)
def test_an_endpoint_is_open_to_those_whom_the_policy_allows(
    principals: tuple[Asking, dict[str, Asking]], endpoint: Endpoint
) -> None:
    ask, by_role = principals
    broker, right = ask.broker.server.broker, endpoint.right
    assert right is not None
    outcomes: set[bool] = set()
    for role, asks in by_role.items():
        principal = Principal(f"key:of-{role}", frozenset({role}))
        expected = is_allowed(broker._accounts.rules, principal, right.operation, resource_of(endpoint))
        answer = asks(endpoint.method, path_of(endpoint), BODIES.get(endpoint.name))
        assert (answer.status not in (401, 403)) is expected, (role, answer.status, answer.content)
        assert expected or answer.code == "access_denied"
        outcomes.add(expected)
    nobody = ask(endpoint.method, path_of(endpoint), BODIES.get(endpoint.name))
    assert (nobody.status, nobody.code) == (401, "authentication_required")
    assert True in outcomes
    assert False in outcomes or right.operation is Operation.DESCRIBE
