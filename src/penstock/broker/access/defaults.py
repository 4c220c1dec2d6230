"""Permissions where no role or ACL decides: the section `[access]`."""

from __future__ import annotations

from penstock.settings import Section


class AccessDefaults(Section):
    """What is open without a login, and without an ACL."""

    allow_anonymous: bool = False
    """Anonymous clients may read and write public topics, and ACLs may make topics public."""
    default_public: bool = False
    """A topic without an ACL is public."""
