"""A Felix listener as a configuration describes it: who has to log in, and with what."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.errors import AuthenticationFailed, ConfigError, TopicNotFound
from penstock.testing import RunningBroker


@pytest.mark.parametrize(
    "listeners",
    [
        {"felix": {"auth": "required"}},
        {"felix": {"tokens": {"default": "secret"}}},
        {"flymq": {"auth": "required"}},
    ],
    ids=["asked for", "because there are tokens", "because FlyMQ asks"],
)
def test_a_token_is_required(listeners: Any) -> None:
    with RunningBroker(listeners=listeners, dev=True, topics=[{"name": "demo"}]) as broker:
        with pytest.raises(AuthenticationFailed, match="auth failed"):
            penstock.connect(broker.felix_url)
        with penstock.connect(broker.felix_url, token="dev-key") as client:
            assert client.send("demo", b"x") == 0


@pytest.mark.parametrize("listeners", [{}, {"felix": {"auth": "none"}, "flymq": {"auth": "required"}}])
def test_no_token_is_required(listeners: Any) -> None:
    with RunningBroker(listeners=listeners, topics=[{"name": "demo"}]) as broker:
        for token in (None, "anything"):
            with penstock.connect(broker.felix_url, token=token) as client:
                assert client.send("demo", b"x") is not None


def test_names_and_streams_are_as_configured() -> None:
    settings = {"felix": {"default_tenant": "t1", "default_namespace": "main", "auto_create": True}}
    with RunningBroker(listeners=settings) as broker:
        with penstock.connect(broker.felix_url, tenant="t1", namespace="main") as client:
            client.send("demo", b"of the default")
        with penstock.connect(broker.felix_url, tenant="default") as client:
            client.send("demo", b"of another")
        admin = broker.connect()
        assert admin.topics() == ["default/default/demo", "demo"]
        assert [record.value for record in admin.records("demo")] == [b"of the default"]


def test_streams_are_not_made_unless_it_says_so() -> None:
    with RunningBroker() as broker, penstock.connect(broker.felix_url) as client:
        with pytest.raises(TopicNotFound):
            client.send("demo", b"x")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"tokens": {"t1": "x"}, "auth": "none"}, 'auth = "none"'),
        ({"tokens": {"a/b": "x"}}, "a name is not empty"),
        ({"tokens": {"t1": ""}}, "tokens"),
        ({"default_tenant": "a/b"}, "default_tenant"),
        ({"slow_subscriber": "shout"}, "slow_subscriber"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: Any, reason: str) -> None:
    from penstock.config import load_config

    with pytest.raises(ConfigError, match=reason):
        load_config(env={}, overrides={"listeners.felix": settings})
