"""Sizes, durations and addresses as people write them.

A plain number is in the unit that the name of its setting ends with (`segment_bytes`, `segment_ms`); a text carries its own unit
("128 MiB", "7d", "1h30m"). Parsers raise ValueError with a message that shows how to write the value; formatters give the short
exact form that parses back to the same number.
"""

from __future__ import annotations

import ipaddress
import math
import re
from typing import Any, NamedTuple

SIZE_UNITS_BYTES = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
DURATION_UNITS_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
IPV6_NETWORK_BITS = 64
"""One customer commonly has this much of an IPv6 address to himself."""
NUMBER_MAX = (1 << 63) - 1  # what the log and the wire store numbers in
TEXT_LENGTH_MAX = 64

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.ASCII)
_PLAIN = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


def parse_size(value: float | str) -> int:
    """Bytes from a number or from a text such as "128 MiB"."""
    if isinstance(value, str):
        text = value.strip().lower()
        match = _SIZE.fullmatch(text) if len(text) <= TEXT_LENGTH_MAX else None
        unit = SIZE_UNITS_BYTES.get(match[2] or "b") if match else None
        if match is None or unit is None:
            raise ValueError(
                f'{value!r} is not a size: write a number of bytes, or a number with a unit, as in "128 MiB" or "2 GB"'
            )
        number = float(match[1]) * unit if "." in match[1] else int(match[1]) * unit
    else:
        number = value
    return _whole(number, value, "bytes")


def parse_duration_ms(value: float | str) -> int:
    """Milliseconds from a number of milliseconds or from a text such as "7d" or "1h30m"."""
    return _whole(_duration_ms(value, plain_unit_ms=1), value, "milliseconds")


def parse_duration_s(value: float | str) -> float:
    """Seconds from a number of seconds or from a text such as "30s" or "500ms"."""
    return _duration_ms(value, plain_unit_ms=1000) / 1000


def _duration_ms(value: float | str, plain_unit_ms: int) -> float:
    if not isinstance(value, str):
        total: float = value * plain_unit_ms
    else:
        text = value.strip().lower()
        total, end = 0, 0
        if len(text) <= TEXT_LENGTH_MAX:
            if _PLAIN.fullmatch(text):
                return _positive((float(text) if "." in text else int(text)) * plain_unit_ms, value)
            while (part := _DURATION_PART.match(text, end)) and part[2] in DURATION_UNITS_MS:
                total += (float(part[1]) if "." in part[1] else int(part[1])) * DURATION_UNITS_MS[part[2]]
                end = part.end()
        if end == 0 or end != len(text):
            raise ValueError(
                f'{value!r} is not a duration: write a number with a unit out of ms, s, m, h, d, w, as in "500ms", "7d" or "1h30m"'
            )
    return _positive(total, value)


def _positive(number: float, value: object) -> float:
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{value!r} is out of range: it must not be negative")
    return number


def _whole(number: float, value: object, unit: str) -> int:
    whole = int(_positive(number, value))
    if whole != number:
        raise ValueError(f"{value!r} is not a whole number of {unit}")
    if whole > NUMBER_MAX:
        raise ValueError(f"{value!r} is out of range: at most {NUMBER_MAX} {unit}")
    return whole


def format_size(size_bytes: int) -> str:
    """The size in the largest binary unit that divides it: 134217728 is "128 MiB"."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes and size_bytes % unit == 0:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"


def round_size(size_bytes: float) -> str:
    """The size for reading, to three figures: 1536000 is "1.46 MiB"."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.3g} {name}" if size_bytes < 1000 * unit else f"{size_bytes / unit:.0f} {name}"
    return f"{size_bytes:.0f} B"


def format_duration_ms(duration_ms: int) -> str:
    """The duration in the largest unit that divides it: 604800000 is "7d"."""
    for name in ("d", "h", "m", "s"):
        if duration_ms and duration_ms % DURATION_UNITS_MS[name] == 0:
            return f"{duration_ms // DURATION_UNITS_MS[name]}{name}"
    return f"{duration_ms}ms"


def format_setting(key: str, value: Any) -> str:
    """The value of a setting as a person would write it into the configuration file: with its unit where it has one."""
    if value is None:
        return "forever" if key.rsplit(".", 1)[-1].startswith("retention") else "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and "_bytes" in key:
        return format_size(value)
    name = key.removesuffix("_max").removesuffix("_min")
    if isinstance(value, int) and name.endswith("_ms"):
        return format_duration_ms(value)
    if isinstance(value, float) and name.endswith("_s"):
        return format_duration_ms(round(value * 1000))
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} = {each}" for name, each in value.items()) or "none"
    return str(value)


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """An address to listen on or to connect to: host:port, with brackets around an IPv6 host."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise ValueError(
            f'{text!r} is not an address: write host:port with a port from 0 to 65535, as in "127.0.0.1:9092" or "[::1]:9092"'
        )
    if not host:
        raise ValueError(
            f'{text!r} names no host: write "127.0.0.1:{port}" for this machine only, or "0.0.0.0:{port}" for every address'
        )
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise ValueError(
                f"{text!r} has no IPv6 address between its brackets: write it as in [::1]:{port}"
            ) from None
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f'{text!r} is ambiguous: put brackets around an IPv6 address, as in "[{host}]:{port}"')
    elif any(c.isspace() or c in "/@[]" for c in host):
        raise ValueError(f'{text!r} is not an address: write host:port, as in "127.0.0.1:9092"')
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError(
            f"{text!r} has a name that no host can have: write 1 to 63 characters between its dots, or an IP address"
        ) from None
    return Address(host, int(port))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. A name other than localhost may resolve to anything, so it counts as not."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def network_of(host: str) -> str:
    """Return what one peer has of addresses: an IPv4 address, or the /64 of an IPv6 address. A name stays as it is."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 6 and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, IPV6_NETWORK_BITS), strict=False))
    return str(address if address.version == 4 else address.ipv4_mapped)
