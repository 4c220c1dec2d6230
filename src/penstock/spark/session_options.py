"""`spark.penstock.*`: the broker and the credentials of a session, said once instead of with every query.

A Python source sees the options of its query and not the session's settings. So the source that is registered with a session carries them
(`sessions.register_source`), and functions of this package that ask the broker themselves read them here.

Spark writes what is set in a running session to its event log with every job, and what is set before it starts to the command line of its
virtual machine, which every user of the computer can read. So a password stays in this process, and the session has a token in its place,
which copies of the session have too: queries run in copies.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidRequest
from penstock.spark.connection import CONNECTION_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX: Final = "spark."
PASSWORD: Final = "penstock.password"  # noqa: S105 - the name of an option
_TOKEN_BEGINS: Final = "held-by-penstock-"  # noqa: S105 - what a token begins with
_held: dict[str, str] = {}
"""Passwords by token."""


def session_defaults(session: SparkSession) -> dict[str, str]:
    """The options of the broker that the session sets, as in `spark.penstock.bootstrap`."""
    return _with_password(_found(session))


def with_session_defaults(session: SparkSession, options: Mapping[str, str]) -> dict[str, str]:
    """The options of a query, with the session's for what it leaves open."""
    return _with_password(merged(_found(session), options))


def merged(defaults: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """Options, whose names have any case, over defaults."""
    given = {name.lower() for name in options}
    return {**{name: value for name, value in defaults.items() if name.lower() not in given}, **options}


def hold_password(session: SparkSession) -> None:
    """Replace the password in the settings of a session by a token."""
    password = session.conf.get(PREFIX + PASSWORD, None)
    if password is not None and (token := _token(password)) != password:
        session.conf.set(PREFIX + PASSWORD, token)


def without_password(config: Mapping[str, str]) -> dict[str, str]:
    """Settings of a session with a token in place of the password. The same password has the same token."""
    return {name: _token(str(value)) if name == PREFIX + PASSWORD else value for name, value in config.items()}


def _found(session: SparkSession) -> dict[str, str]:
    found = {name: session.conf.get(PREFIX + name, None) for name in CONNECTION_OPTIONS}
    return {name: value for name, value in found.items() if value is not None}


def _token(password: str) -> str:
    if password.startswith(_TOKEN_BEGINS):
        return password
    known = {held: token for token, held in _held.copy().items()}
    token = known.get(password) or _TOKEN_BEGINS + secrets.token_hex(8)
    _held[token] = password
    return token


def _with_password(options: dict[str, str]) -> dict[str, str]:
    token = options.get(PASSWORD, "")
    if not token.startswith(_TOKEN_BEGINS):
        return options
    if token not in _held:
        raise InvalidRequest(
            f"{PREFIX}{PASSWORD} was set by another process, which alone knows it: set it again, or the option {PASSWORD}"
        )
    return {**options, PASSWORD: _held[token]}
