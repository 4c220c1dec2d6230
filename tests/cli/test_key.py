"""`penstock key` against a real broker."""

from __future__ import annotations

import json

import pytest

import penstock
from penstock.errors import AuthenticationFailed, EntryNotFound
from penstock.testing import RunningBroker
from tests.cli.conftest import Run


def test_a_key_is_made_shown_once_used_listed_and_revoked(run: Run, penstock_broker: RunningBroker) -> None:
    server = ("--server", penstock_broker.url)
    created = run(*server, "key", "create", "worker")
    assert created.code == 0
    key = created.out.decode().strip()
    url = f"blipmq://{key}@{penstock_broker.addresses['blipmq']}"
    with penstock.connect(url) as client:
        client.send("orders", b"one")
        [listed] = json.loads(run(*server, "--json", "key", "list").out)
        assert (listed["name"], listed["roles"]) == ("worker", ["producer", "consumer"])
        assert key not in json.dumps(listed)
        assert run(*server, "key", "revoke", "worker", "--yes").out == b"revoked key worker\n"
        with pytest.raises(AuthenticationFailed):
            client.send("orders", b"two")
    with pytest.raises(AuthenticationFailed):
        penstock.connect(url)
    assert json.loads(run(*server, "--json", "key", "list").out) == []


def test_a_key_has_the_roles_it_was_given(run: Run, penstock_broker: RunningBroker) -> None:
    server = ("--server", penstock_broker.url)
    run(*server, "topic", "create", "orders")
    created = json.loads(run(*server, "--json", "key", "create", "reader", "--role", "consumer").out)
    with penstock.connect(f"blipmq://{created['key']}@{penstock_broker.addresses['blipmq']}") as client:
        subscription = client.subscribe("orders")
        assert client.poll(subscription) == []
        with pytest.raises(AuthenticationFailed, match="key:reader may not write topic orders"):
            client.send("orders", b"one")


def test_names_are_unique_and_missing_ones_are_told(run: Run, penstock_broker: RunningBroker) -> None:
    server = ("--server", penstock_broker.url)
    run(*server, "key", "create", "worker")
    again = run(*server, "key", "create", "worker")
    assert again.code == 1
    assert "there is a key worker already" in again.err
    missing = run(*server, "key", "revoke", "nobody", "--yes")
    assert missing.code == 1
    assert "there is no key nobody" in missing.err
    with penstock_broker.connect() as client, pytest.raises(EntryNotFound):
        client.keys.revoke("nobody")
