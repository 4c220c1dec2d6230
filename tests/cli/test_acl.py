"""`penstock acl` against a real broker."""

from __future__ import annotations

import json

from penstock.testing import RunningBroker
from tests.cli.conftest import Run


def test_acls_are_set_listed_and_deleted(run: Run, broker: RunningBroker) -> None:
    assert run("acl", "set", "orders.*", "-u", "ann", "-u", "bob:read", "-r", "guest").text == (
        "set the ACL of orders.*\n"
    )
    table = "topic     public  users          roles\norders.*  no      ann, bob:read  guest\n"
    assert run("acl", "list").text == table
    assert run("acl", "describe", "orders.*").text == table
    expected = {"topic": "orders.*", "public": False, "users": ["ann", "bob:read"], "roles": ["guest"]}
    assert json.loads(run("acl", "list", "--json").out) == [expected]
    assert json.loads(run("acl", "describe", "orders.*", "--json").out) == expected | {"exists": True}
    assert run("acl", "delete", "orders.*").text == "deleted the ACL of orders.*\n"
    assert run("acl", "describe", "orders.*").text == "orders.* has no ACL of its own; roles and patterns decide\n"


def test_what_cannot_be_is_refused(run: Run, broker: RunningBroker) -> None:
    result = run("acl", "set", "orders", "--public")
    assert (result.code, result.err) == (
        1,
        "error: invalid request: cannot make topic public because anonymous access is disabled in server configuration\n",
    )
