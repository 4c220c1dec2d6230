"""The BlipMQ listener as a configuration describes it: which keys are accepted, and on which addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.config import Config, load_config
from penstock.errors import AuthenticationFailed, ConfigError
from penstock.testing import RunningBroker


def connect(broker: RunningBroker, key: str) -> None:
    with penstock.connect(f"blipmq://{key}@{broker.addresses['blipmq']}") as client:
        client.ping()


def test_every_configured_key_is_accepted_and_no_other() -> None:
    with RunningBroker(listeners={"blipmq": {"api_keys": ["one", "two"]}}) as broker:
        connect(broker, "one")
        connect(broker, "two")
        for key in ("three", "dev-key", "one%00", "**********"):
            with pytest.raises(AuthenticationFailed, match="invalid API key"):
                connect(broker, key)


def test_without_a_key_nobody_can_log_in_until_one_is_made() -> None:
    with RunningBroker(listeners={"blipmq": {"api_keys": []}}) as broker:
        with pytest.raises(AuthenticationFailed):
            connect(broker, "dev-key")
        connect(broker, broker.connect().keys.create("first"))


def test_development_accepts_its_well_known_key() -> None:
    with RunningBroker(dev=True) as broker:
        connect(broker, "dev-key")


def test_it_is_on_without_a_file_and_off_in_a_file_that_does_not_name_it(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[listeners.flymq]\n")
    assert load_config(None, {}).listeners.blipmq is not None
    assert load_config(file, {}).listeners.blipmq is None


def test_beyond_loopback_it_needs_tls_or_a_word_of_consent(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[listeners.blipmq]\nbind = "0.0.0.0:5555"\napi_keys = ["k"]\n')
    with pytest.raises(ConfigError, match="keys do not travel in the clear"):
        load_config(file, {})
    file.write_text(file.read_text() + "insecure = true\n")
    assert load_config(file, {}).listeners.blipmq is not None


def test_keys_of_the_configuration_are_not_shown() -> None:
    config = Config(listeners={"blipmq": {"api_keys": ["top-secret"]}})
    assert "top-secret" not in repr(config)
    assert "top-secret" not in str(config.values)


def test_where_keys_come_from_is_shown() -> None:
    config = load_config(None, {"PENSTOCK_LISTENERS__BLIPMQ__API_KEYS": '["top-secret"]'})
    assert config.origins["listeners.blipmq.api_keys"] == "environment PENSTOCK_LISTENERS__BLIPMQ__API_KEYS"
    assert load_config(None, {}).origins["listeners.blipmq.api_keys"] == "default"


def test_an_empty_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[listeners.blipmq]\napi_keys = [""]\n')
    with pytest.raises(ConfigError, match=r"listeners\.blipmq\.api_keys"):
        load_config(file, {})
