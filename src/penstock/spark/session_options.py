"""`spark.penstock.*`: the broker and the credentials of a session, said once instead of with every query.

A Python source sees the options of its query and not the session's settings. So the source that is registered with a session carries them
(`sessions.register_source`), and functions of this package that ask the broker themselves read them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.spark.connection import CONNECTION_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX: Final = "spark."


def session_defaults(session: SparkSession) -> dict[str, str]:
    """The options of the broker that the session sets, as in `spark.penstock.bootstrap`."""
    found = {name: session.conf.get(PREFIX + name, None) for name in CONNECTION_OPTIONS}
    return {name: value for name, value in found.items() if value is not None}


def with_session_defaults(session: SparkSession, options: Mapping[str, str]) -> dict[str, str]:
    """The options of a query, with the session's for what it leaves open."""
    return merged(session_defaults(session), options)


def merged(defaults: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """Options, whose names have any case, over defaults."""
    given = {name.lower() for name in options}
    return {**{name: value for name, value in defaults.items() if name.lower() not in given}, **options}
