"""Roles from the command line."""

from __future__ import annotations

import json

import pytest

from penstock.testing import RunningBroker
from tests.cli.conftest import Run


def test_roles_are_listed_set_and_deleted(run: Run, guarded: RunningBroker) -> None:
    permissions = ("--permission", "create", "--permission", "read")
    assert run("role", "set", "ops", *permissions, "--description", "they").text == "set role ops\n"
    assert run("role", "list").text.splitlines()[-2:] == [
        "guest     -                   Nothing beyond what ACLs give",
        "ops       create, read        they",
    ]
    assert json.loads(run("role", "list", "--json").out)[-1]["permissions"] == ["create", "read"]
    assert run("role", "delete", "ops").err.startswith("error: Delete role ops? There is no terminal to ask on")
    assert run("role", "delete", "ops", "--yes").text == "deleted role ops\n"


def test_a_built_in_role_stays_as_it_is(run: Run, guarded: RunningBroker) -> None:
    assert run("role", "set", "admin").code == 1


@pytest.mark.parametrize("word", ["set-role", "delete-role", "roles"])
def test_the_old_words_are_gone(run: Run, word: str) -> None:
    assert run("user", word).code == 2
