"""Who a RustLog client is, in a protocol without a login."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from pydantic import ValidationError

import penstock
from penstock.broker.access.checks import SYSTEM
from penstock.config import RustLogListener
from penstock.errors import AccessDenied, PenstockError
from penstock.log.api import Engine
from penstock.protocols.rustlog.server.metrics import RustLogStats
from penstock.protocols.rustlog.server.operations import Operations
from penstock.protocols.rustlog.session import RustLog
from penstock.protocols.rustlog.wire import LOGIN_PAYLOAD_BYTES_MAX
from penstock.testing import RunningBroker
from penstock.testing.clock import ManualClock
from tests.broker.accounts import broker_with_users, user
from tests.protocols.rustlog.wire_client import WireClient


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


def padded_ping(payload_bytes: int, *, json: bool) -> bytes:
    """A request of this size that is answered for any client."""
    payload = b'"Ping"'.ljust(payload_bytes) if json else b"\xff".ljust(payload_bytes, b"\0")
    return payload_bytes.to_bytes(4, "big") + payload


@pytest.mark.parametrize("json", [True, False])
def test_a_stranger_may_send_64_kib_and_more_is_refused_at_its_length(*, json: bool) -> None:
    with (
        RunningBroker(listeners={"rustlog": {"auth": "required"}}) as broker,
        WireClient(broker.addresses["rustlog"]) as stranger,
    ):
        assert b"authentication required" not in stranger.ask(padded_ping(LOGIN_PAYLOAD_BYTES_MAX, json=json))
        reply = stranger.ask((LOGIN_PAYLOAD_BYTES_MAX + 1).to_bytes(4, "big"))
        assert b"authentication required: without a client certificate a frame has at most 65536 bytes" in reply
        assert (reply[4] == 0xFE) is not json
        assert stranger.is_closed()


@pytest.mark.parametrize(
    "settings", [{}, {"listeners": {"rustlog": {"auth": "required"}}, "access": {"allow_anonymous": True}}]
)
def test_who_need_not_authenticate_may_send_more(settings: dict[str, Any]) -> None:
    with RunningBroker(**settings) as broker, WireClient(broker.addresses["rustlog"]) as client:
        assert b"authentication" not in client.ask(padded_ping(LOGIN_PAYLOAD_BYTES_MAX + 1, json=False))


@pytest.mark.parametrize("settings", [{}, {"auth": "required"}])
def test_beyond_loopback_it_needs_certificates_on_both_sides(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"tls\.client_ca"):
        RustLogListener(bind="0.0.0.0:9292", **settings)
    assert RustLogListener(bind="0.0.0.0:9292", insecure=True, **settings).insecure


async def test_a_produce_without_records_needs_the_right_to_write(engine: Engine, clock: ManualClock) -> None:
    broker = broker_with_users(engine, clock)
    await broker.start()
    await broker.topics.ensure(SYSTEM, "orders")
    for role, may in (("consumer", False), ("producer", True)):
        principal = await user(broker, role, role)
        session = Operations(broker, RustLog(broker, clock=clock).fetcher, clock, principal, RustLogStats())
        with nullcontext() if may else pytest.raises(AccessDenied, match="may not write topic orders"):
            session.check_partition("orders", 0)
    await broker.close()
