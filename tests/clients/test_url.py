from __future__ import annotations

from pathlib import Path

import pytest

from penstock.clients.url import HOSTS_MAX, Address, client_tls, parse_url, tls_for
from penstock.errors import InvalidRequest
from penstock.units import Address as HostPort


def test_a_full_address_is_taken_apart() -> None:
    address = parse_url("flymqs://ann:s%40cret@[::1]:9093?ca=ca.pem&cert=me.pem", port=9092)
    assert address == Address("flymqs", "::1", 9093, "ann", "s@cret", {"ca": "ca.pem", "cert": "me.pem"})
    assert str(address) == "flymqs://[::1]:9093"


def test_the_port_defaults_to_the_protocols_own() -> None:
    assert parse_url("flymq://broker.example", port=9092) == Address("flymq", "broker.example", 9092)


def test_several_hosts_share_credentials_and_options() -> None:
    address = parse_url("flymqs://ann:a%2Cb%40c@a.example, [::1]:9093,10.0.0.7?ca=ca.pem", port=9092)
    assert address.hosts == (HostPort("a.example", 9092), HostPort("::1", 9093), HostPort("10.0.0.7", 9092))
    assert str(address) == "flymqs://a.example:9092,[::1]:9093,10.0.0.7:9092"
    assert address.nodes == tuple(
        Address("flymqs", host, port, "ann", "a,b@c", {"ca": "ca.pem"}) for host, port in address.hosts
    )


def test_the_order_of_the_hosts_is_drawn_unless_the_address_keeps_it() -> None:
    assert not parse_url("flymq://a,b", port=1).in_order
    assert not parse_url("felix://a,b?hosts=random", port=1).in_order
    ordered = parse_url("blipmq://key@a,b?hosts=in-order&ca=ca.pem", port=1)
    assert ordered.in_order
    assert str(ordered) == "blipmq://a:1,b:1"


@pytest.mark.parametrize(
    "url",
    [
        "ann:secret@a:9092",
        "flymq://ann:secret@a:port",
        "flymq://ann:secret@a:99999?ca=file:///x",
        "flymq://ann:secret@a:9092;flymq://ann:secret@b:9092",
        "flymq://ann:secret@a:port,flymq://ann:secret@b:9092",
        "flymq://ann:secret@,flymq://ann:secret@b",
        "flymq://ann:secret/x@a",
        "flymq://ann/secret@a",
        "flymq://ann:1,,secret/y@a",
        "flymq://ann:secret#x@a",
        "flymq://ann:secret@a..b",
        "flymq://ann:secret@a?timeout=3",
    ],
)
def test_no_error_shows_a_password(url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_url(url, port=9092)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("127.0.0.1:9092", "write it as scheme://host:port"),
        ("", "write it as scheme://host:port"),
        ("flymq://", "write it as scheme://host:port"),
        ("flymq://host:99999", "Port out of range"),
        ("flymq://host:port", "not a broker address"),
        ("flymq://host/topic", "ends after the port; remove '/topic'"),
        ("flymq://host?timeout=3", "'timeout' is unknown"),
        ("flymq://host?ca=", "'ca' is unknown or empty"),
        ("flymq://a,b?hosts=shuffled", "option hosts is 'shuffled': write hosts=random or hosts=in-order"),
        ("flymq://a,,b", "'a,,b' has a comma without a host next to it"),
        ("flymq://a,", "has a comma without a host next to it"),
        ("flymq://a,:9093", "has a comma without a host next to it"),
        ("flymq://,a", "write it as scheme://host:port"),
        ("flymq://a,b:99999", "Port out of range"),
        ("flymq://a,fe80::1", "is not a broker address"),
        ("flymq://a:9092,b,a", "'a:9092,b,a' names a host twice"),
        ("flymq://a/,b", "ends after the port; remove '/,b'"),
        ("flymq://a,flymq://b", "one scheme: write flymq://host1:port,host2:port"),
        ("flymq://ann:pw@a,ann:pw@b", "comma before its @: name user and password once"),
        ("flymq://node..example,b", "is not a broker address: "),
        ("flymq://ann:pw/@a", "write those in a password as %2F, %3F and %23"),
        ("flymq://ann:pw?@a", "write those in a password as %2F, %3F and %23"),
        ("flymq://a,ann:pw@b", "comma before its @: name user and password once"),
        (f"flymq://{','.join(f'h{number}' for number in range(HOSTS_MAX + 1))}", "has up to 16 hosts, got 17"),
    ],
)
def test_an_address_that_makes_no_sense_is_refused_with_what_to_change(url: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        parse_url(url, port=9092)


def test_a_password_never_shows_in_an_error_or_in_a_repr() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_url("flymq://ann:hunter2@host:port", port=9092)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidRequest) as caught:
        parse_url("flymq://host,ann:hunter2@host:port", port=9092)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(parse_url("flymq://ann:hunter2@host", port=9092))


def test_missing_tls_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot load the TLS files .*absent\.pem"):
        client_tls(ca=str(tmp_path / "absent.pem"))


@pytest.mark.parametrize("given", [None, True, False])
@pytest.mark.parametrize(
    ("scheme", "is_secure"), [("flymqs", True), ("flymq", False), ("rustlogs+json", True), ("rustlog+json", False)]
)
def test_tls_is_what_the_caller_says_else_what_the_address_says(
    given: bool | None, scheme: str, is_secure: bool
) -> None:
    address = parse_url(f"{scheme}://host", port=9092)
    wanted = is_secure if given is None else given
    assert (tls_for(address, given) is not None) == wanted
    context = client_tls()
    assert tls_for(address, context) is context
