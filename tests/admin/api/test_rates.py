"""How often one source may ask."""

from __future__ import annotations

import pytest

from penstock.admin.api import rates
from penstock.admin.api.rates import Rates
from penstock.testing.clock import ManualClock


def test_a_burst_is_allowed_and_then_a_steady_rate() -> None:
    clock = ManualClock()
    counted = Rates(clock, per_s=0.6)
    assert [counted.wait_s("192.0.2.1") for _ in range(3)] == [0, 0, 0]
    assert counted.wait_s("192.0.2.1") == pytest.approx(1 / 0.6)
    assert counted.wait_s("192.0.2.2") == 0
    clock.advance(1 / 0.6)
    assert counted.wait_s("192.0.2.1") == 0
    assert counted.wait_s("192.0.2.1") > 0


def test_addresses_of_one_ipv6_network_are_one_source() -> None:
    counted = Rates(ManualClock(), per_s=0.2)
    assert counted.wait_s("2001:db8::1") == 0
    assert counted.wait_s("2001:db8::2") > 0


def test_sources_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "SOURCES_MAX", 2)
    counted = Rates(ManualClock(), per_s=0.2)
    for host in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
        assert counted.wait_s(host) == 0
    assert len(counted._sources) == 2
