"""`spark.penstock.*`: the broker and the credentials of a session, said once instead of with every query.

A Python source sees the options of its query and not the session's settings. So the source that is registered with a session carries them
(`sessions.register_source`), and functions of this package that ask the broker themselves read them here.

Spark writes what was set in a running session to its event log with every job, and hides only what was set before it started. So a password
stays in this process, and the session has a token in its place, which copies of the session have too: queries run in copies.
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
_HELD_BEGINS: Final = "held-by-penstock-"
_held: dict[str, str] = {}
"""Passwords by token."""


def session_defaults(session: SparkSession) -> dict[str, str]:
    """The options of the broker that the session sets, as in `spark.penstock.bootstrap`."""
    found = {name: session.conf.get(PREFIX + name, None) for name in CONNECTION_OPTIONS}
    defaults = {name: value for name, value in found.items() if value is not None}
    password = defaults.get(PASSWORD, "")
    if password.startswith(_HELD_BEGINS):
        if password not in _held:
            raise InvalidRequest(
                f"{PREFIX}{PASSWORD} was set in another process, which alone knows it: set the option {PASSWORD}"
            )
        defaults[PASSWORD] = _held[password]
    return defaults


def hold_password(session: SparkSession) -> None:
    """Take the password out of the session's settings."""
    password = session.conf.get(PREFIX + PASSWORD, None)
    if password is None or password.startswith(_HELD_BEGINS):
        return
    token = next((token for token, known in _held.items() if known == password), _HELD_BEGINS + secrets.token_hex(8))
    _held[token] = password
    session.conf.set(PREFIX + PASSWORD, token)


def with_session_defaults(session: SparkSession, options: Mapping[str, str]) -> dict[str, str]:
    """The options of a query, with the session's for what it leaves open."""
    return merged(session_defaults(session), options)


def merged(defaults: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """Options, whose names have any case, over defaults."""
    given = {name.lower() for name in options}
    return {**{name: value for name, value in defaults.items() if name.lower() not in given}, **options}
