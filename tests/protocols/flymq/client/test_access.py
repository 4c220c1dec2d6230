"""`client.access` against a real broker, without a loop of the caller's own; the async client is what it drives."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator

import pytest

import penstock
from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationRequired,
    InvalidRequest,
    TopicNotFound,
    UserExists,
    UserNotFound,
)
from penstock.protocols.flymq.client.access import AsyncAccess, Identity
from penstock.protocols.flymq.operations.access import AclDescription, AuditQuery, RoleDescription
from penstock.protocols.flymq.sync import Access, FlyMQClient
from penstock.testing import RunningBroker


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with RunningBroker(dev=True, listeners={"flymq": {"auth": "required"}}) as broker:
        yield broker


@pytest.fixture
def admin(broker: RunningBroker) -> Iterator[FlyMQClient]:
    with connect(broker, "admin:admin@") as client:
        yield client


def connect(broker: RunningBroker, who: str = "") -> FlyMQClient:
    return FlyMQClient(f"flymq://{who}{broker.address}", options=ClientOptions(retry=NO_RETRY))


@pytest.mark.parametrize("dialect", ["auto", "spec", "native"])
@pytest.mark.parametrize("wanted", [None, "x"], ids=["no filter", "filter"])
def test_our_client_is_told_the_same_in_every_dialect(dialect: str, wanted: str | None) -> None:
    with RunningBroker(dev=True, listeners={"flymq": {"auth": "required", "dialect": dialect}}) as broker:
        with pytest.raises(AuthenticationFailed, match=r"refuses user 'admin': invalid username or password$"):
            connect(broker, "admin:guess@").topics()
        with connect(broker, "admin:admin@") as client:
            client.create_topic("orders")
            client.fetch("orders", 0, 0, filter=wanted)
            assert client.access.whoami() == Identity("admin", ["admin"], ["read", "write", "admin"])
            with pytest.raises(TopicNotFound) as refused:
                client.fetch("nope", 0, 0, filter=wanted)
            assert refused.value.message == "topic not found: nope"


def test_both_twins_have_the_same_calls_with_the_same_arguments() -> None:
    def surface(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert surface(Access) == surface(AsyncAccess)


def test_an_administrator_can_do_everything(admin: FlyMQClient, broker: RunningBroker) -> None:
    access = admin.access
    assert access.whoami() == Identity("admin", ["admin"], ["read", "write", "admin"])
    access.create_user("ann", "secret", ["guest"])
    access.update_user("ann", ["consumer"])
    assert (access.user("ann").roles, access.user("ann").permissions) == (["consumer"], ["read"])
    access.set_role("ops", ["create"], "they")
    assert access.roles()[-1] == RoleDescription("ops", ["create"], "they")
    access.delete_role("ops")
    access.set_acl("orders.*", ["ann:write"], ["guest"])
    assert access.acls() == [AclDescription("orders.*", True, False, False, ["ann:write"], ["guest"])]
    assert access.acl("orders.*").users == ["ann:write"]
    access.delete_acl("orders.*")
    assert not access.acl("orders.*").exists
    access.set_password("ann", "new")
    with connect(broker, "ann:new@") as ann:
        ann.access.set_password("ann", "newer", "new")
        assert ann.access.whoami() == Identity("ann", ["consumer"], ["read"])
        access.update_user("ann", enabled=False)
        with pytest.raises(AuthenticationFailed, match="user account is disabled"):
            ann.topics()
    assert [user.user for user in access.users()] == ["ann"]
    access.delete_user("ann")
    page = access.audit(AuditQuery(types=["user.delete"]))
    assert [(event.user, event.resource, event.client_ip) for event in page.events] == [("admin", "ann", "127.0.0.1")]
    assert len(json.loads(access.export_audit("json", AuditQuery(types=["user.create"])))) == 1
    assert access.export_audit("csv").startswith(b"id,ts_ms,type,user,")
    assert access.cluster_status().nodes == [("penstock", broker.address, "online")]


def test_refusals_have_classes_of_their_own(admin: FlyMQClient, broker: RunningBroker) -> None:
    with pytest.raises(AuthenticationFailed, match="refuses user 'admin': invalid username or password"):
        connect(broker, "admin:guess@")
    with connect(broker) as nobody:
        assert nobody.access.whoami() is None
        with pytest.raises(AuthenticationRequired, match="log in to write topic orders"):
            nobody.send("orders", b"x")
    admin.access.create_user("ann", "secret")
    with pytest.raises(UserExists):
        admin.access.create_user("ann", "secret")
    with pytest.raises(UserNotFound):
        admin.access.user("bob")
    with pytest.raises(InvalidRequest, match="there is no role boss"):
        admin.access.update_user("ann", ["boss"])
    with connect(broker, "ann:secret@") as ann:
        with pytest.raises(AccessDenied, match="unauthorized: ann may not write topic orders"):
            ann.send("orders", b"x")
        assert ann.topics() == []


def test_a_client_logs_in_again_when_it_comes_back(broker: RunningBroker) -> None:
    with penstock.connect(f"flymq://admin:admin@{broker.address}") as client:
        client.create_topic("orders")
        broker.restart()
        assert client.topics() == ["orders"]
