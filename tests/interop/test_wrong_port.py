"""A client at the port of another protocol hears what may be wrong, and the broker continues as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.errors import PenstockError
from penstock.testing import RunningBroker

ASK: dict[str, Callable[[Any], object]] = {
    "flymq": lambda client: client.topics(),
    "blipmq": lambda client: client.ping(),
    "rustlog": lambda client: client.topics(),
    "flymqs": lambda client: client.topics(),
}


@pytest.mark.parametrize(
    ("scheme", "port_of"),
    [(scheme, port_of) for scheme in ASK for port_of in ("flymq", "blipmq", "rustlog") if scheme != port_of],
)
def test_a_client_at_the_wrong_port_is_told_so(penstock_broker: RunningBroker, scheme: str, port_of: str) -> None:
    user = "key@" if scheme == "blipmq" else ""
    with pytest.raises(PenstockError, match=r"wrong port, or TLS on one side only|the server does not speak TLS"):
        with penstock.connect(f"{scheme}://{user}{penstock_broker.addresses[port_of]}") as client:
            ASK[scheme](client)
    assert penstock_broker.connect().topics() == []
