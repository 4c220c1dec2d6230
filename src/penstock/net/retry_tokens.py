"""Tokens that show that a client receives what is sent to its address, without state on the server.

A token says which connection ids the client first used and was given, and until when it is good; a keyed hash over that and the client's
address makes it ours. The key lives as long as the listener.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import NamedTuple

from penstock.quic.packets import Address

KEY_BYTES = 32
MAC_BYTES = 16
TIME_BYTES = 8
LIFETIME_S = 60.0
"""A client comes back at once; this allows for retransmissions that double their distance each time. One that comes later cannot be let
in at all: it was promised a retry that we no longer know of."""


class Admitted(NamedTuple):
    """What the server must repeat in its handshake, so that the client knows that the retry came from it."""

    original_destination_cid: bytes
    retry_source_cid: bytes


class RetryTokens:
    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self._key = random_bytes(KEY_BYTES)

    def issue(self, address: Address, original_destination_cid: bytes, retry_source_cid: bytes, now_s: float) -> bytes:
        good_until_ms = int((now_s + LIFETIME_S) * 1000)
        said = (
            good_until_ms.to_bytes(TIME_BYTES, "big")
            + bytes([len(original_destination_cid)])
            + original_destination_cid
            + retry_source_cid
        )
        return self._mac(address, said) + said

    def admit(self, address: Address, token: bytes, now_s: float) -> Admitted | None:
        """None for a token that is not ours, not this client's, or too old."""
        mac, said = token[:MAC_BYTES], token[MAC_BYTES:]
        if len(said) <= TIME_BYTES or not hmac.compare_digest(mac, self._mac(address, said)):
            return None
        if now_s * 1000 > int.from_bytes(said[:TIME_BYTES], "big"):
            return None
        split = TIME_BYTES + 1 + said[TIME_BYTES]
        return Admitted(said[TIME_BYTES + 1 : split], said[split:])

    def _mac(self, address: Address, said: bytes) -> bytes:
        about = f"{address[0]} {address[1]} ".encode() + said
        return hmac.digest(self._key, about, hashlib.sha256)[:MAC_BYTES]
