"""Who is asking: a tenant by its token, somebody by an API key, the subject of a certificate, or nobody in particular.

A token of the configuration stands for its tenant and opens nothing else. An API key is the broker's own: it stands for its name and
roles, whatever tenant its holder says to be, and the access rules decide. Tokens are compared by their digests, in constant time, under
the rules that all logins have (`penstock.broker.access.logins`).
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from penstock.broker.access.api_keys import CONFIGURED_KEY, DEFAULT_ROLES, digest_of
from penstock.broker.access.checks import ANONYMOUS, UNAUTHENTICATED, Principal
from penstock.broker.access.directory import TENANT_PRINCIPAL_PREFIX
from penstock.broker.broker import Broker
from penstock.errors import AuthenticationFailed

NO_DIGEST: Final = bytes(32)
"""No token has it; so that an unknown tenant takes as long to refuse as a known one."""


class Identity(NamedTuple):
    principal: Principal
    tenant_id: str | None = None
    """The only tenant it may name; None for any."""
    key_digest: bytes | None = None
    """Of the API key it rests on, which may be revoked."""


class Identities:
    """How one listener finds out."""

    def __init__(
        self,
        broker: Broker,
        *,
        required: bool,
        tokens: Mapping[str, str] | None = None,
        api_keys: Iterable[str] = (),
    ) -> None:
        """`api_keys` are accepted besides those that the broker keeps."""
        self.required = required
        self._broker = broker
        self._tokens = {tenant: digest_of(token) for tenant, token in (tokens or {}).items()}
        self._configured = frozenset(map(digest_of, api_keys))

    def anonymous(self, peer: str, certificate_subject: str | None) -> Identity:
        """Somebody who has said nothing yet."""
        return Identity((UNAUTHENTICATED if self.required else ANONYMOUS).seen_at(peer, certificate_subject))

    def authenticate(self, tenant_id: str, token: str, anonymous: Identity) -> Identity:
        """Raises AuthenticationFailed. Without authentication the identity stays what it was."""
        if not self.required:
            return anonymous
        address, tenant = anonymous.principal.address, TENANT_PRINCIPAL_PREFIX + tenant_id
        roles = frozenset(DEFAULT_ROLES)

        def find_configured(digest: bytes) -> Principal | None:
            if hmac.compare_digest(self._tokens.get(tenant_id, NO_DIGEST), digest):
                return Principal(tenant, roles, address=address)
            return Principal(CONFIGURED_KEY, roles, address=address) if digest in self._configured else None

        login = self._broker.api_keys.authenticate(token, address, find_configured, tenant)
        if login is None:
            raise AuthenticationFailed(f"auth failed: this token is not accepted for tenant {tenant_id}")
        return Identity(login.principal, tenant_id if login.principal.name == tenant else None, login.key_digest)

    def holds(self, identity: Identity) -> bool:
        """Whether what an identity rests on has not been revoked since."""
        return identity.key_digest is None or self._broker.api_keys.is_valid(identity.key_digest)
