from __future__ import annotations

import pytest

from penstock.cli.passwords import PASSWORD_VARIABLE, with_password


@pytest.fixture(autouse=True)
def variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "a/b@c:d é")


@pytest.mark.parametrize(
    ("url", "filled_in"),
    [
        ("flymq://ann@h:1", "flymq://ann:a%2Fb%40c%3Ad%20%C3%A9@h:1"),
        ("flymqs://ann@[::1]:1?ca=f", "flymqs://ann:a%2Fb%40c%3Ad%20%C3%A9@[::1]:1?ca=f"),
        ("flymq://ann@h:1,[::1]:2,i?ca=f", "flymq://ann:a%2Fb%40c%3Ad%20%C3%A9@h:1,[::1]:2,i?ca=f"),
        ("flymq://h:1", "flymq://h:1"),
        ("flymq://ann:known@h:1", "flymq://ann:known@h:1"),
        ("flymq://ann:@h:1", "flymq://ann:@h:1"),
    ],
)
def test_only_a_user_without_a_password_gets_the_one_of_the_variable(url: str, filled_in: str) -> None:
    assert with_password(url) == filled_in


def test_without_a_variable_or_a_terminal_the_address_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSWORD_VARIABLE)
    assert with_password("flymq://ann@h:1") == "flymq://ann@h:1"
