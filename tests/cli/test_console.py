"""`penstock console`."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app


@pytest.mark.parametrize(
    ("bind", "address"),
    [
        ("127.0.0.1:9600", "http://127.0.0.1:9600/console"),
        ("0.0.0.0:9600", "http://127.0.0.1:9600/console"),
        ("[::]:9600", "http://[::1]:9600/console"),
    ],
)
def test_it_prints_where_the_console_is(bind: str, address: str) -> None:
    result = CliRunner().invoke(app, ["console", "--set", f"admin.bind={bind}", "--set", "admin.insecure=true"])
    assert (result.exit_code, result.stdout) == (0, f"{address}\n")


def test_it_opens_the_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def opening(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", opening)
    assert CliRunner().invoke(app, ["console", "--open"]).exit_code == 0
    assert opened == ["http://127.0.0.1:9600/console"]
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    assert CliRunner().invoke(app, ["console", "--open"]).exit_code == 1


def test_without_an_admin_address_there_is_no_console(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[listeners.flymq]\n")
    result = CliRunner().invoke(app, ["console", "--config", str(file)])
    assert result.exit_code == 1
    assert "add a section [admin]" in result.stderr
