"""Replies as deployed FlyMQ clients read them, and as a reader written from the contract does. Bytes after the last field are ignored."""

from __future__ import annotations

from typing import NamedTuple

from penstock.protocols.bytes import ByteReader


class Login(NamedTuple):
    success: bool
    user: str
    roles: list[str]
    error: str


class Identity(NamedTuple):
    authenticated: bool
    user: str
    roles: list[str]
    permissions: list[str]


def narrow_login(payload: bytes) -> Login:
    """The login of Go and Python clients, and the WHOAMI of Go clients: one-byte lengths of roles, the error last."""
    reader = ByteReader(payload)
    success, user = reader.boolean("success"), reader.text16("user")
    roles = [reader.text8("role") for _ in range(reader.u32("roles"))]
    return Login(success, user, roles, reader.text16("error"))


def wide_identity(payload: bytes) -> Identity:
    """The WHOAMI of Python and Java clients: two-byte lengths of roles, then permissions."""
    reader = ByteReader(payload)
    authenticated, user = reader.boolean("authenticated"), reader.text16("user")
    return Identity(authenticated, user, reader.texts16("roles", 1000), reader.texts16("permissions", 100))


def contract_login(payload: bytes) -> Login:
    reader = ByteReader(payload)
    success, error, user = reader.boolean("success"), reader.text16("error"), reader.text16("user")
    roles = reader.texts16("roles", 1000)
    reader.finish("roles")
    return Login(success, user, roles, error)


def contract_error(payload: bytes) -> str:
    reader = ByteReader(payload)
    assert not reader.boolean("success")
    message = reader.text16("message")
    reader.finish("message")
    return message


def go_error(payload: bytes) -> str:
    """A code and a text where the length fits, else everything."""
    fits = len(payload) >= 6 and int.from_bytes(payload[4:6]) <= len(payload) - 6
    return payload[6 : 6 + int.from_bytes(payload[4:6])].decode() if fits else payload.decode()


def python_error(payload: bytes) -> str:
    """A code and a text where the length fits, else everything after six bytes; Java clients read it the same way."""
    if len(payload) < 6:
        return payload.decode()
    size = int.from_bytes(payload[4:6])
    return payload[6 : 6 + size].decode() if size <= len(payload) - 6 else payload[6:].decode()
