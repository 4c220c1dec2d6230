"""The TLS context of a listener, and errors that name the file at fault.

OpenSSL's own errors name neither the file nor the cure, so each file is checked before it is handed over. TLS 1.2 is the oldest
version spoken; cipher suites are those of Python and the system, which receive security updates faster than a list kept here would.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError

# Names of a certificate's subject in the short form of RFC 4514; others keep the name OpenSSL gives them.
SHORT_NAMES = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "userId": "UID",
}
ESCAPED = frozenset(',+"\\<>;=')


def server_context(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """What a listener needs. With `client_ca`, a client must show a certificate that one of its authorities signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= (
        ssl.OP_NO_RENEGOTIATION
    )  # a peer could make us pay for handshake after handshake on one connection
    _load_identity(context, cert, key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _load_authorities(context, client_ca, "tls.client_ca")
    return context


def client_context(cert: Path, key: Path, ca: Path) -> ssl.SSLContext:
    """What a node needs to connect to others: both show a certificate that one of the authorities signed, the other one for its name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_identity(context, cert, key)
    _load_authorities(context, ca, "tls.ca")
    return context


def subject_of(certificate: Mapping[str, Any] | None) -> str | None:
    """The subject of a verified certificate, most specific name first, as in `CN=alice,O=Example`; None if there is none."""
    parts = [
        f"{SHORT_NAMES.get(name, name)}={_escape(value)}"
        for relative_name in reversed((certificate or {}).get("subject", ()))
        for name, value in relative_name
    ]
    return ",".join(parts) or None


def _escape(value: str) -> str:
    """Make sure that no value can pretend to be two: `O=x` inside a name stays inside it."""
    return "".join(
        f"\\{char}" if char in ESCAPED else char if char.isprintable() else f"\\{ord(char):02x}" for char in value
    )


def _load_identity(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    _check_pem(cert, "tls.cert", "CERTIFICATE")
    _check_pem(key, "tls.key", "PRIVATE KEY")

    def refuse_passphrase() -> str:
        raise ConfigError(
            f"tls.key: {key} is protected by a passphrase, which a server cannot type: store it without one, readable"
            " only by the user that runs the broker"
        )

    try:
        context.load_cert_chain(cert, key, password=refuse_passphrase)
    except ssl.SSLError as error:
        if error.reason in {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"}:
            raise ConfigError(
                f"tls.key: {key} does not belong to the certificate in {cert}: use the key the certificate was issued for"
            ) from None
        raise ConfigError(
            f"tls: {cert} and {key} cannot be used ({error.reason or error}): both must be PEM files, the certificate"
            " first in its chain"
        ) from None


def _load_authorities(context: ssl.SSLContext, ca: Path, setting: str) -> None:
    _check_pem(ca, setting, "CERTIFICATE")
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{setting}: {ca} holds no usable certificate ({error.reason or error}): use the PEM file of the"
            " authority that signs your clients' certificates"
        ) from None


def _check_pem(path: Path, setting: str, kind: str) -> None:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{setting}: {path} does not exist: create it or correct the path") from None
    except OSError as error:
        raise ConfigError(
            f"{setting}: {path} cannot be read ({error.strerror}): give the user that runs this program access to it"
        ) from None
    if b"-----BEGIN " not in text or f"{kind}-----".encode() not in text:
        raise ConfigError(
            f"{setting}: {path} holds no {kind.lower()} in PEM form (a text with a line -----BEGIN ... {kind}-----)"
        )
