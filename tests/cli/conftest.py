"""Running the real command inside the test process, with its exit code and both of its outputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.testing import RunningBroker
from tests.logging_state import logging_as_before

COLOUR_VARIABLES = ("CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "NO_COLOR")


@dataclass(frozen=True)
class Result:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> Iterator[Run]:
    """`run("topic", "list")` is what `penstock topic list` does, with `input` on its standard input."""
    for name in os.environ:
        if name.startswith("PENSTOCK_") or name in COLOUR_VARIABLES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)

    def run(*args: str, input: bytes = b"") -> Result:  # noqa: A002
        stdin = tmp_path / "stdin"
        stdin.write_bytes(input)
        capfdbinary.readouterr()
        with stdin.open() as stream, monkeypatch.context() as patch:
            patch.setattr("sys.stdin", stream)
            with pytest.raises(SystemExit) as ended:
                main(list(args))
        captured = capfdbinary.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Result(code, captured.out, captured.err.decode())

    with logging_as_before():
        yield run


@pytest.fixture
def broker(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningBroker]:
    """A broker that the commands of the test talk to."""
    with RunningBroker() as broker:
        monkeypatch.setenv("PENSTOCK_SERVER", broker.url)
        yield broker


@pytest.fixture
def guarded(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningBroker]:
    """A broker that requires authentication, and the commands run by an administrator."""
    with RunningBroker(dev=True, listeners={"flymq": {"auth": "required"}}) as broker:
        monkeypatch.setenv("PENSTOCK_SERVER", f"flymq://admin@{broker.address}")
        monkeypatch.setenv("PENSTOCK_PASSWORD", "admin")
        yield broker
