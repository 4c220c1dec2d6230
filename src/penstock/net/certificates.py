"""The self-signed certificate of a broker on loopback, kept in its data directory.

QUIC has no form without TLS, so a listener that was given no certificate needs one nevertheless. Where only programs of the same machine
can reach it, the broker makes its own: they trust it by reading the file. It is made the way the strictest of the deployed clients want
it: ECDSA on P-256, names for localhost in its subject alternatives, and no claim to be an authority.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.clock import Clock

CERTIFICATE_FILE = "dev-certificate.pem"
KEY_FILE = "dev-certificate-key.pem"
VALID_DAYS = 365
RENEW_DAYS = 30
"""One that ends sooner than this is replaced at start."""
BACKDATED_DAYS = 1
"""So that a clock that is a little behind does not refuse it."""
NAMES = (
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    x509.IPAddress(ipaddress.ip_address("::1")),
)


class CertificateFiles(NamedTuple):
    cert: Path
    key: Path


def own_certificate(data_dir: Path, clock: Clock) -> CertificateFiles:
    """Return the certificate in the data directory, created if there is none, renewed if it expires soon."""
    files = CertificateFiles(data_dir / CERTIFICATE_FILE, data_dir / KEY_FILE)
    now = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)
    if not _is_good(files, now):
        _make(files, now)
    return files


def _is_good(files: CertificateFiles, now: dt.datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(files.cert.read_bytes())
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    except (OSError, ValueError):
        return False
    renewed = certificate.not_valid_after_utc - dt.timedelta(days=RENEW_DAYS)
    return certificate.public_key() == key.public_key() and certificate.not_valid_before_utc <= now < renewed


def _make(files: CertificateFiles, now: dt.datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Penstock on this machine")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=BACKDATED_DAYS))
        .not_valid_after(now + dt.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(NAMES), critical=False)
        .sign(key, hashes.SHA256())
    )
    # The key first: a certificate without its key would be rejected by everyone, and is created again by the next start.
    _write(
        files.key,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        mode=0o600,
    )
    _write(files.cert, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)


def _write(path: Path, content: bytes, *, mode: int) -> None:
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
        stream.write(content)
    unfinished.replace(path)
