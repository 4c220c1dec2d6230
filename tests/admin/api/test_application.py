"""What every request to the API passes: origin, host, path, method, body, rate."""

from __future__ import annotations

import socket

import pytest

from penstock.admin.api import application
from penstock.admin.api.table import PREFIX
from penstock.net.limits import AdminLimits
from tests.admin.api.asking import LOGIN_REQUIRED, Asking, asking, new_key


def test_a_refusal_is_a_problem_document(ask: Asking) -> None:
    answer = ask("GET", "/topics/none")
    assert answer.status == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json == {
        "type": "urn:penstock:error:topic_not_found",
        "title": "Not Found",
        "status": 404,
        "detail": "topic not found: none",
        "code": "topic_not_found",
        "retriable": False,
    }


def test_answers_forbid_caching_sniffing_and_framing(ask: Asking) -> None:
    headers = ask("GET", "/status").headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert not any(name.startswith("access-control-") for name in headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_page_of_another_origin_can_do_nothing(ask: Asking, method: str, headers: dict[str, str]) -> None:
    answer = ask(method, "/topics/orders", **headers)
    assert (answer.status, answer.code) == (403, "cross_origin")


def test_a_page_of_its_own_origin_may_ask(ask: Asking) -> None:
    host = ask.broker.addresses["admin"]
    assert ask("GET", "/status", origin=f"http://{host}", sec_fetch_site="same-origin").status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9600", "127.0.0.1.evil.example", "", "[", "a@127.0.0.1"]
)
def test_a_host_that_is_not_this_machine_is_refused_where_nobody_logs_in(ask: Asking, host: str) -> None:
    answer = ask("GET", "/status", host=host)
    assert (answer.status, answer.code) == (421, "wrong_host")


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "[::1]:9600", "127.0.0.1"])
def test_names_of_this_machine_are_good_hosts(ask: Asking, host: str) -> None:
    assert ask("GET", "/status", host=host).status == 200


def test_the_host_does_not_matter_where_people_log_in() -> None:
    with asking(listeners=LOGIN_REQUIRED) as ask:
        assert ask("GET", "/status", host="broker.example").status == 401


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_body_that_a_form_could_send_is_refused(ask: Asking, kind: str) -> None:
    answer = ask("POST", "/topics", b'{"name": "t"}', content_type=kind)
    assert (answer.status, answer.code) == (415, "not_json")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"name": 1}', b"{}", b'{"name": "x", "colour": "red"}', b"\xff", b'{"name":' + b"[" * 5000],
)
def test_a_body_that_cannot_be_read_is_refused(ask: Asking, body: bytes) -> None:
    answer = ask("POST", "/topics", body)
    assert (answer.status, answer.code) == (400, "invalid_request")


def test_a_body_beyond_the_bound_is_refused(ask: Asking) -> None:
    answer = ask("POST", "/topics", b" " * (AdminLimits().body_bytes_max + 1))
    assert (answer.status, answer.code) == (413, "body_too_large")


def test_a_stranger_may_send_little() -> None:
    with asking(listeners=LOGIN_REQUIRED) as ask:
        body = b" " * (application.STRANGER_BODY_BYTES_MAX + 1)
        assert ask("POST", "/topics", body).code == "body_too_large"
        assert ask.with_key(new_key(ask.broker, "worker", "admin"))("POST", "/topics", body).code == "invalid_request"


@pytest.mark.parametrize("path", [f"{PREFIX}/topics", "/registry/subjects/x/versions"])
def test_a_client_that_goes_away_is_no_bug(ask: Asking, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    host, _, port = ask.broker.addresses["admin"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{{"
        client.sendall(head.encode())
        assert has_connections(ask, 2)
    assert has_connections(ask, 1)
    assert "request_failed" not in "".join(capsys.readouterr())


def has_connections(ask: Asking, count: int) -> bool:
    """Whether the address has this many connections, that of `ask` among them, before that many requests are answered."""
    admin = ask.broker.server.admin
    assert admin is not None
    return any(ask("GET", "/session").status == 200 and len(admin._http.connections) == count for _ in range(300))


@pytest.mark.parametrize("query", ["colour=red", "limit=0", "limit=1&limit=2", "limit=%ff", "limit=" + "1" * 9000])
def test_a_query_that_cannot_be_read_is_refused(ask: Asking, query: str) -> None:
    answer = ask("GET", f"/topics?{query}")
    assert (answer.status, answer.code) == (400, "invalid_request")


def test_what_an_endpoint_does_not_take_is_refused(ask: Asking) -> None:
    assert ask("GET", "/status?x=1").status == 400
    assert ask("GET", "/status", {"x": 1}).status == 400


@pytest.mark.parametrize("path", ["/", "/nothing", "/topics/a/b", "/topics/"])
def test_a_path_that_is_not_there_is_not_found(ask: Asking, path: str) -> None:
    answer = ask("GET", path)
    assert answer.status in (400, 404)
    assert answer.code in ("invalid_request", "path_not_found")


def test_a_method_that_a_path_does_not_have_is_refused_with_those_it_has(ask: Asking) -> None:
    answer = ask("PUT", "/topics")
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert sorted(answer.headers["allow"].split(", ")) == ["GET", "POST"]


def test_names_in_paths_may_have_slashes_and_line_ends(ask: Asking) -> None:
    ask.ok("POST", "/topics", {"name": "site/hall ä"})
    assert ask.ok("GET", "/topics/site%2Fhall%20%C3%A4")["name"] == "site/hall ä"
    assert ask("GET", "/topics/a%0Ab").code == "topic_not_found"
    assert ask("GET", "/topics/a%ff").code == "invalid_request"


def test_an_internal_topic_is_closed_here_too(ask: Asking) -> None:
    answer = ask("GET", "/topics/__users/records")
    assert (answer.status, answer.code) == (403, "access_denied")


def test_a_bug_is_answered_with_a_problem(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ask.broker.server.broker.cluster, "status", fail)
    answer = ask("GET", "/status")
    assert (answer.status, answer.code) == (500, "internal")


def test_an_address_that_asks_too_often_has_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "Rates", lambda clock, per_s: Slow())
    with asking() as ask:
        answer = ask("GET", "/status")
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "rate_limited", "3")
    assert answer.json["retriable"] is True


class Slow:
    def wait_s(self, host: str) -> float:
        return 2.5


def test_without_a_login_the_api_is_not_served_to_other_machines() -> None:
    with asking() as ask:
        admin = ask.broker.server.admin
        assert admin is not None
        admin._door._exposed = True
        answer = ask("GET", "/topics")
        assert (answer.status, answer.code) == (403, "login_not_configured")


def test_the_prefix_alone_is_not_a_path(ask: Asking) -> None:
    assert PREFIX == "/api/v1"
    assert ask("GET", "").status == 404
