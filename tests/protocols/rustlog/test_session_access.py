"""Who a RustLog client is, in a protocol without a login."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

import penstock
from penstock.config import RustLogListener
from penstock.errors import PenstockError
from penstock.testing import RunningBroker


def can_create(**listeners: dict[str, Any]) -> bool:
    with RunningBroker(listeners=listeners) as broker, penstock.connect(broker.rustlog_url) as client:
        try:
            client.create_topic("orders")
        except PenstockError:
            return False
        return True


def test_everyone_may_do_everything_where_no_listener_asks_for_a_login() -> None:
    assert can_create()


def test_clients_are_strangers_where_flymq_asks_for_a_login() -> None:
    assert not can_create(flymq={"auth": "required"})


def test_the_listener_may_say_otherwise() -> None:
    assert can_create(flymq={"auth": "required"}, rustlog={"auth": "none"})
    assert not can_create(rustlog={"auth": "required"})


@pytest.mark.parametrize("settings", [{}, {"auth": "required"}])
def test_beyond_loopback_it_needs_certificates_on_both_sides(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"tls\.client_ca"):
        RustLogListener(bind="0.0.0.0:9292", **settings)
    assert RustLogListener(bind="0.0.0.0:9292", insecure=True, **settings).insecure
