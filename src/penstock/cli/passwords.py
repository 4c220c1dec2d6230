"""Passwords on the command line: from a variable, from standard input or from a prompt; never from an argument, which others can see."""

from __future__ import annotations

import os
import sys
from typing import Annotated
from urllib.parse import quote

import typer

from penstock.clients.url import split_url
from penstock.errors import InvalidRequest

PASSWORD_VARIABLE = "PENSTOCK_PASSWORD"  # noqa: S105 - the name of a variable
NEW_PASSWORD_VARIABLE = "PENSTOCK_NEW_PASSWORD"  # noqa: S105
LINE_BYTES_MAX = 4096

PasswordStdinOption = Annotated[
    bool, typer.Option("--password-stdin", help="Read the new password from the first line of standard input.")
]


def with_password(url: str) -> str:
    """The address of a user without a password, with the one from PENSTOCK_PASSWORD or a prompt; any other address as it is."""
    user = split_url(url).credentials
    if user is None or ":" in user:
        return url
    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None and sys.stdin.isatty():
        password = typer.prompt(f"Password of {user}", hide_input=True, err=True)
    if password is None:
        return url
    return url_with_password(url, password)


def check_text(password: str) -> str:
    """The password. Raises InvalidRequest, without showing it, for one that is not UTF-8: no protocol could send it."""
    try:
        password.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("the password is not valid UTF-8 text: give it in UTF-8") from None
    return password


def url_with_password(url: str, password: str) -> str:
    """The address of a user, with a password; that of nobody as it is."""
    check_text(password)
    parts = split_url(url)
    if parts.credentials is None:
        return url
    return str(parts._replace(credentials=f"{parts.credentials}:{quote(password, safe='')}"))


def new_password(user: str, *, from_stdin: bool) -> str:
    """The password that a user is to have."""
    if from_stdin:
        password = sys.stdin.readline(LINE_BYTES_MAX).rstrip("\r\n")
    elif (given := os.environ.get(NEW_PASSWORD_VARIABLE)) is not None:
        password = given
    elif sys.stdin.isatty():
        password = typer.prompt(f"New password of {user}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise InvalidRequest(
            f"no terminal to prompt for the new password: set {NEW_PASSWORD_VARIABLE}, or add --password-stdin"
        )
    if not password:
        raise InvalidRequest("the new password is empty: choose one of at least one character")
    return check_text(password)
