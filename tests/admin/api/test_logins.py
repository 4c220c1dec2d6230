"""Logging in to the API: keys, passwords, sessions; how sessions end, and what a write of a session needs."""

from __future__ import annotations

from collections.abc import Iterator
from http.cookies import SimpleCookie

import pytest

from penstock.admin.api.logins import COOKIE
from penstock.broker.access.checks import SYSTEM
from penstock.broker.limits import BrokerLimits
from penstock.net.limits import AdminLimits
from penstock.testing.clock import ManualClock
from tests.admin.api.asking import LOGIN_REQUIRED, Answer, Asking, asking, new_key, on_loop

LIMITS = BrokerLimits()


@pytest.fixture
def ask() -> Iterator[Asking]:
    with asking(listeners=LOGIN_REQUIRED) as found:
        users = found.broker.server.broker.users
        on_loop(found.broker, users.create_user(SYSTEM, "ann", "secret", ["admin"]))
        yield found


def in_session(ask: Asking, answer: Answer, *, csrf: bool = True) -> Asking:
    assert answer.status == 201, answer.content
    token = SimpleCookie(answer.headers["set-cookie"])[COOKIE].value
    headers = {"cookie": f"{COOKIE}={token}"}
    return ask.with_headers(**headers, **({"x_csrf_token": answer.json["csrf_token"]} if csrf else {}))


def test_a_session_begins_with_a_password_and_ends_with_a_logout(ask: Asking) -> None:
    assert ask.ok("GET", "/session")["principal"] == ""
    answer = ask("POST", "/session", {"user": "ann", "password": "secret"})
    session = in_session(ask, answer)
    assert session.ok("GET", "/session")["principal"] == "ann"
    session.ok("POST", "/topics", {"name": "orders"})
    left = session("DELETE", "/session")
    assert left.status == 204
    assert "Max-Age=0" in left.headers["set-cookie"]
    assert session("GET", "/topics").status == 401


def test_the_cookie_is_kept_from_scripts_and_from_other_sites(ask: Asking) -> None:
    cookie = ask("POST", "/session", {"user": "ann", "password": "secret"}).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie  # there is no TLS here, and a browser would not send it back


def test_a_write_of_a_session_needs_its_csrf_token(ask: Asking) -> None:
    session = in_session(ask, ask("POST", "/session", {"user": "ann", "password": "secret"}), csrf=False)
    assert session("GET", "/topics").status == 200
    for token in ({}, {"x_csrf_token": "guess"}, {"x_csrf_token": ""}):
        answer = session("POST", "/topics", {"name": "orders"}, **token)
        assert (answer.status, answer.code) == (403, "access_denied")
    assert session.ok("GET", "/topics")["topics"] == []


def test_an_api_key_is_a_bearer_token_until_it_is_revoked(ask: Asking) -> None:
    with_key = ask.with_key(new_key(ask.broker, "worker", "admin"))
    with_key.ok("POST", "/topics", {"name": "orders"})
    with_key.ok("DELETE", "/keys/worker")
    assert with_key("GET", "/topics").code == "authentication_failed"


def test_a_session_ends_with_the_key_that_began_it(ask: Asking) -> None:
    session = in_session(ask, ask("POST", "/session", {"key": new_key(ask.broker, "worker", "admin")}))
    assert session.ok("GET", "/session")["principal"] == "key:worker"
    session.ok("DELETE", "/keys/worker")
    assert session("GET", "/topics").status == 401


def test_a_user_that_is_disabled_may_do_nothing_more_in_its_session(ask: Asking) -> None:
    users = ask.broker.server.broker.users
    on_loop(ask.broker, users.create_user(SYSTEM, "bob", "secret", ["consumer"]))
    session = in_session(ask, ask("POST", "/session", {"user": "bob", "password": "secret"}))
    assert session("GET", "/topics").status == 200
    on_loop(ask.broker, users.update_user(SYSTEM, "bob", (), False))
    assert session("GET", "/topics").status == 401


def test_a_session_ends_with_the_password_that_began_it(ask: Asking) -> None:
    users = ask.broker.server.broker.users
    on_loop(ask.broker, users.create_user(SYSTEM, "bob", "secret", ["consumer"]))
    session = in_session(ask, ask("POST", "/session", {"user": "bob", "password": "secret"}))
    on_loop(ask.broker, users.set_password(SYSTEM, "bob", "another"))
    assert session("GET", "/topics").status == 401
    session = in_session(ask, ask("POST", "/session", {"user": "bob", "password": "another"}))
    on_loop(ask.broker, users.update_user(SYSTEM, "bob", ["producer"], None))
    assert session("GET", "/topics").status == 200  # other changes end no session


def test_a_new_user_does_not_inherit_the_session_of_a_deleted_one_of_the_same_name(ask: Asking) -> None:
    users = ask.broker.server.broker.users
    on_loop(ask.broker, users.create_user(SYSTEM, "bob", "secret", ["guest"]))
    session = in_session(ask, ask("POST", "/session", {"user": "bob", "password": "secret"}))
    on_loop(ask.broker, users.delete_user(SYSTEM, "bob"))
    on_loop(ask.broker, users.create_user(SYSTEM, "bob", "secret", ["admin"]))
    assert session.ok("GET", "/session")["principal"] == ""
    assert session("GET", "/users").status == 401


def limit_sessions(ask: Asking, monkeypatch: pytest.MonkeyPatch, limits: AdminLimits) -> None:
    admin = ask.broker.server.admin
    assert admin is not None
    monkeypatch.setattr(admin._door.logins, "limits", limits)


def test_nobody_ends_the_sessions_of_others_by_logging_in_often(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_sessions(ask, monkeypatch, AdminLimits(sessions_max=4, sessions_per_user_max=2))
    session = in_session(ask, ask("POST", "/session", {"user": "ann", "password": "secret"}))
    key = new_key(ask.broker, "worker", "guest")
    others = [in_session(ask, ask("POST", "/session", {"key": key})) for _ in range(5)]
    assert session("GET", "/topics").status == 200
    assert [each.ok("GET", "/session")["principal"] != "" for each in others] == [False, False, False, True, True]


def test_a_login_in_a_session_ends_that_session(ask: Asking) -> None:
    session = in_session(ask, ask("POST", "/session", {"user": "ann", "password": "secret"}))
    assert session("POST", "/session", {"user": "ann", "password": "guess"}).status == 401
    assert session("GET", "/topics").status == 200
    after = in_session(ask, session("POST", "/session", {"user": "ann", "password": "secret"}))
    assert session("GET", "/topics").status == 401
    assert after("GET", "/topics").status == 200


def test_a_session_ends_when_it_is_not_used_and_after_half_a_day(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = ask.broker.server.admin
    assert admin is not None
    held = admin._door.logins
    session = in_session(ask, ask("POST", "/session", {"user": "ann", "password": "secret"}))
    [stored] = held._sessions.values()
    stored.used_s -= held.limits.session_idle_s_max
    assert session("GET", "/topics").status == 401
    session = in_session(ask, ask("POST", "/session", {"user": "ann", "password": "secret"}))
    [stored] = held._sessions.values()
    stored.started_s -= held.limits.session_s_max
    assert session("GET", "/topics").status == 401
    assert not held._sessions


def test_sessions_are_bounded_and_the_oldest_gives_way(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_sessions(ask, monkeypatch, AdminLimits(sessions_max=2))
    sessions = [in_session(ask, ask("POST", "/session", {"user": "ann", "password": "secret"})) for _ in range(3)]
    assert [each("GET", "/topics").status for each in sessions] == [401, 200, 200]


def test_a_password_comes_with_each_request_where_a_client_sends_basic(ask: Asking) -> None:
    assert ask.with_password("ann", "secret")("GET", "/topics").status == 200
    wrong = ask.with_password("ann", "guess")("GET", "/topics")
    assert (wrong.status, wrong.code, wrong.headers["www-authenticate"]) == (401, "authentication_failed", "Bearer")
    assert ask("GET", "/topics", authorization="Basic !").code == "authentication_failed"
    assert ask("GET", "/topics", authorization="Digest x").code == "authentication_failed"


def test_failed_logins_are_throttled_and_audited() -> None:
    with asking(ManualClock(), listeners=LOGIN_REQUIRED) as ask:  # its clock stands still, so the delay does not end
        for _ in range(LIMITS.login_failures_per_user_max + 1):
            assert ask("POST", "/session", {"user": "ann", "password": "guess"}).status == 401
        refused = ask("POST", "/session", {"user": "ann", "password": "guess"})
        assert "too many failed attempts" in refused.json["detail"]
        auditor = ask.with_key(new_key(ask.broker, "auditor", "admin"))
        failures = auditor.ok("GET", "/audit?type=auth.failure")["events"]
    assert {"failure", "throttled"} <= {each["result"] for each in failures}
    assert failures[0]["client_ip"] == "127.0.0.1"


@pytest.mark.parametrize("body", [{}, {"user": "ann", "key": "k"}])
def test_a_login_names_a_user_or_a_key(ask: Asking, body: dict[str, str]) -> None:
    assert ask("POST", "/session", body).code == "invalid_request"


def test_nobody_logs_in_where_everybody_is_trusted() -> None:
    with asking() as ask:
        assert ask.ok("GET", "/session")["login_required"] is False
        assert ask("POST", "/session", {"user": "ann", "password": "x"}).code == "authentication_failed"


@pytest.mark.parametrize("cookie", [f"{COOKIE}=guess", f"{COOKIE}=", "x=;;=", "\x7f"])
def test_a_cookie_that_names_no_session_is_nobody(ask: Asking, cookie: str) -> None:
    assert ask.ok("GET", "/session", cookie=cookie)["principal"] == ""
