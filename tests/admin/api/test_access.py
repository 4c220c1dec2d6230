"""Users, roles, ACLs, keys, the audit trail and rights over the API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.admin.api.asking import LOGIN_REQUIRED, Asking, asking, new_key


@pytest.fixture(scope="module")
def ask() -> Iterator[Asking]:
    with asking(listeners=LOGIN_REQUIRED) as found:
        yield found.with_key(new_key(found.broker, "root", "admin"))


def test_a_user_is_created_changed_and_deleted(ask: Asking) -> None:
    created = ask.ok("POST", "/users", {"name": "ann", "password": "first", "roles": ["consumer"]})
    assert (created["roles"], created["permissions"], created["enabled"]) == (["consumer"], ["read"], True)
    assert ask("POST", "/users", {"name": "ann", "password": "x"}).code == "user_exists"
    assert ask.ok("PATCH", "/users/ann", {"roles": ["producer"]})["roles"] == ["producer"]
    assert "ann" in [each["name"] for each in ask.ok("GET", "/users")]
    ask.ok("PUT", "/users/ann/password", {"password": "second"})
    ann = ask.with_password("ann", "second")
    assert ann("PUT", "/users/ann/password", {"password": "third"}).code == "authentication_failed"
    assert ann("PUT", "/users/ann/password", {"password": "third", "current_password": "second"}).status == 204
    assert ask("DELETE", "/users/ann").status == 204
    assert ask("GET", "/users/ann").code == "user_not_found"


def test_a_role_is_set_and_deleted(ask: Asking) -> None:
    ask.ok("PUT", "/roles/auditor", {"permissions": ["describe"], "description": "Looks"})
    roles = {each["name"]: each for each in ask.ok("GET", "/roles")}
    assert roles["auditor"] == {
        "name": "auditor",
        "permissions": ["describe"],
        "description": "Looks",
        "built_in": False,
    }
    assert roles["admin"]["built_in"] is True
    assert ask("PUT", "/roles/admin", {"permissions": []}).code == "invalid_request"
    assert ask("DELETE", "/roles/auditor").status == 204


def test_an_acl_is_set_and_deleted(ask: Asking) -> None:
    acl = ask.ok("PUT", "/acls/shop%2F*", {"users": ["bob:read"], "roles": ["guest"]})
    assert acl == {"pattern": "shop/*", "public": False, "users": ["bob:read"], "roles": ["guest"]}
    assert acl in ask.ok("GET", "/acls")
    assert ask("DELETE", "/acls/shop%2F*").status == 204
    assert acl not in ask.ok("GET", "/acls")


def test_a_key_is_shown_once_and_revoked(ask: Asking) -> None:
    created = ask.ok("POST", "/keys", {"name": "worker", "roles": ["consumer"]})
    assert ask.with_key(created["key"]).ok("GET", "/session")["principal"] == "key:worker"
    listed = [each for each in ask.ok("GET", "/keys") if each["name"] == "worker"]
    assert listed[0]["created_by"] == "key:root"
    assert created["key"] not in str(listed)
    assert ask("DELETE", "/keys/worker").status == 204
    assert ask("DELETE", "/keys/worker").code == "entry_not_found"


def test_what_was_done_is_in_the_audit_trail(ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "audited"})
    page = ask.ok("GET", "/audit?type=topic.create&resource=audited")
    assert page["total"] == 1
    event = page["events"][0]
    assert (event["user"], event["client_ip"], event["details"]) == ("key:root", "127.0.0.1", {"partitions": "1"})


def test_what_a_principal_may_do_is_told_with_the_reason(ask: Asking) -> None:
    ask.ok("POST", "/users", {"name": "carl", "password": "x", "roles": ["guest"]})
    ask.ok("PUT", "/acls/orders", {"users": ["carl:read"]})
    told = ask.ok("GET", "/principals/carl/rights?topic=orders")
    rights = {each["operation"]: (each["allowed"], each["why"]) for each in told["rights"]}
    assert told["roles"] == ["guest"]
    assert rights["read"] == (True, "ACL orders")
    assert rights["write"][0] is False
    assert "may not write topic orders" in rights["write"][1]
    everything = ask.ok("GET", "/principals/key:root/rights")["rights"]
    assert all(each["allowed"] and each["why"] == "role admin" for each in everything)
    assert ask("GET", "/principals/nobody/rights").code == "user_not_found"
    assert ask("GET", "/principals/key:nobody/rights").code == "user_not_found"


def test_the_configuration_hides_secrets(ask: Asking) -> None:
    settings = {each["name"]: each for each in ask.ok("GET", "/configuration")}
    assert settings["listeners.flymq.auth"] == {"name": "listeners.flymq.auth", "value": "required", "origin": "code"}
    assert settings["limits.record_bytes_max"]["origin"] == "default"
    assert "test-key" not in str(settings)
    assert "*" in settings["listeners.blipmq.api_keys"]["value"]
