"""The certificate that a broker makes for itself."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.net.certificates import BACKDATED_DAYS, RENEW_DAYS, VALID_DAYS, own_certificate
from penstock.testing.clock import ManualClock

DAY_S = 24 * 3600


def test_it_is_what_the_strictest_clients_want(tmp_path: Path) -> None:
    files = own_certificate(tmp_path, ManualClock())
    certificate = x509.load_pem_x509_certificate(files.cert.read_bytes())
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert isinstance(key.curve, ec.SECP256R1)
    assert certificate.version is x509.Version.v3
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("127.0.0.1"),
        ipaddress.ip_address("::1"),
    ]
    with pytest.raises(x509.ExtensionNotFound):
        certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    certificate.verify_directly_issued_by(certificate)


def test_only_the_owner_can_read_the_key(tmp_path: Path) -> None:
    files = own_certificate(tmp_path, ManualClock())
    assert files.key.stat().st_mode & 0o777 == 0o600
    assert files.cert.stat().st_mode & 0o044 == 0o044
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([files.cert.name, files.key.name])


def test_it_is_kept_until_shortly_before_its_end(tmp_path: Path) -> None:
    clock = ManualClock()
    first = own_certificate(tmp_path, clock).cert.read_bytes()
    clock.advance((VALID_DAYS - RENEW_DAYS) * DAY_S - 60)
    assert own_certificate(tmp_path, clock).cert.read_bytes() == first
    clock.advance(120)
    second = own_certificate(tmp_path, clock).cert.read_bytes()
    assert second != first
    clock.jump(-(BACKDATED_DAYS + 1) * DAY_S)
    assert own_certificate(tmp_path, clock).cert.read_bytes() != second


def test_what_is_no_certificate_with_its_key_is_made_again(tmp_path: Path) -> None:
    clock = ManualClock()
    files = own_certificate(tmp_path, clock)
    first, first_key = files.cert.read_bytes(), files.key.read_bytes()
    files.key.unlink()
    assert own_certificate(tmp_path, clock).cert.read_bytes() != first
    files.key.write_bytes(first_key)  # of another certificate
    files.cert.write_bytes(own_certificate(tmp_path, clock).cert.read_bytes())
    files.cert.write_text("nonsense")
    own_certificate(tmp_path, clock)
    x509.load_pem_x509_certificate(files.cert.read_bytes())
