"""The certificates of a QUIC listener: its own, and which ones of clients it accepts.

The files are checked by the same code as those of TLS listeners, so that errors have the same texts. Clients are judged
as OpenSSL would: a chain to one of the authorities, all of it valid now, and a purpose, where one is named, that includes being a client.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from cryptography import x509
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from penstock.errors import ConfigError
from penstock.net.tls import server_context, subject_of
from penstock.quic.tls import CertificateCheck, TlsSettings, load_identity

CHAIN_DEPTH_MAX = 8
RESET_KEY_PURPOSE = b"penstock: tell clients of a run before that they are forgotten\n"
# The names that `subject_of` knows; others keep the number.
NAMES = {
    NameOID.COMMON_NAME: "commonName",
    NameOID.COUNTRY_NAME: "countryName",
    NameOID.DOMAIN_COMPONENT: "domainComponent",
    NameOID.LOCALITY_NAME: "localityName",
    NameOID.ORGANIZATION_NAME: "organizationName",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "organizationalUnitName",
    NameOID.STATE_OR_PROVINCE_NAME: "stateOrProvinceName",
    NameOID.USER_ID: "userId",
    NameOID.EMAIL_ADDRESS: "emailAddress",
    NameOID.SERIAL_NUMBER: "serialNumber",
}


def quic_server_tls(
    cert: Path, key: Path, client_ca: Path | None = None, *, alpn: tuple[str, ...] = (), alpn_required: bool = True
) -> TlsSettings:
    """What a listener needs. With `client_ca`, a client must show a certificate that one of its authorities signed."""
    server_context(cert, key, client_ca)  # for its errors, which name the file at fault
    try:
        identity = load_identity(cert, key)
    except ValueError as error:
        raise ConfigError(
            f"tls.key: {key} cannot be used for QUIC ({error}): use an ECDSA (P-256, P-384) or RSA key in PEM form"
        ) from None
    return TlsSettings(
        alpn=alpn,
        alpn_required=alpn_required,
        identity=identity,
        client_check=None if client_ca is None else client_check(client_ca),
        reset_key=hashlib.sha256(RESET_KEY_PURPOSE + key.read_bytes()).digest(),
    )


def client_check(client_ca: Path) -> CertificateCheck:
    """What accepts certificates of clients that one of the authorities in `client_ca` signed."""
    authorities = x509.load_pem_x509_certificates(client_ca.read_bytes())
    anything = verification.ExtensionPolicy.permit_all()
    authority = anything.require_present(x509.BasicConstraints, verification.Criticality.AGNOSTIC, None)
    client = anything.may_be_present(x509.ExtendedKeyUsage, verification.Criticality.AGNOSTIC, _is_for_clients)
    verifier = (
        verification.PolicyBuilder()
        .store(verification.Store(authorities))
        .max_chain_depth(CHAIN_DEPTH_MAX)
        .extension_policies(ca_policy=authority, ee_policy=client)
    )

    def check(certificate: bytes, between: list[bytes]) -> None:
        chain = [x509.load_der_x509_certificate(each) for each in between]
        try:
            # Built here, because a verifier judges by the time it was built at.
            verifier.build_client_verifier().verify(x509.load_der_x509_certificate(certificate), chain)
        except verification.VerificationError as error:
            raise ValueError(f"the certificate is not accepted: {error}") from None

    return check


def subject_of_der(certificate: bytes) -> str | None:
    """The subject of a verified certificate, in the form of `penstock.net.tls.subject_of`."""
    names = x509.load_der_x509_certificate(certificate).subject.rdns
    return subject_of({"subject": [[(_name(each.oid), str(each.value)) for each in name] for name in names]})


def _name(oid: ObjectIdentifier) -> str:
    return NAMES.get(oid, oid.dotted_string)


def _is_for_clients(_: verification.Policy, __: x509.Certificate, usage: x509.ExtendedKeyUsage | None) -> None:
    wanted = {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
    if usage is not None and not wanted & set(usage):
        raise ValueError("the certificate is for another purpose than being a client")
