"""The sync clients are what the async ones declare."""

from __future__ import annotations

import importlib
import inspect
import shutil
from pathlib import Path

import pytest

from scripts import sync_clients
from scripts.sync_clients import LEFT_OUT, PROTOCOLS, generate, sync_file


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_sync_client_is_current(protocol: str) -> None:
    path = sync_file(protocol)
    assert path.read_text() == generate(protocol), f"protocols/{protocol}/{path.name} is stale: run `make sync`"


def test_a_sync_client_that_a_merge_broke_is_generated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(sync_clients.ROOT / "blipmq", tmp_path / "blipmq")
    (tmp_path / "blipmq" / "sync.py").write_text("<<<<<<< ours")
    monkeypatch.setattr(sync_clients, "ROOT", tmp_path)
    assert "class BlipMQClient(" in generate("blipmq")


def surface(kind: type) -> dict[str, list[tuple[str, object, str]]]:
    """Return the arguments of each public method: name, default and annotation."""
    return {
        name: [(each.name, each.default, each.annotation) for each in inspect.signature(member).parameters.values()]
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_sync_class_has_the_calls_of_its_async_class(protocol: str) -> None:
    classes = vars(importlib.import_module(f"penstock.protocols.{protocol}.sync"))
    pairs = [(kind, classes[name.removeprefix("Async")]) for name, kind in classes.items() if name.startswith("Async")]
    assert pairs
    for async_class, sync_class in pairs:
        expected = {name: arguments for name, arguments in surface(async_class).items() if name not in LEFT_OUT}
        assert surface(sync_class) == expected
        described = {name for name in expected if inspect.getdoc(getattr(async_class, name))}
        assert described <= {name for name in expected if inspect.getdoc(getattr(sync_class, name))}
