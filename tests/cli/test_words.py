"""Words for help, version and completion, and the extras that a plain installation lacks."""

from __future__ import annotations

import json

import pytest

import penstock
from penstock.cli import terminal, words
from tests.cli.conftest import Run


def test_the_version_is_a_word_and_a_flag(run: Run) -> None:
    assert run("version").text == run("--version").text == run("-V").text == f"penstock {penstock.__version__}\n"
    for args in (["version", "--json"], ["--json", "version"], ["--json", "--version"]):
        assert json.loads(run(*args).out) == {"version": penstock.__version__}


@pytest.mark.parametrize("command", [[], ["topic"], ["topic", "create"], ["serve"]])
def test_help_is_a_word_and_a_flag(run: Run, command: list[str]) -> None:
    told = run("help", *command)
    assert (told.code, told.err) == (0, "")
    assert told.text.split() == run(*command, "--help").text.split()


def test_help_of_what_is_not_there_is_a_wrong_command_line(run: Run) -> None:
    result = run("help", "topic", "make")
    assert (result.code, result.out) == (2, b"")
    assert "penstock topic has no command 'make'" in result.err
    assert run("help", "serve", "now").code == 2


@pytest.mark.parametrize("shell", list(words.Shell))
def test_completion_prints_the_script_of_a_shell(run: Run, shell: words.Shell) -> None:
    result = run("completion", shell.value)
    assert result.code == 0
    assert "_PENSTOCK_COMPLETE=" in result.text
    assert json.loads(run("completion", shell.value, "--json").out)["script"] in result.text


def test_completion_can_be_installed(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    result = run("completion", "fish", "--install")
    assert result.code == 0
    assert result.text.startswith(f"installed completion for fish in {tmp_path}")
    assert run("completion", "tcsh").code == 2


@pytest.mark.parametrize(
    ("module", "extra"), [("pyarrow", "spark"), ("pyspark.sql", "spark"), ("pyiceberg.catalog", "iceberg")]
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, module: str, extra: str
) -> None:
    def fail() -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(terminal, "flush", fail)
    result = run("config", "check")
    assert (result.code, result.err) == (
        1,
        f'error: this needs {module}, which is not installed: run pip install "penstock[{extra}]"\n',
    )


def test_a_module_of_ours_that_is_missing_is_a_bug(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(terminal, "flush", fail)
    assert "This is a bug in Penstock" in run("config", "check").err
