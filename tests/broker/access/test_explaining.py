"""What a principal may do is explained as the policy decides it, with the role or ACL that it follows from."""

from __future__ import annotations

import pytest

from penstock.broker.access.checks import SYSTEM, Operation
from penstock.errors import AccessDenied, UserNotFound
from penstock.log.api import Engine
from penstock.testing.clock import ManualClock
from tests.broker.accounts import broker_with_users, user


@pytest.mark.parametrize("default_public", [False, True])
async def test_rights_are_explained(engine: Engine, clock: ManualClock, default_public: bool) -> None:
    broker = broker_with_users(engine, clock, allow_anonymous=True, default_public=default_public)
    await broker.start()
    ann, admin = await user(broker, "ann", "consumer"), await user(broker, "root", "admin")
    await user(broker, "bob", "guest")
    await broker.acls.set_acl(SYSTEM, "shop/*", users=["bob:write"])
    await broker.acls.set_acl(SYSTEM, "news", public=True)
    await broker.acls.set_acl(SYSTEM, "group://billing*", users=["bob"])

    def why(name: str, operation: Operation, topic: str = "", group: str = "") -> tuple[bool, str]:
        rights = broker.explaining.rights(admin, name, topic, group).rights
        return next((each.allowed, each.why) for each in rights if each.operation is operation)

    assert why("ann", Operation.READ, "shop/a") == (True, "role consumer")
    assert why("bob", Operation.WRITE, "shop/a") == (True, "ACL shop/*")
    assert why("bob", Operation.READ, "news") == (True, "ACL news makes the topic public")
    assert why("bob", Operation.READ, "shop/a")[0] is False
    assert why("bob", Operation.DESCRIBE) == (True, "ACL shop/*")
    await user(broker, "carl", "guest")
    assert why("carl", Operation.DESCRIBE) == (True, "every user may ask, and sees only what else is allowed")
    assert why("ann", Operation.COMMIT, "shop/a", "other")[1].startswith("who may read the topic may commit")
    assert why("ann", Operation.COMMIT, "shop/a", "billing-1")[0] is False
    assert why("bob", Operation.COMMIT, "news", "billing-1") == (True, "ACL group://billing*")
    assert why("bob", Operation.READ, "plain")[0] is default_public
    if default_public:
        assert why("bob", Operation.READ, "plain")[1] == "topics without an ACL are public here"
    assert why("bob", Operation.READ, "__users")[0] is False

    key = await broker.api_keys.create(SYSTEM, "worker", ["producer"])
    assert key
    assert why("key:worker", Operation.WRITE, "shop/a") == (True, "role producer")
    for unknown in ("nobody", "key:nobody"):
        with pytest.raises(UserNotFound):
            broker.explaining.rights(admin, unknown)
    with pytest.raises(AccessDenied):
        broker.explaining.rights(ann, "bob")
    await broker.close()
