"""Where contexts are kept, and who can read them."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.cli import profiles
from penstock.cli.profiles import Profile, Profiles
from penstock.errors import ConfigError, EntryNotFound


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


NUMBER = '{"contexts": {"a": {"server": "h:1", "password": 1234}}}'


def save(wanted: Profiles) -> None:
    with profiles.changing() as saved:
        saved.contexts, saved.current = wanted.contexts, wanted.current


def test_without_a_file_there_are_none() -> None:
    saved = profiles.load()
    assert (saved.contexts, saved.current) == ({}, None)
    with pytest.raises(EntryNotFound, match=r"context not found: prod .*penstock context create prod"):
        saved.find("prod")


def test_only_their_owner_can_read_them(home: Path) -> None:
    save(Profiles({"prod": Profile("flymq://a@h:1", None, "secret")}, "prod"))
    file = home / "penstock" / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [each.name for each in file.parent.iterdir()] == ["contexts.json"]
    loaded = profiles.load()
    assert (loaded.current, loaded.find("prod").password) == ("prod", "secret")
    assert "secret" not in str(loaded.find("prod").shown())
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read it: run chmod 600"):
        profiles.load()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"contexts": []}', '{"contexts": {"a": {}}}', NUMBER, "\x00", "{" * 10_000]
)
def test_a_file_that_is_none_of_ours_is_refused(home: Path, text: str) -> None:
    save(Profiles({}, None))
    (home / "penstock" / "contexts.json").write_text(text)
    with pytest.raises(ConfigError, match="is not a file of contexts"):
        profiles.load()


def test_a_context_in_use_that_is_gone_is_not_in_use(home: Path) -> None:
    save(Profiles({"a": Profile("flymq://h:1")}, "b"))
    assert profiles.load().current is None


def test_of_commands_that_run_at_once_each_keeps_what_the_others_saved() -> None:
    def add(name: str) -> None:
        with profiles.changing() as saved:
            saved.contexts[name] = Profile("flymq://h:1")

    names = [f"c{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, names))
    assert sorted(profiles.load().contexts) == sorted(names)


def test_a_change_that_fails_saves_nothing(home: Path) -> None:
    def fail() -> None:
        with profiles.changing() as saved:
            saved.contexts["a"] = Profile("flymq://h:1")
            saved.find("b")

    with pytest.raises(EntryNotFound):
        fail()
    assert profiles.load().contexts == {}
    assert list((home / "penstock").iterdir()) == []


def test_without_the_variable_they_are_below_the_home_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert profiles.path() == tmp_path / "me" / ".config" / "penstock" / "contexts.json"
