"""Sizes, durations and addresses: what is read, what is refused and with which words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.units import (
    NUMBER_MAX,
    format_duration_ms,
    format_size,
    is_loopback,
    network_of,
    parse_address,
    parse_duration_ms,
    parse_duration_s,
    parse_size,
    round_size,
)


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        (0, 0),
        (4096, 4096),
        (4096.0, 4096),
        ("4096", 4096),
        ("4096 B", 4096),
        ("128 MiB", 128 << 20),
        ("128MiB", 128 << 20),
        (" 1 gib ", 1 << 30),
        ("2 GB", 2_000_000_000),
        ("1.5 KiB", 1536),
        ("1 TiB", 1 << 40),
    ],
)
def test_a_size_is_a_number_of_bytes_or_has_a_unit(written: int | str, size_bytes: int) -> None:
    assert parse_size(written) == size_bytes


@pytest.mark.parametrize("written", ["", "MiB", "12 parsecs", "-1", "1 2", "1e3", "1_000", "1" * 65, "\u0661"])
def test_what_is_no_size_is_refused_with_an_example(written: str) -> None:
    with pytest.raises(ValueError, match="is not a size: write a number of bytes, or a number with a unit"):
        parse_size(written)


@pytest.mark.parametrize("written", [-1, float("nan"), float("inf"), NUMBER_MAX + 1, "9999999999999 TiB"])
def test_a_size_outside_the_range_is_refused(written: float | str) -> None:
    with pytest.raises(ValueError, match="is out of range"):
        parse_size(written)


def test_a_size_is_a_whole_number_of_bytes() -> None:
    with pytest.raises(ValueError, match=r"'0\.3 KiB' is not a whole number of bytes"):
        parse_size("0.3 KiB")


@pytest.mark.parametrize(
    ("written", "duration_ms"),
    [
        (0, 0),
        (250, 250),
        ("250", 250),
        ("500ms", 500),
        ("30 s", 30_000),
        ("5m", 300_000),
        ("5min", 300_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("7d", 604_800_000),
        ("2W", 1_209_600_000),
        ("1.5s", 1500),
    ],
)
def test_a_duration_is_a_number_of_milliseconds_or_has_units(written: int | str, duration_ms: int) -> None:
    assert parse_duration_ms(written) == duration_ms


def test_where_a_setting_counts_seconds_a_plain_number_does_too() -> None:
    assert parse_duration_s(30) == 30.0
    assert parse_duration_s("0.5") == 0.5
    assert parse_duration_s("500ms") == 0.5
    assert parse_duration_s("5m") == 300.0


@pytest.mark.parametrize("written", ["", "d", "7 fortnights", "1h30", "-5s", "1" * 65, "h1"])
def test_what_is_no_duration_is_refused_with_the_units(written: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: write a number with a unit out of ms, s, m, h, d, w"):
        parse_duration_ms(written)


@pytest.mark.parametrize("written", [-1, float("nan"), float("inf")])
def test_a_duration_outside_the_range_is_refused(written: float) -> None:
    with pytest.raises(ValueError, match="is out of range"):
        parse_duration_ms(written)


@given(st.integers(0, NUMBER_MAX))
def test_what_is_formatted_reads_back_as_the_same_number(number: int) -> None:
    assert parse_size(format_size(number)) == number
    assert parse_duration_ms(format_duration_ms(number)) == number


def test_sizes_and_durations_are_shown_in_the_largest_unit_that_fits() -> None:
    assert [format_size(n) for n in (0, 1, 1024, 1536, 128 << 20, 3 << 40)] == [
        "0 B",
        "1 B",
        "1 KiB",
        "1536 B",
        "128 MiB",
        "3 TiB",
    ]
    assert [format_duration_ms(n) for n in (0, 1, 1500, 90_000, 7 * 86_400_000)] == [
        "0ms",
        "1ms",
        "1500ms",
        "90s",
        "7d",
    ]
    assert [round_size(n) for n in (0, 999, 1536, 1_536_000, 1023 << 20, 5 << 40)] == [
        "0 B",
        "999 B",
        "1.5 KiB",
        "1.46 MiB",
        "1023 MiB",
        "5 TiB",
    ]


@pytest.mark.parametrize(
    ("written", "host", "port"),
    [("127.0.0.1:9092", "127.0.0.1", 9092), ("localhost:0", "localhost", 0), ("[::1]:65535", "::1", 65535)],
)
def test_an_address_is_host_and_port(written: str, host: str, port: int) -> None:
    address = parse_address(written)
    assert (address.host, address.port) == (host, port)
    assert str(address) == written


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("9092", "is not an address: write host:port"),
        ("localhost", "is not an address: write host:port"),
        ("localhost:http", "is not an address: write host:port with a port from 0 to 65535"),
        ("localhost:65536", "with a port from 0 to 65535"),
        ("localhost:-1", "with a port from 0 to 65535"),
        (":9092", 'names no host: write "127.0.0.1:9092" for this machine only, or "0.0.0.0:9092" for every address'),
        ("::1:9092", 'is ambiguous: put brackets around an IPv6 address, as in "[::1]:9092"'),
        ("[nonsense]:9092", "has no IPv6 address between its brackets"),
        ("flymq://h:1", "is ambiguous"),
        ("a b:1", "is not an address"),
        (f"{'x' * 64}.org:1", "has a name that no host can have: write 1 to 63 characters between its dots"),
        ("a..b:1", "has a name that no host can have"),
    ],
)
def test_what_is_no_address_is_refused_with_the_right_form(written: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        parse_address(written)


def test_only_addresses_of_this_machine_are_loopback() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LocalHost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.1.4", "broker.example"]))


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("localhost", "localhost"),
    ],
)
def test_a_peer_has_an_ipv4_address_or_an_ipv6_network(host: str, network: str) -> None:
    assert network_of(host) == network
